package weir

import (
	"context"

	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/broker"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/sink"
)

// KafkaTopic is a topic to write to, made when it is missing. Rows and the query's
// marker are produced in one transaction: exactly once for a reader with
// isolation.level=read_committed. The marker lies in a compacted topic beside it,
// <topic>.weir.<query>.
type KafkaTopic struct {
	// BootstrapServers are host:port, several with commas.
	BootstrapServers string
	Topic            string
	// Partitions of a topic that is made; the broker's default where 0.
	Partitions int32
	// Key and Value are columns; no key, and the whole row as JSON, where empty.
	Key, Value string
	// Headers are columns that become headers of their names.
	Headers  []string
	ClientID string
	TLS      *TLS
	SASL     *SASL
	// Rejected is the table for rows that are larger than the topic takes. Without
	// it such a row stops the query, and nothing of its batch is visible.
	Rejected Table
	// MaxBatchBytes is how large a batch may be in memory; 1 GiB where 0.
	MaxBatchBytes int64
}

func (t KafkaTopic) rejected() Table { return t.Rejected }

func (t KafkaTopic) open(_ context.Context, env tableEnv) (sink.Sink, func() error, error) {
	p := pipeline.KafkaSink{
		Topic: t.Topic, Partitions: t.Partitions, Key: t.Key, Value: t.Value, Headers: t.Headers,
		OnRejected: policyFor(t.Rejected), MaxBatchBytes: pipeline.Size(t.MaxBatchBytes),
	}
	s, err := app.KafkaSink(p, clientConfig(t.BootstrapServers, t.ClientID, t.TLS, t.SASL), env.query, env.shape, env.clock)
	if err != nil {
		return nil, nil, err
	}
	return s, s.Close, nil
}

// clientConfig is how a cluster is reached.
func clientConfig(servers, clientID string, tls *TLS, sasl *SASL) broker.Config {
	c := broker.Config{BootstrapServers: []string{servers}, ClientID: clientID}
	if tls != nil {
		c.TLS = broker.TLS{Enabled: true, CAFile: tls.CAFile, CertFile: tls.CertFile, KeyFile: tls.KeyFile,
			ServerName: tls.ServerName, InsecureSkipVerify: tls.InsecureSkipVerify}
	}
	if sasl != nil {
		c.SASL = broker.SASL{Mechanism: sasl.Mechanism, Username: sasl.Username, Password: sasl.Password}
	}
	return c
}
