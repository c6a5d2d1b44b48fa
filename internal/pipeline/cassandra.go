package pipeline

import "strings"

// CassandraSink writes to a table of a store that speaks Cassandra's protocol, by
// key.
type CassandraSink struct {
	Hosts    []string `yaml:"hosts" weir:"required,min=1"`
	Username Secret   `yaml:"username"`
	Password Secret   `yaml:"password"`
	Keyspace string   `yaml:"keyspace" weir:"required"`
	Table    string   `yaml:"table" weir:"required"`
	// Keys are the primary key: the partition key, then the clustering columns.
	Keys []string `yaml:"keys" weir:"required,min=1,column"`
	// DeleteWhen and Changes are for rows that delete their key, see Upsert.
	DeleteWhen    string `yaml:"deleteWhen"`
	Changes       string `yaml:"changes" weir:"enum=debezium"`
	OnRejected    string `yaml:"onRejected" weir:"enum=fail|deadLetter"`
	RejectedTable string `yaml:"rejectedTable" weir:"table"`
	MaxBatchBytes Size   `yaml:"maxBatchBytes" weir:"min=1048576"`
}

func (s *CassandraSink) setDefaults() {
	s.OnRejected, s.MaxBatchBytes = RejectFail, DefaultMaxBatchBytes
}

// Target implements External.
func (s *CassandraSink) Target() string { return "cassandra:" + s.Keyspace + "." + s.Table }

// Rejects implements External.
func (s *CassandraSink) Rejects() (string, string) { return s.OnRejected, s.RejectedTable }

func (s *CassandraSink) check(l *loader, _ *Pipeline, q *Query, key string) {
	if s.Username.IsZero() != s.Password.IsZero() {
		l.faultKey(key, "cassandra: username and password go together")
	}
	l.checkDeletes(q, strings.TrimSuffix(key, ".to.cassandra"), key)
	if q.Parse != nil && l.isBroken(strings.TrimSuffix(key, ".to.cassandra")+".parse") {
		return
	}
	l.checkColumnsKnown(q, key+".keys", "keys", s.Keys)
}
