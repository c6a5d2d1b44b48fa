package pipeline

import (
	"net/url"
	"slices"
	"strings"
)

// SASL is how the broker is told who we are.
type SASL struct {
	Mechanism string `yaml:"mechanism" weir:"required,enum=PLAIN|SCRAM-SHA-256|SCRAM-SHA-512|OAUTHBEARER|AWS_MSK_IAM"`
	// Username and Password go with PLAIN and SCRAM.
	Username Secret `yaml:"username"`
	Password Secret `yaml:"password"`
	OAuth    *OAuth `yaml:"oauth"`
	MSK      *MSK   `yaml:"aws"`
}

// OAuth is where the token of OAUTHBEARER comes from: exactly one of Token,
// TokenFile and TokenURL.
type OAuth struct {
	Token     Secret `yaml:"token"`
	TokenFile string `yaml:"tokenFile" weir:"path"`
	TokenURL  string `yaml:"tokenUrl" weir:"url"`
	// ClientID, ClientSecret and Scope are for TokenURL.
	ClientID     string            `yaml:"clientId"`
	ClientSecret Secret            `yaml:"clientSecret"`
	Scope        string            `yaml:"scope"`
	CAFile       string            `yaml:"caFile" weir:"path"`
	Extensions   map[string]string `yaml:"extensions"`
}

// MSK is whose signature AWS_MSK_IAM carries, where it is not that of the
// default chain's credentials.
type MSK struct {
	Profile     string `yaml:"profile"`
	RoleARN     string `yaml:"roleArn"`
	SessionName string `yaml:"sessionName"`
}

const (
	saslOAuth = "OAUTHBEARER"
	saslMSK   = "AWS_MSK_IAM"
)

// checkSASL checks that the log-in has what its mechanism needs and no more.
func (l *loader) checkSASL(k *Kafka) {
	s := k.SASL
	if s == nil || l.isBroken("kafka.sasl") || l.isBroken("kafka.sasl.mechanism") || s.Mechanism == "" {
		return
	}
	secret := map[string]bool{"username": !s.Username.IsZero(), "password": !s.Password.IsZero()}
	password := s.Mechanism != saslOAuth && s.Mechanism != saslMSK
	for _, key := range []string{"username", "password"} {
		at := "kafka.sasl." + key
		switch {
		case password && !secret[key] && !l.isBroken(at):
			l.faultKey("kafka.sasl", "sasl %s needs %s", s.Mechanism, key)
		case !password && secret[key]:
			l.faultKey(at, "%s does not go with %s", key, s.Mechanism)
		}
	}
	if s.OAuth != nil && s.Mechanism != saslOAuth {
		l.faultKey("kafka.sasl.oauth", "oauth goes with mechanism %s, not with %s", saslOAuth, s.Mechanism)
	}
	if s.MSK != nil && s.Mechanism != saslMSK {
		l.faultKey("kafka.sasl.aws", "aws goes with mechanism %s, not with %s", saslMSK, s.Mechanism)
	}
	switch s.Mechanism {
	case saslOAuth:
		l.checkOAuth(s.OAuth)
	case saslMSK:
		if k.TLS == nil {
			l.faultKey("kafka.sasl", "%s needs kafka.tls: MSK lets nobody log in without it", saslMSK)
		}
	}
	if k.TLS == nil && slices.Contains([]string{"PLAIN", saslOAuth}, s.Mechanism) {
		l.warn("kafka.sasl", "%s without tls sends the secret in clear", s.Mechanism)
	}
}

func (l *loader) checkOAuth(o *OAuth) {
	const key = "kafka.sasl.oauth"
	if o == nil {
		if !l.isBroken(key) {
			l.faultKey("kafka.sasl", "sasl %s needs oauth with token, tokenFile or tokenUrl", saslOAuth)
		}
		return
	}
	given := 0
	for name, set := range map[string]bool{"token": !o.Token.IsZero(), "tokenFile": o.TokenFile != "", "tokenUrl": o.TokenURL != ""} {
		if set || l.isBroken(key+"."+name) {
			given++
		}
	}
	if given != 1 {
		l.faultKey(key, "oauth needs exactly one of token, tokenFile and tokenUrl")
	}
	l.mustExist(key+".tokenFile", o.TokenFile)
	l.mustExist(key+".caFile", o.CAFile)
	client := o.ClientID != "" && !o.ClientSecret.IsZero()
	switch {
	case o.TokenURL != "" && !client && !l.isBroken(key+".clientSecret") && !l.isBroken(key+".clientId"):
		l.faultKey(key, "oauth.tokenUrl needs clientId and clientSecret")
	case o.TokenURL == "" && (o.ClientID != "" || !o.ClientSecret.IsZero() || o.Scope != "" || o.CAFile != ""):
		l.faultKey(key, "oauth: clientId, clientSecret, scope and caFile go with tokenUrl")
	}
	if u, err := url.Parse(o.TokenURL); err == nil && u.Scheme == "http" && !loopback(u.Hostname()) {
		l.warn(key+".tokenUrl", "tokenUrl is http: the client's secret goes in clear")
	}
}

func loopback(host string) bool {
	return slices.Contains([]string{"127.0.0.1", "localhost", "::1"}, host)
}

// checkHeaders refuses headers that would not be one line of a request.
func (l *loader) checkHeaders(in *Ingest, key string) {
	for name, v := range in.SSE.Headers {
		if strings.ContainsAny(name, " :\r\n") || name == "" || strings.ContainsAny(v.Reveal(), "\r\n") {
			l.faultKey(key+".sse.headers", "headers: a name or a value that is not one line of an HTTP header")
		}
	}
}
