package pipeline

import (
	"net/url"
	"path/filepath"
	"strings"
	"time"
)

// Catalog is where the tables are registered.
type Catalog struct {
	Type string `yaml:"type" weir:"enum=sql|rest|glue"`
	// Name is the catalog's name as Spark and PyIceberg must be told it.
	Name string `yaml:"name" weir:"name"`
	// URI of a sql catalog is sqlite:PATH, absolute after Load, or
	// postgres://…; of a rest catalog http(s)://…. It is a secret because a
	// database's URI carries its password. A glue catalog has none.
	URI Secret `yaml:"uri"`
	// NewName begins a catalog of another name in a database that has some.
	NewName bool `yaml:"newName"`
	// StartTimeout is how long a start waits for a catalog that does not answer.
	StartTimeout time.Duration `yaml:"startTimeout" weir:"min=1s"`

	// The rest is for a rest catalog.

	Warehouse       string            `yaml:"warehouse"`
	Credential      Secret            `yaml:"credential"`
	Token           Secret            `yaml:"token"`
	OAuth2ServerURI string            `yaml:"oauth2ServerUri" weir:"url"`
	Scope           string            `yaml:"scope"`
	Headers         map[string]Secret `yaml:"headers"`
	SigV4           *SigV4            `yaml:"sigv4"`

	// Glue is for a glue catalog; nil is everything by the SDK's default chain.
	Glue *Glue `yaml:"glue"`
}

// SigV4 signs the requests to a rest catalog with AWS's credentials.
type SigV4 struct {
	Region  string `yaml:"region"`
	Service string `yaml:"service"`
}

// The values of Catalog.Type.
const (
	CatalogSQL  = "sql"
	CatalogREST = "rest"
)

// sqlitePrefix begins the URI of a sql catalog in a file.
const sqlitePrefix = "sqlite:"

// postgresSchemes begin the URI of one on Postgres; the ones with a driver are
// as PyIceberg is given them.
var postgresSchemes = []string{"postgres://", "postgresql://", "postgresql+psycopg2://", "postgresql+psycopg://"}

// IsSQLite reports whether the catalog is a file.
func (c Catalog) IsSQLite() bool { return strings.HasPrefix(c.URI.Reveal(), sqlitePrefix) }

// SQLitePath is the database file of a sql catalog in a file.
func (c Catalog) SQLitePath() string { return strings.TrimPrefix(c.URI.Reveal(), sqlitePrefix) }

// checkCatalog checks the URI by the catalog's type, and that no key is given
// that the type does not use.
func (l *loader) checkCatalog(p *Pipeline) {
	c := &p.Catalog
	rest := c.Type == CatalogREST
	if !l.isBroken("catalog.type") {
		l.checkCatalogKeys(p, rest)
	}
	l.checkGlue(p)
	if l.isBroken("catalog") || c.URI.IsZero() || c.Type == CatalogGlue {
		return
	}
	switch {
	case rest:
		l.checkRESTAddress(c)
	case isPostgres(c.URI.Reveal()):
		if u, err := url.Parse(c.URI.Reveal()); err != nil || u.Host == "" || strings.Trim(u.Path, "/") == "" {
			l.faultKey("catalog.uri", "uri: want postgres://USER:PASSWORD@HOST:PORT/DATABASE; characters like @ : / ? # %% in the password are written as %%40 %%3A %%2F %%3F %%23 %%25")
		}
	default:
		l.checkSQLite(c)
	}
}

func isPostgres(uri string) bool {
	for _, s := range postgresSchemes {
		if strings.HasPrefix(uri, s) {
			return true
		}
	}
	return false
}

// checkCatalogKeys: a key of the other type would be ignored in silence.
func (l *loader) checkCatalogKeys(p *Pipeline, rest bool) {
	_, warehouse := l.places["warehouse"]
	switch {
	case rest && warehouse && !l.isBroken("warehouse"):
		l.faultKey("warehouse", "warehouse: a rest catalog decides where tables lie; remove it (the server's own name of a warehouse goes into catalog.warehouse)")
	case !rest && !warehouse:
		l.fault(l.places.nearest(""), "warehouse", "missing key %q", "warehouse")
	case !rest && p.Warehouse == "" && !l.isBroken("warehouse"):
		l.faultKey("warehouse", "warehouse is empty")
	}
	if _, ok := l.places["catalog.newName"]; ok && p.Catalog.Type != CatalogSQL {
		l.faultKey("catalog.newName", "newName is for a sql catalog; this one is named by its address")
	}
	if rest {
		return
	}
	for _, key := range []string{"warehouse", "credential", "token", "oauth2ServerUri", "scope", "headers", "sigv4"} {
		if _, ok := l.places["catalog."+key]; ok {
			l.faultKey("catalog."+key, "%s is for a rest catalog; this one is of type %s", key, p.Catalog.Type)
		}
	}
}

func (l *loader) checkRESTAddress(c *Catalog) {
	u, err := url.Parse(c.URI.Reveal())
	switch {
	case err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "":
		l.faultKey("catalog.uri", "uri: the address of a rest catalog is an http or https URL, without the /v1")
		return
	case u.User != nil:
		l.faultKey("catalog.uri", "uri: the user and the password of a rest catalog go into catalog.credential")
		return
	}
	auth := 0
	for _, set := range []bool{!c.Credential.IsZero(), !c.Token.IsZero(), c.SigV4 != nil} {
		if set {
			auth++
		}
	}
	if auth > 1 {
		l.faultKey("catalog", "catalog has more than one of credential, token and sigv4; keep one")
	}
	if c.Credential.IsZero() {
		for _, key := range []string{"oauth2ServerUri", "scope"} {
			if _, ok := l.places["catalog."+key]; ok {
				l.faultKey("catalog."+key, "%s goes with credential, which is not given", key)
			}
		}
	}
	local := u.Hostname() == "localhost" || strings.HasPrefix(u.Hostname(), "127.") || u.Hostname() == "::1"
	if u.Scheme == "http" && auth > 0 && !local {
		l.warn("catalog.uri", "http sends the catalog's credentials in clear; use https")
	}
}

// checkSQLite makes the path absolute.
func (l *loader) checkSQLite(c *Catalog) {
	const key = "catalog.uri"
	rest, ok := strings.CutPrefix(c.URI.Reveal(), sqlitePrefix)
	if !ok {
		l.faultKey(key, "uri: a sql catalog is sqlite:PATH, as in sqlite:./data/catalog.db, or postgres://USER:PASSWORD@HOST/DATABASE")
		return
	}
	if strings.HasPrefix(rest, "//") {
		rest = "/" + strings.TrimLeft(rest, "/")
	}
	if rest == "" || strings.Contains(rest, "?") {
		l.faultKey(key, "uri: want sqlite:PATH without parameters; Weir sets its own (WAL, full sync)")
		return
	}
	if !filepath.IsAbs(rest) {
		rest = filepath.Join(l.dir, rest)
	}
	c.URI = NewSecret(sqlitePrefix + filepath.Clean(rest))
}
