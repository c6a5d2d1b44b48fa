package audit

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/weirlake/weir/internal/failure"
)

// expand gives each topic of a table an entry of its own. A pattern means the
// topics of the cluster that it matches and those that the table's own position
// names: a topic that was deleted must not vanish from the report.
func (r *run) expand(ctx context.Context) ([]TableConfig, error) {
	var out []TableConfig
	for _, t := range r.cfg.Tables {
		topics := slices.Clone(t.Topics)
		if t.TopicPattern != "" {
			found, err := r.matching(ctx, t)
			if err != nil {
				return nil, err
			}
			topics = found
		}
		switch {
		case t.Topic != "" || (len(topics) == 0 && t.TopicPattern == ""):
			out = append(out, t)
		case t.Parsed:
			t.Topics = topics // one report: the counts of a batch are not by topic
			out = append(out, t)
		case len(topics) == 0:
			return nil, failure.New(failure.Config, "no topic matches %s, and table %s names none", t.TopicPattern, t.Name)
		default:
			for _, topic := range topics {
				one := t
				one.Topic, one.Topics, one.TopicPattern = topic, nil, ""
				one.several = len(topics) > 1 || t.TopicPattern != ""
				out = append(out, one)
			}
		}
	}
	return out, nil
}

func (r *run) matching(ctx context.Context, t TableConfig) ([]string, error) {
	re, err := regexp.Compile("^(?:" + t.TopicPattern + ")$")
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "topic pattern of table %s", t.Name)
	}
	there, err := r.kafka.Topics(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.pin(ctx, t.Name); err != nil {
		return nil, err
	}
	all := map[string]bool{}
	for _, name := range slices.Concat(there, r.pinned[t.Name].topics()) {
		if re.MatchString(name) {
			all[name] = true
		}
	}
	return slices.Sorted(maps.Keys(all)), nil
}

// Topics are the names of the cluster's topics, its internal ones left out.
func (k *Kafka) Topics(ctx context.Context) ([]string, error) {
	there, err := k.admin.ListTopics(ctx)
	if err != nil {
		return nil, failure.Wrap(failure.Unreachable, err, "list Kafka's topics")
	}
	return there.Names(), nil
}

// topics are those that snapshots and markers name.
func (m *metadata) topics() []string {
	if m == nil {
		return nil
	}
	all := map[string]bool{}
	note := func(v *vector) {
		if v != nil {
			for name := range v.Topics {
				all[name] = true
			}
		}
	}
	for s, hops := m.current(), 0; s != nil && hops <= len(m.Snapshots); hops++ {
		if v, err := summaryVector(s); err == nil && v != nil {
			note(v)
			break
		}
		if s.ParentID == nil {
			break
		}
		s = m.snapshot(*s.ParentID)
	}
	if byName, err := m.markers(); err == nil {
		for _, mk := range byName {
			note(mk.Position.vector())
		}
	}
	return slices.Sorted(maps.Keys(all))
}

func (m *metadata) knowsTopics() bool { return len(m.topics()) > 0 }

// upstreams are the entries of a table, one for each of its topics.
func (r *run) upstreams(table string) (out []TableConfig) {
	for _, t := range r.cfg.Tables {
		if t.Name == table && t.Upstream == "" {
			out = append(out, t)
		}
	}
	return out
}

// above names what a table is fed by.
func (c TableConfig) above() string {
	if c.Upstream != "" {
		return c.Upstream
	}
	return "Kafka"
}

// auditSilverOfTopics judges a table whose upstream holds several topics. A row
// that names partition and offset may be of any of them, so places are not
// compared: the event ids and the counts of the batches are.
func (r *run) auditSilverOfTopics(ctx context.Context, t TableConfig, m *metadata, ups []TableConfig, rep *TableReport) error {
	var names []string
	for _, u := range ups {
		names = append(names, u.Topic)
		e, err := m.end(u.Topic)
		if err != nil {
			return failure.Wrap(failure.Checkpoint, err, "table %s", t.Name)
		}
		if e.source == "" && !m.knowsTopics() {
			e.offsets = r.ends[u.key()]
		}
		rep.KafkaRecords += upstreamBelow(r.offsets[u.key()], e.offsets)
	}
	rep.Topic = strings.Join(names, ",")
	rep.note("%s holds %d topics: rows are judged by event id and by the batches' counts, not by partition and offset", t.Upstream, len(ups))
	held, err := r.countSilver(ctx, m, t.columns(), rep)
	if err != nil {
		return err
	}
	rep.Rows = held.rows
	s := rep.Silver
	if s.NullEventIDs > 0 {
		rep.mismatch("%d rows without an event id", s.NullEventIDs)
	}
	if s.DoubledEventIDs > 0 {
		rep.mismatch("%d rows repeat an event id", s.DoubledEventIDs)
	}
	erased, err := m.declaredDeletes("")
	if err != nil {
		return err
	}
	rep.noteErased(erased, newTableOffsets())
	return r.balance(ctx, t, m, rep)
}

// auditParsed judges a table that a query with parse fills from Kafka itself.
// Filters, duplicates and dead letters leave no row, so that a record may be
// absent; what holds is that every batch accounts for each record it read, that
// all of them together read what Kafka has below the position, and that no row
// is there twice or of a record that Kafka does not have, where rows say which
// record they are.
func (r *run) auditParsed(ctx context.Context, t TableConfig, rep *TableReport) error {
	topics := t.Topics
	if t.Topic != "" {
		topics = []string{t.Topic}
	}
	rep.Topic, rep.Silver = strings.Join(topics, ","), &SilverReport{Upstream: t.above()}
	m := r.pinned[t.Name]
	if m == nil {
		rep.mismatch("the table does not exist")
		return nil
	}
	rep.describe(m)
	c := t.columns()
	placed := m.has(c.Partition) && m.has(c.Offset) && (len(topics) == 1 || m.has(c.Topic))
	if !placed {
		rep.note("the table does not say which record a row is: it is judged by the batches' counts. Columns with source topic, partition and offset make every row comparable")
	}
	for _, topic := range topics {
		if err := r.parsedTopic(ctx, t, m, topic, placed, rep); err != nil {
			return err
		}
	}
	if !placed {
		files, err := liveFiles(ctx, r.cfg.Store, m.current())
		if err != nil {
			return wrapTable(err, t.Name)
		}
		for _, f := range files {
			rep.Rows += max(f.Rows, 0) * int64(f.Listed)
		}
		rep.Files = len(files)
	}
	if n := rep.extraRows(); n > 0 {
		rep.mismatch("%d rows that Kafka does not account for", n)
	}
	erased, err := m.declaredDeletes("")
	if err != nil {
		return err
	}
	rep.noteErased(erased, newTableOffsets())
	return r.balance(ctx, t, m, rep)
}

// has reports whether the table has a column.
func (m *metadata) has(name string) bool {
	_, ok := m.field(name)
	return ok
}

// parsedTopic counts one topic's records below the position, and looks for rows
// of that topic that are none of them.
func (r *run) parsedTopic(ctx context.Context, t TableConfig, m *metadata, topic string, placed bool, rep *TableReport) error {
	e, err := m.end(topic)
	if err != nil {
		return failure.Wrap(failure.Checkpoint, err, "table %s", t.Name)
	}
	bounds, err := r.kafka.Bounds(ctx, topic)
	if err != nil {
		return err
	}
	if e.source == "" && !m.knowsTopics() {
		e.source = endLog
		for p, b := range bounds.Partitions {
			e.offsets[p] = b.Stable
		}
	}
	rep.End, rep.EndSource = e.offsets, e.source
	held := newTableOffsets()
	if placed {
		if held, err = r.readOffsets(ctx, m, t.columns(), topic, rep, nil); err != nil {
			return err
		}
		rep.Rows, rep.DistinctOffsets, rep.DoubledRows = rep.Rows+held.rows, rep.DistinctOffsets+held.distinct(), rep.DoubledRows+held.doubled()
		rep.Extra = append(rep.Extra, held.doubledRanges()...)
	}
	for _, p := range sortedKeys(bounds.Partitions) {
		b := bounds.Partitions[p]
		truth, start, err := r.truth(ctx, topic, p, b.LogStart, min(e.offsets[p], b.Stable))
		if err != nil {
			return err
		}
		rep.KafkaRecords += truth.Len()
		if set := held.partitions[p]; set != nil {
			rep.Extra = append(rep.Extra, named(p, set.Minus(start, e.offsets[p], truth), ReasonNotInKafka)...)
			rep.Extra = append(rep.Extra, named(p, set.Ranges(max(e.offsets[p], start), maxOffset), ReasonBeyondEnd)...)
		}
	}
	return nil
}
