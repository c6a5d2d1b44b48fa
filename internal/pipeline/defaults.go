package pipeline

import (
	"path/filepath"
	"time"
)

// Every default of the pipeline file is in this file: the fixed ones in
// setDefaults, called before a mapping is decoded, and those that follow from
// other keys in derive.

// Fixed defaults that other packages name too.
const (
	DefaultCatalogName          = "weir"
	DefaultCatalogStartTimeout  = 30 * time.Second
	DefaultMaxOffsetsPerTrigger = 100_000
	DefaultMaxEventBytes        = Size(32 << 20)
	DefaultMaxRecordBytes       = Size(4 << 20)
	DefaultIdleTimeout          = 60 * time.Second
	DefaultOverlap              = 10 * time.Second
	DefaultMaxFutureSkew        = time.Hour
	DefaultIdlePartition        = 5 * time.Minute
	DefaultFlushInterval        = 5 * time.Second
	DefaultListen               = "127.0.0.1:8080"
	// ListenNone switches the status page off.
	ListenNone = "none"
	// DefaultUserAgent names the program and where to learn about it, which
	// Wikimedia's policy asks of every client.
	DefaultUserAgent = "weir (+https://github.com/weirlake/weir)"
	// BuiltinRecentChange is the contract that ships with the binary.
	BuiltinRecentChange = "builtin:wikimedia/recentchange"
	// DeadLetterSuffix makes the dead-letter topic's name.
	DeadLetterSuffix = ".dlq"
)

func (p *Pipeline) setDefaults() {
	p.Ops.setDefaults()
	p.Status.setDefaults()
}

func (c *Catalog) setDefaults() {
	c.Type, c.Name, c.StartTimeout = CatalogSQL, DefaultCatalogName, DefaultCatalogStartTimeout
}

func (t *Topic) setDefaults() { t.Partitions, t.ReplicationFactor = 1, 1 }

func (i *Ingest) setDefaults() {
	i.Delivery = AtLeastOnce
	i.MaxRecordBytes = DefaultMaxRecordBytes
	i.SSE.setDefaults()
}

func (s *SSE) setDefaults() {
	s.UserAgent = DefaultUserAgent
	s.MaxEventBytes = DefaultMaxEventBytes
	s.IdleTimeout = DefaultIdleTimeout
	s.Overlap = DefaultOverlap
}

func (q *Query) setDefaults() {
	q.OnLostCheckpoint = OnLostAdopt
	q.Care.setDefaults()
	q.State.setDefaults()
}

func (k *KafkaSource) setDefaults() {
	k.StartingOffsets.Mode = Earliest
	k.MaxOffsetsPerTrigger = DefaultMaxOffsetsPerTrigger
	k.FailOnDataLoss = true
}

func (t *TableSource) setDefaults() {
	t.StartingOffsets.Mode = Earliest
	t.MaxOffsetsPerTrigger = DefaultMaxOffsetsPerTrigger
	t.FailOnDataLoss = true
}

func (p *Parse) setDefaults() { p.Format = FormatJSON }

func (w *Watermark) setDefaults() {
	w.MaxFutureSkew, w.IdleTimeout = DefaultMaxFutureSkew, DefaultIdlePartition
}

func (d *DeadLetter) setDefaults() { d.Format = FormatIceberg }

func (s *DeltaSink) setDefaults() {
	s.OnReusedAppID, s.Mode, s.RememberDeletes = ReusedFail, ModeAppend, DefaultRememberDeletes
}

func (o *Ops) setDefaults() { o.FlushInterval = DefaultFlushInterval }

func (s *Status) setDefaults() { s.Listen = DefaultListen }

// derive fills in what follows from other keys.
func derive(p *Pipeline) {
	if p.Kafka != nil && p.Kafka.ClientID == "" {
		p.Kafka.ClientID = "weir-" + p.Name
	}
	for i := range p.Ingest {
		in := &p.Ingest[i]
		if in.DeadLetterTopic == "" && in.Topic != "" {
			in.DeadLetterTopic = in.Topic + DeadLetterSuffix
		}
		if in.TransactionalID == "" {
			in.TransactionalID = "weir-" + p.Name + "-" + in.Name
		}
		if in.Position == "" && p.CheckpointLocation != "" && !Remote(p.CheckpointLocation) {
			in.Position = filepath.Join(p.CheckpointLocation, "ingest", in.Name, "position.json")
		}
	}
	if p.Ops.RunsTable == "" && len(p.Jobs) > 0 {
		p.Ops.RunsTable = DefaultRunsTable
	}
	if p.Ops.ChecksTable == "" && len(p.Checks) > 0 {
		p.Ops.ChecksTable = DefaultChecksTable
	}
	for i := range p.Queries {
		q := &p.Queries[i]
		if q.CheckpointLocation == "" && p.CheckpointLocation != "" && q.Name != "" {
			q.CheckpointLocation = JoinLocation(p.CheckpointLocation, q.Name)
		}
		if k := q.From.Kafka; k != nil && k.GroupID == "" {
			k.GroupID = "weir-" + p.Name + "-" + q.Name
		}
	}
}
