package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/erase"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/scan"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/sink/rowjson"
)

// lineage are the tables that hold what an erasure is about: the table of Kafka's
// records that feeds the named one, and everything that is made of that, in the
// order in which rows flow.
type lineage struct {
	// query writes the named table; root is the table of Kafka's records, empty
	// where the query reads Kafka itself, or where rows have lost their place.
	query pipeline.Query
	root  string
	nodes []lineNode
	// untouched are those that cannot be erased from.
	untouched []UntouchedTable
}

// lineNode is one table of a query.
type lineNode struct {
	table string
	query pipeline.Query
	dead  bool // its dead-letter table
}

// tables are their names, in order.
func (l *lineage) tables() (out []string) {
	for _, n := range l.nodes {
		out = append(out, n.table)
	}
	return out
}

// lineage follows the named table up to the records, and down again.
func (e *eraser) lineage(name string) (*lineage, error) {
	l := &lineage{}
	for _, q := range e.a.P.Queries {
		switch {
		case q.DeadLetter != nil && q.DeadLetter.Table == name:
			return nil, failure.New(failure.Config, "%s is a dead-letter table", name).
				WithHint("name the table of its query, %s: dead letters of the same records go as well, and --contains finds records that do not parse", q.To.Table())
		case q.To.Table() != name:
		case q.To.Iceberg == nil:
			return nil, failure.New(failure.Config, "%s is not an Iceberg table of the catalog; rows are only erased from those", name)
		case l.query.Name != "":
			return nil, failure.New(failure.Config, "%s is written by the queries %s and %s; rows are only erased from tables of one query", name, l.query.Name, q.Name)
		default:
			l.query = q
		}
	}
	if l.query.Name == "" {
		return nil, failure.New(failure.Config, "no query of %s writes %q; its tables are %v", e.a.P.File, name, mainTables(e.a.P))
	}
	if up := l.query.From.Table; up != nil && !l.query.Typed() {
		i := slices.IndexFunc(e.a.P.Queries, func(q pipeline.Query) bool { return q.To.Iceberg != nil && q.To.Iceberg.Table == up.Name })
		if i < 0 {
			return nil, failure.New(failure.Config, "%s is made of %s, which no query of the pipeline writes as an Iceberg table: what was erased would come back from there", name, up.Name)
		}
		l.root = up.Name
		l.down(e.a.P, e.a.P.Queries[i])
		return l, nil
	}
	if l.query.Parse == nil && !l.query.Typed() {
		l.root = name
	}
	l.down(e.a.P, l.query)
	return l, nil
}

// down adds a query's tables and those that are made of them.
func (l *lineage) down(p *pipeline.Pipeline, q pipeline.Query) {
	if q.To.Iceberg == nil {
		l.leave(q.To.Table(), "it is not an Iceberg table of the catalog: erase there by its own means")
		return
	}
	if d := q.DeadLetter; d != nil && d.Format == pipeline.FormatDelta {
		l.leave(d.Table, "it is a Delta table: erase there by its own means")
	} else if d != nil {
		l.nodes = append(l.nodes, lineNode{d.Table, q, true})
	}
	l.nodes = append(l.nodes, lineNode{q.To.Iceberg.Table, q, false})
	for _, next := range p.Queries {
		if next.From.Table != nil && next.From.Table.Name == q.To.Iceberg.Table {
			l.down(p, next)
		}
	}
}

func (l *lineage) leave(name, why string) {
	l.untouched = append(l.untouched, UntouchedTable{name, why})
}

// plan finds the places of what is asked for.
func (e *eraser) plan(ctx context.Context, r EraseRequest, l *lineage) (*erasePlan, error) {
	p := &erasePlan{Format: erasePlanFormat, ID: r.ID, Table: r.Table, Where: r.Where, Condition: withoutValues(r), RequestedBy: r.By, Reason: r.Reason,
		RequestedAt: e.a.opts.Clock.Now().UTC(), Untouched: slices.Clone(l.untouched)}
	if p.RequestedBy == "" {
		p.RequestedBy = whoAsks()
	}
	found := map[batch.TopicPartition][]int64{}
	if l.root != "" {
		if err := e.records(ctx, r, l, found); err != nil {
			return nil, err
		}
	} else if r.Contains != "" {
		return nil, failure.New(failure.Config, "--contains looks into Kafka's records, which no table of the pipeline keeps for %s", r.Table)
	}
	if err := e.rows(ctx, r, l, found); err != nil {
		return nil, err
	}
	places := marker.PlacesOf(found)
	p.Places = places.Declare(r.ID)
	topics := map[string]bool{}
	for tp := range places {
		topics[tp.Topic] = true
	}
	p.Topics = slices.Sorted(maps.Keys(topics))
	for _, n := range l.nodes {
		t, why := e.target(n, r, l, p.Topics)
		if why != "" {
			p.Untouched = append(p.Untouched, UntouchedTable{n.table, why})
			continue
		}
		p.Targets = append(p.Targets, t)
	}
	if models := e.a.P.Gold; models != nil {
		p.Untouched = append(p.Untouched, UntouchedTable{"gold", "its tables are made anew by: weir gold run --full-refresh"})
	}
	return p, nil
}

// target says how a table is erased from, or why it is not.
func (e *eraser) target(n lineNode, r EraseRequest, l *lineage, topics []string) (eraseTarget, string) {
	t := eraseTarget{Table: n.table, Query: n.query.Name}
	if n.dead {
		t.Columns = erase.Columns{Topic: "kafka_topic", Partition: "kafka_partition", Offset: "kafka_offset"}
		return t, ""
	}
	var placed bool
	if t.Columns.Topic, t.Columns.Partition, t.Columns.Offset, placed = n.query.RecordKey(); placed {
		switch {
		case t.Columns.Topic != "":
		case len(topics) > 1:
			return t, "its rows do not say which of several topics they are of"
		case len(topics) == 1:
			t.Columns.Fixed = topics[0]
		}
		return t, ""
	}
	t.Columns = erase.Columns{}
	if t.ByCondition = r.Where != ""; !t.ByCondition {
		return t, "its rows have no place in Kafka; weir rebuild makes them anew"
	}
	if _, err := conditionOn(n.query, r.Where, t.Columns, e.a.opts.Clock); err != nil {
		return t, fmt.Sprintf("its rows have no place in Kafka, and the condition is not about its columns (%v); weir rebuild makes them anew", err)
	}
	return t, ""
}

// records finds the places among Kafka's records: what the query would parse, so
// duplicates, late and filtered ones as well.
func (e *eraser) records(ctx context.Context, r EraseRequest, l *lineage, found map[batch.TopicPartition][]int64) error {
	ident, err := lake.ParseName(l.root)
	if err != nil {
		return err
	}
	t, err := e.a.Catalog.LoadTablePatiently(ctx, ident, e.a.opts.Clock)
	if errors.Is(err, lake.ErrNoTable) || err == nil && t.CurrentSnapshot() == nil {
		return nil
	}
	if err != nil {
		return failure.Wrap(failure.Unreachable, err, "read table %s", l.root)
	}
	markers, err := marker.FromProperties(t.Properties())
	if err != nil {
		return failure.Wrap(failure.Checkpoint, err, "table %s", l.root)
	}
	end := &batch.KafkaPosition{Topics: map[string]batch.TopicPosition{}}
	for _, m := range markers {
		if m.Kind == marker.KindStream {
			if err := end.Merge(m.Position.Vector()); err != nil {
				return failure.Wrap(failure.Checkpoint, err, "table %s", l.root)
			}
		}
	}
	for _, w := range windows(end, nil) {
		match, err := recordMatch(l.query, r, e.a.opts.Clock)
		if err != nil {
			return err
		}
		_, err = scan.Range(ctx, scan.Request{Table: t, SnapshotID: t.CurrentSnapshot().SnapshotID, Want: []batch.Range{w}}, func(rec arrow.RecordBatch) error {
			return match.take(rec, found)
		})
		if err == nil {
			err = match.finish(found)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// rows finds the places of the named table's own rows: the records of some may be
// gone above.
func (e *eraser) rows(ctx context.Context, r EraseRequest, l *lineage, found map[batch.TopicPartition][]int64) error {
	topic, partition, offset, placed := l.query.RecordKey()
	if r.Where == "" || !placed || l.root == r.Table {
		return nil
	}
	columns := erase.Columns{Topic: topic, Partition: partition, Offset: offset}
	if topic == "" {
		one, err := e.topicOf(ctx, r.Table, l.query.Name)
		if err != nil {
			return err
		}
		columns.Fixed = one
	}
	rule, err := conditionOn(l.query, r.Where, columns, e.a.opts.Clock)
	if err != nil {
		return err
	}
	ident, err := lake.ParseName(r.Table)
	if err != nil {
		return err
	}
	_, own, err := erase.Count(ctx, e.a.Catalog, ident, rule)
	if errors.Is(err, lake.ErrNoTable) {
		return nil
	}
	for tp, offsets := range own {
		found[tp] = append(found[tp], offsets...)
	}
	return err
}

// topicOf is the one topic that a table's rows are of.
func (e *eraser) topicOf(ctx context.Context, name, query string) (string, error) {
	t, err := e.a.loadNamed(ctx, name)
	if err != nil || t == nil {
		return "", err
	}
	markers, err := marker.FromProperties(t.Properties())
	if err != nil {
		return "", failure.Wrap(failure.Checkpoint, err, "table %s", name)
	}
	m := markers[query]
	if m == nil || m.Position.Vector() == nil {
		return "", failure.New(failure.Checkpoint, "table %s holds no marker of query %s: which topic its rows are of is not known", name, query)
	}
	topics := slices.Sorted(maps.Keys(m.Position.Vector().Topics))
	if len(topics) > 1 {
		return "", failure.New(failure.Config, "table %s holds rows of the topics %v and has no column that tells them apart", name, topics).
			WithHint("declare a column with source: topic in query %s", query)
	}
	return strings.Join(topics, ""), nil
}

// The columns that a match adds to say which record it was.
const (
	matchTopic     = "weir_topic"
	matchPartition = "weir_partition"
	matchOffset    = "weir_offset"
)

// matching tells which Kafka records a request is about.
type matching struct {
	t        operator.Transform // nil where there is no condition
	contains []byte
}

// recordMatch puts the records through the columns that the condition names, and
// through nothing else of the query.
func recordMatch(q pipeline.Query, r EraseRequest, clk clock.Clock) (*matching, error) {
	m := &matching{contains: []byte(r.Contains)}
	if r.Where == "" {
		return m, nil
	}
	columns := q.Input()
	if q.Parse == nil {
		columns = []pipeline.Column{
			{Name: "topic", Source: pipeline.SourceTopic, Type: pipeline.TypeString}, {Name: "partition", Source: pipeline.SourcePartition, Type: pipeline.TypeInt},
			{Name: "offset", Source: pipeline.SourceOffset, Type: pipeline.TypeLong}, {Name: "timestamp", Source: pipeline.SourceTimestamp, Type: pipeline.TypeTimestamptz},
			{Name: "key", Source: pipeline.SourceKey, Type: pipeline.TypeString}, {Name: "value", Source: pipeline.SourceValue, Type: pipeline.TypeString},
		}
	}
	named, err := namedIn(r.Where, columns)
	if err != nil {
		return nil, err
	}
	q.Parse = &pipeline.Parse{Format: "json", Columns: append(named,
		pipeline.Column{Name: matchTopic, Source: pipeline.SourceTopic, Type: pipeline.TypeString},
		pipeline.Column{Name: matchPartition, Source: pipeline.SourcePartition, Type: pipeline.TypeInt},
		pipeline.Column{Name: matchOffset, Source: pipeline.SourceOffset, Type: pipeline.TypeLong})}
	q.Filter, q.Watermark, q.DropDuplicatesWithinWatermark, q.Aggregate, q.DeadLetter = r.Where, nil, nil, nil, nil
	if m.t, err = Transform(q); err != nil {
		return nil, err
	}
	return m, m.t.Begin(operator.Env{BatchTimeMicros: clk.Now().UnixMicro(), Watermark: marker.Watermark{Micros: marker.MinTime}})
}

// namedIn are the columns that a condition names, none of them required: a record
// that lacks others is about somebody all the same.
func namedIn(where string, columns []pipeline.Column) (out []pipeline.Column, err error) {
	names, err := operator.FilterNames(where)
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "--where")
	}
	for _, c := range columns {
		if slices.Contains(names, c.Name) {
			c.Required = false
			out = append(out, c)
		}
	}
	if len(out) == 0 {
		return nil, failure.New(failure.Config, "--where names no column of the table: %s", where)
	}
	return out, nil
}

// take takes a record of Kafka rows over.
func (m *matching) take(rec arrow.RecordBatch, found map[batch.TopicPartition][]int64) error {
	if len(m.contains) > 0 {
		topics, ok1 := rec.Column(batch.ColTopic).(*array.String)
		partitions, ok2 := rec.Column(batch.ColPartition).(*array.Int32)
		offsets, ok3 := rec.Column(batch.ColOffset).(*array.Int64)
		keys, ok4 := rec.Column(batch.ColKey).(*array.Binary)
		values, ok5 := rec.Column(batch.ColValue).(*array.Binary)
		if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 {
			rec.Release()
			return failure.New(failure.SchemaConflict, "these are no Kafka rows: %s", rec.Schema())
		}
		for i := range int(rec.NumRows()) {
			if bytes.Contains(values.Value(i), m.contains) || bytes.Contains(keys.Value(i), m.contains) {
				note(found, topics.Value(i), partitions.Value(i), offsets.Value(i))
			}
		}
	}
	if m.t == nil {
		rec.Release()
		return nil
	}
	return m.t.Process(rec, m.emit(found))
}

func (m *matching) finish(found map[batch.TopicPartition][]int64) error {
	if m.t == nil {
		return nil
	}
	_, err := m.t.Finish(m.emit(found))
	return err
}

func (m *matching) emit(found map[batch.TopicPartition][]int64) operator.Emit {
	return func(_ string, rec arrow.RecordBatch) error {
		defer rec.Release()
		column := func(name string) arrow.Array { return rec.Column(rec.Schema().FieldIndices(name)[0]) }
		topics, partitions, offsets := column(matchTopic).(*array.String), column(matchPartition).(*array.Int32), column(matchOffset).(*array.Int64)
		for i := range int(rec.NumRows()) {
			note(found, topics.Value(i), partitions.Value(i), offsets.Value(i))
		}
		return nil
	}
}

func note(found map[batch.TopicPartition][]int64, topic string, partition int32, offset int64) {
	tp := batch.TopicPartition{Topic: strings.Clone(topic), Partition: partition}
	found[tp] = append(found[tp], offset)
}

// conditionOn is a rule by a condition on the rows of a query's table: they go
// through the language of filters as JSON, which is one implementation of it for
// every type. Of aggregated rows only the keys count: another column of the same
// name says something else there.
func conditionOn(q pipeline.Query, where string, at erase.Columns, clk clock.Clock) (erase.Rule, error) {
	columns := slices.Clone(q.Columns())
	for _, a := range q.Aggregate {
		columns = slices.DeleteFunc(columns, func(c pipeline.Column) bool { return !slices.Contains(a.Keys, c.Name) })
	}
	named, err := namedIn(where, columns)
	if err != nil {
		return erase.Rule{}, err
	}
	cfg := operator.Config{Filter: where}
	rule := erase.Rule{Columns: at}
	for _, c := range named {
		if c.Type == pipeline.TypeBinary {
			return erase.Rule{}, failure.New(failure.Config, "--where: column %q of the table is binary", c.Name)
		}
		if c.Type == pipeline.TypeJSON {
			c.Type = pipeline.TypeString
		}
		cfg.Columns = append(cfg.Columns, operator.Column{Name: c.Name, Path: "$['" + c.Name + "']", Type: c.Type})
		rule.Needs = append(rule.Needs, c.Name)
	}
	cfg.Columns = append(cfg.Columns, operator.Column{Name: matchOffset, Source: pipeline.SourceOffset, Type: pipeline.TypeLong})
	t, err := operator.New(cfg)
	if err != nil {
		return erase.Rule{}, err
	}
	rule.Match = func(rec arrow.RecordBatch) ([]bool, error) { return matchRows(t, rec, rule.Needs, clk) }
	return rule, nil
}

// matchRows says which rows of a record the transform lets through.
func matchRows(t operator.Transform, rec arrow.RecordBatch, needs []string, clk clock.Clock) ([]bool, error) {
	cols, fields := make([]arrow.Array, len(needs)), make([]arrow.Field, len(needs))
	for i, n := range needs {
		at := rec.Schema().FieldIndices(n)
		if len(at) != 1 {
			return nil, failure.New(failure.SchemaConflict, "the table has no column %q", n)
		}
		cols[i], fields[i] = rec.Column(at[0]), rec.Schema().Field(at[0])
	}
	part := array.NewRecordBatch(arrow.NewSchema(fields, nil), cols, rec.NumRows())
	defer part.Release()
	enc, err := rowjson.New(part.Schema(), nil, nil)
	if err != nil {
		return nil, err
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, batch.KafkaSchema)
	defer b.Release()
	var buf []byte
	for i := range int(rec.NumRows()) {
		buf = enc.AppendRow(buf[:0], part, i)
		for f := range batch.KafkaSchema.NumFields() {
			switch f {
			case batch.ColTopic:
				b.Field(f).(*array.StringBuilder).Append("")
			case batch.ColPartition, batch.ColTimestampType:
				b.Field(f).(*array.Int32Builder).Append(0)
			case batch.ColOffset:
				b.Field(f).(*array.Int64Builder).Append(int64(i))
			case batch.ColTimestamp, batch.ColIngestedAt:
				b.Field(f).(*array.TimestampBuilder).Append(0)
			case batch.ColValue:
				b.Field(f).(*array.BinaryBuilder).Append(buf)
			default:
				b.Field(f).AppendNull()
			}
		}
	}
	out := make([]bool, rec.NumRows())
	emit := func(_ string, rec arrow.RecordBatch) error {
		defer rec.Release()
		for _, i := range rec.Column(rec.Schema().FieldIndices(matchOffset)[0]).(*array.Int64).Int64Values() {
			out[i] = true
		}
		return nil
	}
	if err := t.Begin(operator.Env{BatchTimeMicros: clk.Now().UnixMicro(), Watermark: marker.Watermark{Micros: marker.MinTime}}); err != nil {
		return nil, err
	}
	if err := t.Process(b.NewRecordBatch(), emit); err != nil {
		return nil, err
	}
	_, err = t.Finish(emit)
	return out, err
}
