package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
)

// attemptsMax bounds how often an audit begins again because a table was
// rewritten under it.
const attemptsMax = 5

// Config says what to audit.
type Config struct {
	// Catalog finds the tables. Store opens their files; nil reads local ones.
	Catalog Locator
	Store   Store
	// Brokers and KafkaOptions reach the cluster of all the tables' topics.
	Brokers      []string
	KafkaOptions []kgo.Opt
	// Tables in any order; one that is another's upstream is read only once.
	Tables []TableConfig
	// ProgressTable holds a row per batch ("ops.stream_progress"); empty
	// leaves only what the markers say.
	ProgressTable string
	// RequireStill makes a table that moves on during every attempt
	// inconclusive, also when the pinned snapshot is an ancestor of the newest.
	RequireStill bool
	// Clock defaults to the system's.
	Clock clock.Clock
}

// TableConfig is one table. With Upstream empty it is fed by Kafka, one row
// per record; else by the upstream table, at most one row per event id.
type TableConfig struct {
	Name  string
	Topic string
	// Topics and TopicPattern stand in place of Topic where a table holds several;
	// each gets a report of its own. The pattern has to match a whole name.
	Topics       []string
	TopicPattern string
	// Parsed is set for a table that a query with parse fills from Kafka itself: at
	// most one row per record. It is judged by the counts of its batches, and by
	// places where it has the columns.
	Parsed bool
	// Delta is the folder of a Delta table; empty finds an Iceberg table in the
	// catalog.
	Delta   string
	Columns Columns
	// Upstream is the table that this one reads; it must be in Tables too.
	Upstream string
	// Groups is set for a table of sessions or windows over Upstream, which may
	// itself read another table.
	Groups *GroupsConfig
	// DeadLetterTable is counted when it exists.
	DeadLetterTable string
	// DeadLetterDelta is the folder of a dead-letter table that is a Delta table.
	DeadLetterDelta string
	// NoEventID is set for a parsed table whose rows have no column that must be
	// there once: its ids are not judged.
	NoEventID bool
	// StartsLater is set where the query did not begin at the earliest offset,
	// so that rows of the upstream below its start are rightly absent.
	StartsLater bool
	// End is an explicit end per partition; nil takes the table's own.
	End map[int32]int64
	// several is set where the topic is one of several: then a topic that the
	// table's position does not name is one that no batch has read yet.
	several bool
}

// key names a report: a table, and the topic where it has several.
func (c TableConfig) key() string { return c.Name + "\x00" + c.Topic }

// Columns are the names of the columns that place a row in Kafka. Empty names
// take Weir's own; a table without the topic column holds one topic.
type Columns struct {
	Topic, Partition, Offset, EventID string
}

func (c TableConfig) columns() Columns {
	out := c.Columns
	def := Columns{Topic: "topic", Partition: "partition", Offset: "offset", EventID: "event_id"}
	if c.Upstream != "" {
		def.Partition, def.Offset = "kafka_partition", "kafka_offset"
	}
	out.Topic = cmp.Or(out.Topic, def.Topic)
	out.Partition = cmp.Or(out.Partition, def.Partition)
	out.Offset = cmp.Or(out.Offset, def.Offset)
	if !c.NoEventID {
		out.EventID = cmp.Or(out.EventID, def.EventID)
	}
	return out
}

// Validate names every conflict at once.
func (c Config) Validate() error {
	var errs []error
	if c.Catalog == nil && !c.onlyDelta() {
		errs = append(errs, errors.New("no catalog"))
	}
	if len(c.Tables) == 0 {
		errs = append(errs, errors.New("no tables"))
	}
	names, keys := map[string]TableConfig{}, map[string]bool{}
	for _, t := range c.Tables {
		if keys[t.key()] {
			errs = append(errs, fmt.Errorf("table %s is named twice", t.Name))
		}
		names[t.Name], keys[t.key()] = t, true
		if _, err := regexp.Compile(t.TopicPattern); err != nil {
			errs = append(errs, fmt.Errorf("table %s: topic pattern: %w", t.Name, err))
		}
	}
	for _, t := range c.Tables {
		up, ok := names[t.Upstream]
		switch {
		case t.Upstream == "" && t.Topic == "" && len(t.Topics) == 0 && t.TopicPattern == "":
			errs = append(errs, fmt.Errorf("table %s has neither a topic nor an upstream table", t.Name))
		case t.Upstream != "" && !ok:
			errs = append(errs, fmt.Errorf("table %s reads %s, which is not among the tables", t.Name, t.Upstream))
		case t.Upstream != "" && (up.Parsed || (up.Upstream != "" && (t.Groups == nil || up.Groups != nil))):
			errs = append(errs, fmt.Errorf("table %s reads %s, which does not read Kafka itself", t.Name, t.Upstream))
		}
	}
	if len(errs) > 0 {
		return failure.Wrap(failure.Config, errors.Join(errs...), "audit")
	}
	return nil
}

func (c Config) onlyDelta() bool {
	return len(c.Tables) > 0 && !slices.ContainsFunc(c.Tables, func(t TableConfig) bool { return t.Delta == "" })
}

// locate asks for the newest metadata of a table: the catalog, or the log of a
// Delta table.
func (r *run) locate(ctx context.Context, table string) (string, error) {
	for _, t := range r.cfg.Tables {
		switch {
		case t.Name == table && t.Delta != "":
			return DeltaCatalog{Store: r.cfg.Store}.MetadataLocation(ctx, t.Delta)
		case t.DeadLetterTable == table && t.DeadLetterDelta != "":
			return DeltaCatalog{Store: r.cfg.Store}.MetadataLocation(ctx, t.DeadLetterDelta)
		}
	}
	if r.cfg.Catalog == nil {
		return "", &NoTableError{Table: table, Catalog: "no catalog"}
	}
	return r.cfg.Catalog.MetadataLocation(ctx, table)
}

// run is the state of one attempt.
type run struct {
	cfg   Config
	kafka *Kafka
	// pinned are the metadata files of this attempt.
	pinned map[string]*metadata
	// offsets and ends are what was read of each Kafka-fed table, by its key.
	offsets map[string]*tableOffsets
	ends    map[string]map[int32]int64
}

// Run audits the tables. The error is for what made an audit impossible; a
// table that differs, or cannot be judged, is in the report.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Store == nil {
		cfg.Store = LocalStore{}
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.System{}
	}
	k, err := NewKafka(cfg.Brokers, cfg.Clock, cfg.KafkaOptions...)
	if err != nil {
		return nil, err
	}
	defer k.Close()
	if cfg.Tables, err = (&run{cfg: cfg, kafka: k, pinned: map[string]*metadata{}}).expand(ctx); err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		r := &run{cfg: cfg, kafka: k, pinned: map[string]*metadata{}, offsets: map[string]*tableOffsets{}, ends: map[string]map[int32]int64{}}
		report, err := r.once(ctx)
		if err != nil {
			return nil, err
		}
		settled, err := r.settled(ctx, report, attempt == attemptsMax)
		if err != nil {
			return nil, err
		}
		if settled {
			for _, t := range report.Tables {
				t.finish()
			}
			return report, nil
		}
	}
}

// once audits every table at one set of pinned metadata files.
func (r *run) once(ctx context.Context) (*Report, error) {
	// Downstream tables are pinned first: whatever a silver row was made of was
	// in bronze before, so a later look at bronze must show it.
	order := slices.Clone(r.cfg.Tables)
	slices.SortStableFunc(order, func(a, b TableConfig) int { return cmp.Compare(rank(b), rank(a)) })
	for _, t := range order {
		if err := r.pin(ctx, t.Name); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(order, func(a, b TableConfig) int { return cmp.Compare(rank(a), rank(b)) })
	byName := map[string]*TableReport{}
	for _, t := range order {
		rep := &TableReport{Table: t.Name, Topic: t.Topic, Missing: []Range{}, Extra: []Range{}, FilesLiveTwice: []string{}, FilesMissing: []string{}}
		byName[t.key()] = rep
		var err error
		switch {
		case t.Groups != nil:
			err = r.auditGroups(ctx, t, rep)
		case t.Upstream != "":
			err = r.auditSilver(ctx, t, rep)
		case t.Parsed:
			err = r.auditParsed(ctx, t, rep)
		default:
			err = r.auditKafkaTable(ctx, t, rep)
		}
		var del *deleteFileError
		if errors.As(err, &del) {
			rep.inconclusive("%v", del)
			err = nil
		}
		if err != nil {
			return nil, err
		}
	}
	report := &Report{}
	for _, t := range r.cfg.Tables {
		report.Tables = append(report.Tables, byName[t.key()])
	}
	return report, nil
}

func rank(t TableConfig) int {
	switch {
	case t.Upstream == "":
		return 0
	case t.Groups == nil:
		return 1
	}
	return 2
}

// pin reads the newest metadata of a table; one that is not there stays nil.
func (r *run) pin(ctx context.Context, table string) error {
	for try := 1; ; try++ {
		location, err := r.locate(ctx, table)
		var none *NoTableError
		if errors.As(err, &none) {
			r.pinned[table] = nil
			return nil
		}
		if err != nil {
			return err
		}
		m, err := readMetadata(ctx, r.cfg.Store, location)
		if errors.Is(err, os.ErrNotExist) && try < attemptsMax {
			continue // cleaned up between the two questions: ask again
		}
		if err != nil {
			return failure.Wrap(failure.Runtime, err, "table %s", table)
		}
		r.pinned[table] = m
		return nil
	}
}

// settled reports whether the pinned metadata still speaks for the tables.
func (r *run) settled(ctx context.Context, report *Report, last bool) (bool, error) {
	all := true
	for _, t := range report.Tables {
		m := r.pinned[t.Table]
		if m == nil {
			continue
		}
		now, err := r.locate(ctx, t.Table)
		if err != nil {
			return false, err
		}
		if now == m.path {
			continue
		}
		newer, err := readMetadata(ctx, r.cfg.Store, now)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return false, err
		}
		cur := m.current()
		descends := newer != nil && (cur == nil || newer.descends(cur.ID)) && len(t.FilesMissing) == 0
		switch {
		case descends && !r.cfg.RequireStill:
			t.note("the table moved on during the audit; judged at the pinned snapshot, an ancestor of the newest")
		case last:
			t.inconclusive("the table was rewritten during every one of %d attempts", attemptsMax)
		default:
			all = false
		}
	}
	return all, nil
}

func (t *TableReport) note(format string, args ...any) {
	t.Notes = append(t.Notes, fmt.Sprintf(format, args...))
}

func (t *TableReport) mismatch(format string, args ...any) {
	t.Reasons = append(t.Reasons, fmt.Sprintf(format, args...))
	t.Outcome = Mismatch
}

func (t *TableReport) inconclusive(format string, args ...any) {
	t.Reasons = append(t.Reasons, fmt.Sprintf(format, args...))
	if t.Outcome != Mismatch {
		t.Outcome = Inconclusive
	}
}

// finish draws the conclusion.
func (t *TableReport) finish() {
	if t.Outcome == "" {
		t.Outcome = Exact
	}
	t.Exact = t.Outcome == Exact
}
