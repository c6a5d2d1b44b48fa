package pipeline

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
)

// PostgresSink writes to a table of a Postgres database, made when it is missing.
type PostgresSink struct {
	URL   Secret `yaml:"url" weir:"required"`
	Table string `yaml:"table" weir:"required"`
	// Mode is append or upsert.
	Mode string `yaml:"mode" weir:"enum=append|upsert"`
	// Keys name a row for an upsert; OrderBy says which of several rows of one key
	// is the last.
	Keys    []string `yaml:"keys" weir:"min=1,column"`
	OrderBy []string `yaml:"orderBy" weir:"min=1,column"`
	// DeleteWhen, Changes and RememberDeletes are for an upsert that deletes, see
	// Upsert.
	DeleteWhen      string        `yaml:"deleteWhen"`
	Changes         string        `yaml:"changes" weir:"enum=debezium"`
	RememberDeletes time.Duration `yaml:"rememberDeletes" weir:"min=0s"`
	// JSONB are text columns that the table holds as jsonb.
	JSONB         []string `yaml:"jsonb" weir:"min=1,column"`
	OnRejected    string   `yaml:"onRejected" weir:"enum=fail|deadLetter"`
	RejectedTable string   `yaml:"rejectedTable" weir:"table"`
	MaxBatchBytes Size     `yaml:"maxBatchBytes" weir:"min=1048576"`
}

// The values of PostgresSink.Mode.
const (
	ModeAppend = "append"
	ModeUpsert = "upsert"
)

// DefaultMaxBatchBytes is how large a batch for a store outside may be in memory.
const DefaultMaxBatchBytes = Size(1 << 30)

func (s *PostgresSink) setDefaults() {
	s.Mode, s.OnRejected, s.MaxBatchBytes, s.RememberDeletes = ModeAppend, RejectFail, DefaultMaxBatchBytes, DefaultRememberDeletes
}

// Target implements External: the server and the table, without the secret.
func (s *PostgresSink) Target() string { return PostgresTarget(s.URL.Reveal(), s.Table) }

// PostgresTarget names a table of a Postgres for logs and checkpoints: host, port
// and database, never user or password.
func PostgresTarget(uri, table string) string {
	if !strings.Contains(table, ".") {
		table = "public." + table
	}
	u, err := url.Parse(uri)
	if err != nil || u.Host == "" {
		return "postgres:" + table
	}
	return "postgres:" + u.Host + strings.TrimSuffix(u.Path, "/") + "/" + table
}

// Rejects implements External.
func (s *PostgresSink) Rejects() (string, string) { return s.OnRejected, s.RejectedTable }

func (s *PostgresSink) check(l *loader, _ *Pipeline, q *Query, key string) {
	if u := s.URL.Reveal(); u != "" && !l.isBroken(key+".url") {
		if p, err := url.Parse(u); err != nil || (p.Scheme != "postgres" && p.Scheme != "postgresql") || p.Host == "" {
			l.faultKey(key+".url", "url is not of the form postgres://user:password@host:port/database (it is not shown: it may hold a password)")
		}
	}
	if parts := strings.Split(s.Table, "."); s.Table != "" && (len(parts) > 2 || slices.Contains(parts, "")) {
		l.faultKey(key+".table", "table %q is not of the form table or schema.table", clip(s.Table))
	}
	switch {
	case s.Mode == ModeUpsert && len(s.Keys) == 0 && !l.isBroken(key+".keys"):
		l.faultKey(key, "mode: upsert needs keys, the columns that name a row")
	case s.Mode == ModeAppend && len(s.Keys) > 0:
		l.faultKey(key+".keys", "keys are for mode: upsert")
	case s.Mode == ModeAppend && len(s.OrderBy) > 0:
		l.faultKey(key+".orderBy", "orderBy is for mode: upsert")
	}
	l.checkDeletes(q, strings.TrimSuffix(key, ".to.postgres"), key)
	if q.Parse != nil && l.isBroken(strings.TrimSuffix(key, ".to.postgres")+".parse") {
		return
	}
	l.checkColumnsKnown(q, key+".keys", "keys", s.Keys)
	l.checkColumnsKnown(q, key+".orderBy", "orderBy", s.OrderBy)
	l.checkColumnsKnown(q, key+".jsonb", "jsonb", s.JSONB)
	for i, name := range s.JSONB {
		if c, ok := q.column(name); ok && c.Type != TypeString && c.Type != TypeJSON {
			l.faultKey(fmt.Sprintf("%s.jsonb[%d]", key, i), "jsonb: %q is a %s; only text can be stored as jsonb", name, c.Type)
		}
	}
}
