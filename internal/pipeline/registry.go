package pipeline

import "net/url"

// FormatJSON is a value that is JSON itself; a value of any other Parse.Format
// begins with the id of its schema (Confluent's wire format).
const FormatJSON = "json"

// SchemaRegistry is where the schemas are that values name. It speaks the API of
// Confluent's registry.
type SchemaRegistry struct {
	URL string `yaml:"url" weir:"required,url"`
	// Username and Password, or Token, or neither.
	Username Secret `yaml:"username"`
	Password Secret `yaml:"password"`
	Token    Secret `yaml:"token"`
	TLS      *TLS   `yaml:"tls"`
}

// checkFormat checks that a format has the registry that it needs, and no other.
func (l *loader) checkFormat(p *Parse, key string) {
	r := p.SchemaRegistry
	at := key + ".schemaRegistry"
	switch {
	case l.isBroken(key + ".format"), l.isBroken(at):
		return
	case p.Format == FormatJSON && r != nil:
		l.faultKey(at, "schemaRegistry goes with format avro, protobuf or jsonSchema, not with %s", p.Format)
		return
	case p.Format != FormatJSON && r == nil:
		l.faultKey(key, "format %s needs schemaRegistry: each value names its schema there", p.Format)
		return
	case r == nil:
		return
	}
	if (r.Username.IsZero() != r.Password.IsZero()) && !l.isBroken(at+".username") && !l.isBroken(at+".password") {
		l.faultKey(at, "schemaRegistry: username and password go together")
	}
	if !r.Token.IsZero() && !r.Username.IsZero() {
		l.faultKey(at+".token", "schemaRegistry has both username and token; keep one")
	}
	if u, err := url.Parse(r.URL); err == nil && u.Scheme == "http" && (!r.Password.IsZero() || !r.Token.IsZero()) && !loopback(u.Hostname()) {
		l.warn(at+".url", "url is http: the log-in goes in clear")
	}
	l.checkTLS(r.TLS, at+".tls")
}
