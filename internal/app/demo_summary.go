package app

import (
	"context"
	"strings"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/check"
	"github.com/weirlake/weir/internal/event"
	"github.com/weirlake/weir/internal/failure"
)

// Names of the shipped pipeline that the summary counts.
const (
	demoTopic      = "wiki.recentchange"
	demoDeadTopic  = "wiki.recentchange.dlq"
	demoBronze     = "bronze.recentchange"
	demoSilver     = "silver.edits"
	demoDeadLetter = "silver.edits_dead_letter"
	demoSessions   = "silver.editor_sessions"
)

// DemoSummary is what `weir demo --output json` prints. Its names are part of
// the public contract.
type DemoSummary struct {
	// Events = Canaries + ContractViolations + Published, all distinct.
	Events             int64 `json:"events"`
	Published          int64 `json:"published"`
	Canaries           int64 `json:"canaries"`
	ContractViolations int64 `json:"contract_violations"`
	// KafkaRecords are those of the topic; at-least-once ingestion may have sent
	// some events more than once.
	KafkaRecords int64 `json:"kafka_records"`
	BronzeRows   int64 `json:"bronze_rows"`
	SilverRows   int64 `json:"silver_rows"`
	// Late are the distinct edits that came after the watermark and are in
	// bronze only. SilverRows + Late does not depend on how batches fell.
	Late int64 `json:"late"`
	// Duplicates are records of edits beyond the first of each event.
	Duplicates  int64 `json:"duplicates"`
	DeadLetters int64 `json:"dead_letters"`
	// Sessions are the editors' sessions that are complete; OpenSessions end at
	// or after the watermark, so that an edit could still belong to them, and are
	// in no table yet.
	Sessions       int64   `json:"sessions"`
	OpenSessions   int64   `json:"open_sessions"`
	ElapsedSeconds float64 `json:"elapsed_seconds"`
	// Gold is what the marts came to, Checks how many checks passed; both are left
	// out where the jobs did not run (a build without DuckDB).
	Gold   []DemoMart  `json:"gold,omitempty"`
	Checks *DemoChecks `json:"checks,omitempty"`
}

// DemoMart is one table of gold.
type DemoMart struct {
	Table string `json:"table"`
	Rows  int64  `json:"rows"`
	State string `json:"state"`
}

// DemoChecks counts the checks by what they found.
type DemoChecks struct {
	Passed int `json:"passed"`
	Warned int `json:"warned"`
	Failed int `json:"failed"`
}

// addJobs adds what the jobs came to.
func (s *DemoSummary) addJobs(j JobsStatus) {
	if j.Gold != nil {
		for _, m := range j.Gold.Models {
			if m.Table != "" {
				s.Gold = append(s.Gold, DemoMart{Table: m.Table, Rows: m.Rows, State: m.State})
			}
		}
	}
	if j.CheckedAt == nil {
		return
	}
	s.Checks = &DemoChecks{}
	for _, r := range j.Checks {
		switch r.Status {
		case check.Passed:
			s.Checks.Passed++
		case check.Warned:
			s.Checks.Warned++
		default:
			s.Checks.Failed++
		}
	}
}

// Summary counts every layer with the audit's own readers and compares it with
// what the generator says that it made. The error is a mismatch.
func (d *Demo) Summary(ctx context.Context) (*DemoSummary, error) {
	opts, err := d.KafkaOptions()
	if err != nil {
		return nil, err
	}
	k, err := audit.NewKafka(d.Kafka.BootstrapServers, d.opts.Clock, opts...)
	if err != nil {
		return nil, err
	}
	defer k.Close()
	catalog, store, err := d.cfg.Audit(d.P)
	if err != nil {
		return nil, err
	}
	made := d.server.Generator().Counts(d.server.Frames())
	topic, err := countTopic(ctx, k, demoTopic)
	if err != nil {
		return nil, err
	}
	dead, err := countTopic(ctx, k, demoDeadTopic)
	if err != nil {
		return nil, err
	}
	s := &DemoSummary{
		Events: made.Events, Published: int64(len(topic.ids)), Canaries: made.Canaries,
		ContractViolations: int64(len(dead.values)), KafkaRecords: topic.records,
		ElapsedSeconds: d.Elapsed().Seconds(),
	}
	s.addJobs(d.JobsStatus())
	for table, rows := range map[string]*int64{demoBronze: &s.BronzeRows, demoSilver: &s.SilverRows, demoDeadLetter: &s.DeadLetters} {
		h, err := audit.Peek(ctx, catalog, store, table)
		if err != nil {
			return nil, err
		}
		*rows = h.Rows
	}
	silver := map[string]bool{}
	if err := audit.Strings(ctx, catalog, store, demoSilver, "event_id", func(id string) { silver[id] = true }); err != nil {
		return nil, err
	}
	for id := range topic.edits {
		if !silver[id] {
			s.Late++
		}
	}
	s.Duplicates = topic.editRecords - int64(len(topic.edits))
	groups, err := d.sessions(ctx, catalog, store)
	if err != nil {
		return nil, err
	}
	if g := groups.Groups; g != nil {
		s.Sessions, s.OpenSessions = groups.Rows, g.Open
	}
	mismatch := func(format string, args ...any) (*DemoSummary, error) {
		return s, failure.New(failure.Mismatch, format, args...).WithHint("keep the folder and run: weir audit")
	}
	switch {
	case s.Published != made.Published:
		return mismatch("%d distinct events are in Kafka, the stream had %d", s.Published, made.Published)
	case s.ContractViolations != made.Violations:
		return mismatch("%d distinct contract violations are in the dead-letter topic, the stream had %d", s.ContractViolations, made.Violations)
	case s.BronzeRows != s.KafkaRecords:
		return mismatch("bronze has %d rows, Kafka %d records", s.BronzeRows, s.KafkaRecords)
	case int64(len(silver)) != s.SilverRows:
		return mismatch("silver has %d rows of %d events", s.SilverRows, len(silver))
	case s.SilverRows+s.Late != made.EditNew:
		return mismatch("silver has %d rows and %d were late, the stream had %d edits", s.SilverRows, s.Late, made.EditNew)
	case !groups.Exact:
		return mismatch("%s: %s", demoSessions, strings.Join(groups.Reasons, "; "))
	case groups.Groups.UpstreamRows != s.SilverRows:
		return mismatch("the sessions were made of %d rows, silver has %d", groups.Groups.UpstreamRows, s.SilverRows)
	}
	return s, nil
}

// sessions computes the editors' sessions again and compares.
func (d *Demo) sessions(ctx context.Context, catalog audit.Locator, store audit.Store) (*audit.TableReport, error) {
	for _, q := range d.P.Queries {
		if q.To.Table() != demoSessions {
			continue
		}
		t := audit.TableConfig{Name: demoSessions, Upstream: demoSilver}
		t.Groups, t.Columns = AuditGroups(q)
		return audit.Groups(ctx, catalog, store, t, demoTopic)
	}
	return nil, failure.New(failure.Config, "the demo's pipeline has no query that writes %s", demoSessions)
}

// topicCount is what a topic holds.
type topicCount struct {
	records     int64
	ids         map[string]bool // by record key
	values      map[string]bool
	edits       map[string]bool // ids of events that silver keeps
	editRecords int64
}

// countTopic reads a topic whole, as a read_committed reader gets it.
func countTopic(ctx context.Context, k *audit.Kafka, topic string) (*topicCount, error) {
	b, err := k.Bounds(ctx, topic)
	if err != nil {
		return nil, err
	}
	prog, err := event.Compile([]string{"$.type"}, event.Options{})
	if err != nil {
		return nil, err
	}
	scan, out := prog.NewScanner(), make([]event.Value, 1)
	c := &topicCount{ids: map[string]bool{}, values: map[string]bool{}, edits: map[string]bool{}}
	for p, at := range b.Partitions {
		if err := k.Scan(ctx, topic, p, at.LogStart, at.Stable, func(r *audit.Record) error {
			c.records++
			if topic == demoDeadTopic {
				c.values[string(r.Value)] = true
				return nil
			}
			c.ids[string(r.Key)] = true
			if scan.Scan(r.Value, out) != nil {
				return nil //nolint:nilerr // what is no JSON is no edit either
			}
			switch string(out[0].Raw(r.Value)) {
			case `"edit"`, `"new"`:
				c.edits[string(r.Key)] = true
				c.editRecords++
			}
			return nil
		}); err != nil {
			return nil, err
		}
	}
	return c, nil
}
