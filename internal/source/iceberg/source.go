// Package iceberg reads a table that a Kafka query of ours feeds (bronze), as
// the source of the next query (silver).
//
// The position in such a table is the Kafka offset vector that the upstream
// query had reached, as the snapshots record it; the snapshot id is a fast path
// to the files and nothing depends on it. So expiry, compaction and rewrites by
// anybody neither lose nor repeat rows, and what a batch holds is decided by
// offsets alone: the same range gives the same rows for as long as the table
// has them. That it has them is checked against the upstream's own row counts.
package iceberg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/source"
)

// StartingOffsets of a fresh query.
const (
	Earliest = "earliest"
	Latest   = "latest"
)

const (
	// pollMin and pollMax bound the pause between two looks at the table.
	pollMin = 20 * time.Millisecond
	pollMax = 250 * time.Millisecond
	// waitMax bounds one Wait.
	waitMax = 10 * time.Second
	// initialWaitDefault is how long a fresh query waits for its upstream to
	// make and claim the table.
	initialWaitDefault = time.Minute
	// overrunMax times the limit is the size up to which a batch is a whole
	// step of the upstream; beyond it, it is cut by offset.
	overrunMax = 4
)

// Config makes a Source.
type Config struct {
	// Name is the table's full name, as in "bronze.recentchange".
	Name string
	// Load loads the table afresh. lake.ErrNoTable says that there is none.
	Load func(ctx context.Context) (*table.Table, error)
	// Pointer, where set, gives the location of the table's current metadata
	// without reading it, so that waiting is cheap.
	Pointer func(ctx context.Context) (string, error)
	// StartingOffsets is Earliest (also where empty) or Latest.
	StartingOffsets string
	// Rows describes a table of typed columns; nil is one of Kafka rows.
	Rows *Rows
	// Columns that are emitted, of batch.KafkaSchema; all where empty.
	Columns []string
	// Notify, where set, wakes Wait: the engine signals it after a commit of
	// the upstream query in the same process.
	Notify <-chan struct{}
	// Hot, where set, is asked for a batch before the table is read.
	Hot Hot
	// InitialWait bounds how long Initial waits for the upstream; 0 for a
	// minute.
	InitialWait time.Duration
	// Parallel is how many row groups are decoded at once; 0 for the default.
	Parallel int
	Clock    clock.Clock
}

// Hot serves rows that are still in memory after the upstream query committed
// them. Rows either emits all rows of [start, end) in the source's order and
// schema and returns true, or emits nothing and returns false.
type Hot interface {
	Rows(ctx context.Context, start, end batch.Position, emit func(arrow.RecordBatch) error) (bool, error)
}

// Source implements source.Source over one upstream table.
type Source struct {
	cfg    Config
	schema *arrow.Schema
	seen   vectorCache
	// planned is the table's watermark as the last plan found it.
	planned *int64
}

var (
	_ source.Source   = (*Source)(nil)
	_ source.Erasable = (*Source)(nil)
)

// New checks the configuration; nothing is loaded yet.
func New(cfg Config) (*Source, error) {
	if cfg.Name == "" || cfg.Load == nil || cfg.Clock == nil {
		return nil, errors.New("source/iceberg: name, load and clock are required")
	}
	switch cfg.StartingOffsets {
	case "":
		cfg.StartingOffsets = Earliest
	case Earliest, Latest:
	default:
		return nil, failure.New(failure.Config, "startingOffsets of table %s is %q", cfg.Name, cfg.StartingOffsets).
			WithHint("a table source starts at earliest or latest")
	}
	if cfg.InitialWait <= 0 {
		cfg.InitialWait = initialWaitDefault
	}
	s := &Source{cfg: cfg, schema: batch.KafkaSchema}
	if cfg.Rows != nil {
		if err := cfg.Rows.check(cfg.Name); err != nil {
			return nil, err
		}
		s.schema = cfg.Rows.Schema
		return s, nil
	}
	if len(cfg.Columns) > 0 {
		var fields []arrow.Field
		for _, c := range cfg.Columns {
			f, ok := batch.KafkaSchema.FieldsByName(c)
			if !ok {
				return nil, failure.New(failure.Config, "table %s: %q is not a column of Kafka rows", cfg.Name, c)
			}
			fields = append(fields, f[0])
		}
		s.schema = arrow.NewSchema(fields, nil)
	}
	return s, nil
}

// Schema implements source.Source.
func (s *Source) Schema() *arrow.Schema { return s.schema }

// Report implements source.Source; there is nobody to report to.
func (s *Source) Report(context.Context, batch.Position) error { return nil }

// Close implements source.Source.
func (s *Source) Close() error { return nil }

// load loads the table and classifies the failure.
func (s *Source) load(ctx context.Context) (*table.Table, error) {
	t, err := s.cfg.Load(ctx)
	switch {
	case err == nil:
		return t, nil
	case errors.Is(err, lake.ErrNoTable):
		return nil, err
	}
	var classified *failure.Error
	if errors.As(err, &classified) {
		return nil, err
	}
	return nil, failure.Wrap(failure.Unreachable, err, "load table %s", s.cfg.Name)
}

// loadExisting is load for a table that must be there.
func (s *Source) loadExisting(ctx context.Context) (*table.Table, error) {
	t, err := s.load(ctx)
	if errors.Is(err, lake.ErrNoTable) {
		return nil, failure.Wrap(failure.SourceChanged, err, "the source table %s is gone", s.cfg.Name).
			WithHint("restore the table, or start this query over with checkpoint reset")
	}
	return t, err
}

// position is the place in t that stands on the vector.
func (s *Source) position(t *table.Table, snapshotID int64, v *batch.KafkaPosition) batch.Position {
	return batch.Position{Table: &batch.TablePosition{Name: s.cfg.Name, UUID: t.Metadata().TableUUID().String(), SnapshotID: snapshotID, Upstream: v, Rebuilt: rebuilt(t)}}
}

// rebuilt names the rebuild whose rows the table holds, empty where they were
// never exchanged. A property that cannot be read is a name of its own.
func rebuilt(t *table.Table) string {
	r, err := marker.RebuiltOf(t.Properties())
	switch {
	case err != nil:
		return marker.Hash([]byte(t.Properties()[marker.RebuiltKey]))
	case r == nil:
		return ""
	}
	return r.ID
}

// Initial implements source.Source. It waits for the upstream query to make
// and claim the table, since both may start at the same time.
func (s *Source) Initial(ctx context.Context) (batch.Position, error) {
	deadline := s.cfg.Clock.Now().Add(s.cfg.InitialWait)
	for pause := pollMin; ; pause = min(2*pause, pollMax) {
		pos, waiting, err := s.tryInitial(ctx)
		if err != nil || waiting == "" {
			return pos, err
		}
		if !s.cfg.Clock.Now().Before(deadline) {
			return batch.Position{}, failure.New(failure.Unreachable, "%s", waiting).
				WithHint("start the query that writes %s first, or check the table's name", s.cfg.Name)
		}
		if err := s.cfg.Clock.Sleep(ctx, pause); err != nil {
			return batch.Position{}, err
		}
	}
}

func (s *Source) tryInitial(ctx context.Context) (_ batch.Position, waiting string, _ error) {
	t, err := s.load(ctx)
	if errors.Is(err, lake.ErrNoTable) {
		return batch.Position{}, fmt.Sprintf("the source table %s does not exist", s.cfg.Name), nil
	}
	if err != nil {
		return batch.Position{}, "", err
	}
	head, err := s.head(t)
	if err != nil {
		return batch.Position{}, "", err
	}
	if head.vector == nil {
		return batch.Position{}, fmt.Sprintf("no query of Weir feeds the source table %s yet", s.cfg.Name), nil
	}
	if s.cfg.StartingOffsets == Latest {
		return s.position(t, head.snapshotID, head.vector), "", nil
	}
	id, v, err := s.beginning(t, head.vector)
	if err != nil {
		return batch.Position{}, "", err
	}
	return s.position(t, id, v), "", nil
}

// Verify implements source.Source.
func (s *Source) Verify(ctx context.Context, pos batch.Position) ([]source.Violation, error) {
	t, err := s.load(ctx)
	if errors.Is(err, lake.ErrNoTable) {
		return []source.Violation{{Partition: -1, Text: fmt.Sprintf("the source table %s is gone", s.cfg.Name),
			Hint: "restore the table, or start this query over with checkpoint reset"}}, nil
	}
	if err != nil {
		return nil, err
	}
	if v := s.identity(t, pos); v != nil {
		return []source.Violation{*v}, nil
	}
	head, err := s.head(t)
	if failure.Is(err, failure.Checkpoint) {
		return []source.Violation{{Partition: -1, Lost: true, Text: err.Error()}}, nil
	}
	if err != nil {
		return nil, err
	}
	return s.behind(head.vector, pos), nil
}

// identity says how t is another table than the one of the position.
func (s *Source) identity(t *table.Table, pos batch.Position) *source.Violation {
	if pos.Table == nil || pos.Table.Upstream == nil {
		return &source.Violation{Partition: -1, Text: fmt.Sprintf("the position is not one in table %s", s.cfg.Name),
			Hint: "the query read from another source before; give it a new name or reset its checkpoint"}
	}
	if id := t.Metadata().TableUUID().String(); id != pos.Table.UUID {
		return &source.Violation{Partition: -1, Text: fmt.Sprintf("table %s has the UUID %s, the position was reached in %s", s.cfg.Name, id, pos.Table.UUID),
			Hint: "the table was dropped and made again; start this query over with checkpoint reset"}
	}
	if now := rebuilt(t); now != pos.Table.Rebuilt {
		return &source.Violation{Partition: -1, Text: fmt.Sprintf("the rows of table %s were exchanged by %s since this query read them: what it made is of the old ones", s.cfg.Name, now),
			Hint: "make it anew from the new rows: weir rebuild FILE QUERY"}
	}
	return nil
}

// behind lists where the vector v of the table's head contradicts a position
// that was reached in it.
func (s *Source) behind(v *batch.KafkaPosition, pos batch.Position) []source.Violation {
	up := pos.Table.Upstream
	if v == nil {
		return []source.Violation{{Partition: -1, Lost: true, Text: fmt.Sprintf("table %s records no offsets any more", s.cfg.Name),
			Hint: "it was rolled back to a state before its query was first started; roll it forward"}}
	}
	if up.ClusterID != "" && v.ClusterID != "" && up.ClusterID != v.ClusterID {
		return []source.Violation{{Partition: -1, Text: fmt.Sprintf("table %s is fed from the Kafka cluster %s, the position was reached with %s", s.cfg.Name, v.ClusterID, up.ClusterID)}}
	}
	var out []source.Violation
	up.Each(func(topic, id string, part int32, p batch.PartitionPosition) {
		if p.HandedTo != "" {
			return
		}
		if vt, ok := v.Topics[topic]; ok && id != "" && vt.ID != "" && vt.ID != id {
			out = append(out, source.Violation{Topic: topic, Partition: part, From: p.NextOffset, To: p.NextOffset,
				Text: fmt.Sprintf("topic %s in table %s has the id %s, the position was reached with %s", topic, s.cfg.Name, vt.ID, id),
				Hint: "the topic was recreated upstream; its rows are another topic's"})
			return
		}
		vp, ok := v.Get(topic, part)
		if ok && vp.NextOffset >= p.NextOffset || !ok && p.NextOffset == 0 {
			return
		}
		out = append(out, source.Violation{Topic: topic, Partition: part, From: vp.NextOffset, To: p.NextOffset, Lost: true,
			Text: fmt.Sprintf("table %s has reached offset %d of %s-%d, but this query has already read up to %d", s.cfg.Name, vp.NextOffset, topic, part, p.NextOffset),
			Hint: "the table was rolled back, or its query started over. Where its query adopted that on purpose, let it read again what is missing first (weir run FILE --once --query NAME), " +
				"then start this one: it goes on from its place, with no row twice. Otherwise roll the table forward, or reset this query's checkpoint"})
	})
	return out
}

// violated is the first violation as an error, nil where there is none.
func violated(vs ...source.Violation) error {
	if len(vs) == 0 {
		return nil
	}
	return failure.New(failure.SourceChanged, "%s", vs[0].Text).WithHint("%s", vs[0].Hint)
}

// check loads the table and its head and refuses one that contradicts pos.
func (s *Source) check(ctx context.Context, pos batch.Position) (*table.Table, *boundary, error) {
	t, err := s.loadExisting(ctx)
	if err != nil {
		return nil, nil, err
	}
	if v := s.identity(t, pos); v != nil {
		return nil, nil, violated(*v)
	}
	head, err := s.head(t)
	if err != nil {
		return nil, nil, err
	}
	if err := violated(s.behind(head.vector, pos)...); err != nil {
		return nil, nil, err
	}
	return t, head, nil
}

// Wait implements source.Source.
func (s *Source) Wait(ctx context.Context, pos batch.Position) error {
	until := s.cfg.Clock.Now().Add(waitMax)
	location := ""
	for pause := pollMin; ; pause = min(2*pause, pollMax) {
		if s.news(ctx, pos, &location) || !s.cfg.Clock.Now().Before(until) {
			return ctx.Err()
		}
		if err := s.pause(ctx, pause); err != nil {
			return err
		}
	}
}

// news reports whether the table has something after pos. A failure is no
// news: whoever reads next reports it.
func (s *Source) news(ctx context.Context, pos batch.Position, location *string) bool {
	if s.cfg.Pointer != nil {
		now, err := s.cfg.Pointer(ctx)
		if err != nil || now == *location {
			return false
		}
		*location = now
	}
	t, err := s.load(ctx)
	if err != nil {
		return false
	}
	head, err := s.head(t)
	if err != nil || head.vector == nil {
		return false
	}
	return pos.Offsets(s.position(t, 0, head.vector)) > 0 || s.newer(t, head.vector)
}

// pause sleeps or is woken by a notification.
func (s *Source) pause(ctx context.Context, d time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	slept := make(chan error, 1)
	go func() { slept <- s.cfg.Clock.Sleep(ctx, d) }()
	select {
	case <-s.cfg.Notify: // nil without a notification: blocks for ever
		return nil
	case err := <-slept:
		return err
	}
}
