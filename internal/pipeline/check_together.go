package pipeline

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// checkTogether looks at pairs of queries: what they share and must not, and
// how they feed each other.
func (l *loader) checkTogether(p *Pipeline) {
	l.checkCheckpoints(p)
	l.checkTables(p)
	l.checkRejectedTables(p)
	l.checkOverlap(p)
	l.checkUpstream(p)
	l.checkCycles(p)
	groups := map[string]string{}
	for i, q := range p.Queries {
		if k := q.From.Kafka; k != nil && k.GroupID != "" {
			if other, dup := groups[k.GroupID]; dup && q.Name != "" {
				l.warn(fmt.Sprintf("queries[%d].from.kafka.groupId", i), "groupId is the same as that of query %s: lag tools will see them mixed up", other)
			}
			groups[k.GroupID] = q.Name
		}
	}
}

func (l *loader) checkCheckpoints(p *Pipeline) {
	for i, q := range p.Queries {
		key := fmt.Sprintf("queries[%d].checkpointLocation", i)
		if q.CheckpointLocation == "" || l.isBroken(key) {
			continue
		}
		for j, other := range p.Queries {
			if i == j || other.CheckpointLocation == "" {
				continue
			}
			same := q.CheckpointLocation == other.CheckpointLocation
			if same && j < i && !strings.EqualFold(q.Name, other.Name) {
				l.faultKey(key, "checkpointLocation is the same as that of query %s; each query needs its own", other.Name)
			}
			if !same && inside(q.CheckpointLocation, other.CheckpointLocation) {
				l.faultKey(key, "checkpointLocation lies inside that of query %s; each query needs its own", other.Name)
			}
		}
	}
}

// checkTables: several queries may feed one table with rows of one shape; a
// side table or the progress table is nobody's main table.
func (l *loader) checkTables(p *Pipeline) {
	mains := map[string]int{}
	for i, q := range p.Queries {
		if q.To.Table() == "" {
			continue
		}
		table := strings.ToLower(q.To.Table())
		key := tableKey(q, i)
		if sameTable(table, p.Ops.ProgressTable) {
			l.faultKey(key, "%q is ops.progressTable; a query needs a table of its own", q.To.Table())
		}
		first, dup := mains[table]
		if !dup {
			mains[table] = i
			continue
		}
		o := p.Queries[first]
		switch {
		case (o.To.Delta == nil) != (q.To.Delta == nil):
			l.faultKey(key, "query %s writes the table %q in another format; both would lie in one folder", o.Name, q.To.Table())
		case !sameShape(o, q) && !l.isBroken(fmt.Sprintf("queries[%d].parse", i)) && !l.isBroken(fmt.Sprintf("queries[%d].parse", first)):
			l.faultKey(key, "query %s writes other columns or another partitioning to the same table %q", o.Name, q.To.Table())
		}
	}
	for i, q := range p.Queries {
		if q.DeadLetter == nil || q.DeadLetter.Table == "" {
			continue
		}
		key := fmt.Sprintf("queries[%d].deadLetter.table", i)
		if other, ok := mains[strings.ToLower(q.DeadLetter.Table)]; ok && other != i {
			l.faultKey(key, "deadLetter.table %q is the main table of query %s", q.DeadLetter.Table, p.Queries[other].Name)
		}
		if sameTable(q.DeadLetter.Table, p.Ops.ProgressTable) {
			l.faultKey(key, "deadLetter.table %q is ops.progressTable", q.DeadLetter.Table)
		}
	}
}

// tableKey is the key that names a query's main table.
func tableKey(q Query, i int) string {
	if name, e := q.To.External(); e != nil {
		return fmt.Sprintf("queries[%d].to.%s", i, name)
	}
	switch {
	case q.To.Delta == nil:
		return fmt.Sprintf("queries[%d].to.iceberg.table", i)
	case q.To.Delta.Path != "":
		return fmt.Sprintf("queries[%d].to.delta.path", i)
	}
	return fmt.Sprintf("queries[%d].to.delta.table", i)
}

// sameShape reports whether two queries write the same columns, partitioned
// the same way.
func sameShape(a, b Query) bool {
	ac, bc := a.Columns(), b.Columns()
	if len(ac) != len(bc) || !slices.Equal(a.To.PartitionBy(), b.To.PartitionBy()) {
		return false
	}
	for i := range ac {
		if ac[i].Name != bc[i].Name || ac[i].Type != bc[i].Type {
			return false
		}
	}
	return true
}

// checkOverlap refuses two queries that would deliver the same records to the
// same table.
func (l *loader) checkOverlap(p *Pipeline) {
	for i, q := range p.Queries {
		for j, o := range p.Queries[:i] {
			if !sameTable(q.To.Table(), o.To.Table()) {
				continue
			}
			if q.From.Table != nil && o.From.Table != nil && sameTable(q.From.Table.Name, o.From.Table.Name) {
				l.faultKey(fmt.Sprintf("queries[%d].from.table.name", i), "query %s reads the same table into %s: every row would be there twice", o.Name, q.To.Table())
			}
			if q.From.Kafka != nil && o.From.Kafka != nil {
				l.checkKafkaOverlap(p, i, j)
			}
		}
	}
}

func (l *loader) checkKafkaOverlap(p *Pipeline, i, j int) {
	q, o := p.Queries[i], p.Queries[j]
	part, hit := q.From.Kafka.Partitions.overlap(o.From.Kafka.Partitions)
	if !hit {
		return
	}
	key := fmt.Sprintf("queries[%d].from.kafka", i)
	at := key + ".topics"
	if _, ok := l.places[key+".partitions"]; ok {
		at = key + ".partitions"
	}
	if topic, ok := sharedTopic(q.From.Kafka, o.From.Kafka); ok {
		l.faultKey(at, "query %s reads partition %d of %s into the same table %s: its records would be there twice; give them disjoint partitions", o.Name, part, topic, q.To.Table())
	}
}

// sharedTopic gives a topic that both sources match. Two different patterns
// cannot be compared here; the overlap check at the claim decides those.
func sharedTopic(a, b *KafkaSource) (string, bool) {
	matches := func(k *KafkaSource, topic string) bool {
		if k.TopicPattern == "" {
			return slices.Contains(k.Topics, topic)
		}
		// A pattern has to match the whole name, as in Spark.
		re, err := regexp.Compile("^(?:" + k.TopicPattern + ")$")
		return err == nil && re.MatchString(topic)
	}
	for _, t := range a.Topics {
		if matches(b, t) {
			return t, true
		}
	}
	for _, t := range b.Topics {
		if matches(a, t) {
			return t, true
		}
	}
	return a.TopicPattern, a.TopicPattern != "" && a.TopicPattern == b.TopicPattern
}

// producers gives the queries whose main table is name.
func (p *Pipeline) producers(name string) []int {
	var out []int
	for i, q := range p.Queries {
		if sameTable(q.To.Table(), name) {
			out = append(out, i)
		}
	}
	return out
}

// checkUpstream: a table source reads Kafka records as bronze stores them. A
// table that no query here writes is another pipeline's and is checked when it
// is opened.
func (l *loader) checkUpstream(p *Pipeline) {
	for i, q := range p.Queries {
		if q.From.Table == nil || q.From.Table.Name == "" {
			continue
		}
		key := fmt.Sprintf("queries[%d].from.table.name", i)
		for _, j := range p.producers(q.From.Table.Name) {
			if p.Queries[j].To.Upsert() != nil {
				l.faultKey(key, "query %s merges rows into %q by key, so the table has no rows of an offset to read from; read what that query reads", p.Queries[j].Name, q.From.Table.Name)
				break
			}
			if p.Queries[j].To.Delta != nil {
				l.faultKey(key, "query %s writes the table %q as Delta; this build reads Iceberg tables", p.Queries[j].Name, q.From.Table.Name)
				break
			}
			if up := p.Queries[j]; q.Parse != nil && j != i && (up.Parse != nil || up.Typed()) {
				l.faultKey(fmt.Sprintf("queries[%d].parse", i), "table %q holds the parsed columns of query %s: leave parse out to read them as they are", q.From.Table.Name, up.Name)
				break
			}
		}
		for j, o := range p.Queries {
			if o.DeadLetter != nil && sameTable(o.DeadLetter.Table, q.From.Table.Name) {
				l.faultKey(key, "table %q is the dead-letter table of query %s and has no position to read from", q.From.Table.Name, p.Queries[j].Name)
			}
		}
	}
}

// checkCycles refuses tables that feed themselves.
func (l *loader) checkCycles(p *Pipeline) {
	const (
		open = 1
		done = 2
	)
	state := make([]int, len(p.Queries))
	var trail []int
	var visit func(i int)
	visit = func(i int) {
		state[i] = open
		trail = append(trail, i)
		if t := p.Queries[i].From.Table; t != nil {
			for _, j := range p.producers(t.Name) {
				switch state[j] {
				case 0:
					visit(j)
				case open:
					l.reportCycle(p, trail[slices.Index(trail, j):])
				}
			}
		}
		trail = trail[:len(trail)-1]
		state[i] = done
	}
	for i := range p.Queries {
		if state[i] == 0 {
			visit(i)
		}
	}
}

// reportCycle names the queries of a cycle in the direction of the data.
func (l *loader) reportCycle(p *Pipeline, trail []int) {
	var names []string
	for _, i := range trail {
		names = append(names, p.Queries[i].Name)
	}
	slices.Reverse(names)
	names = append(names, names[0])
	l.faultKey(fmt.Sprintf("queries[%d].from.table.name", slices.Min(trail)), "queries feed each other in a circle: %s", strings.Join(names, " → "))
}
