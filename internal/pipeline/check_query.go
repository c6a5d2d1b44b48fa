package pipeline

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// kafkaColumns are the columns of a Kafka record as a row (batch.KafkaSchema),
// by name and type: what a query without parse has.
var kafkaColumns = []Column{
	{Name: "topic", Type: TypeString},
	{Name: "partition", Type: TypeInt},
	{Name: "offset", Type: TypeLong},
	{Name: "timestamp", Type: TypeTimestamptz},
	{Name: "timestamp_type", Type: TypeInt},
	{Name: "key", Type: TypeBinary},
	{Name: "value", Type: TypeBinary},
	{Name: "headers", Type: "list"},
	{Name: "ingested_at", Type: TypeTimestamptz},
	{Name: "topic_id", Type: TypeString},
}

// sourceTypes are the types that a record property can have as a column.
var sourceTypes = map[string][]string{
	SourceTopic:         {TypeString},
	SourceTopicID:       {TypeString},
	SourcePartition:     {TypeInt, TypeLong},
	SourceOffset:        {TypeLong},
	SourceTimestamp:     {TypeTimestamptz},
	SourceTimestampType: {TypeInt, TypeLong},
	SourceKey:           {TypeBinary, TypeString},
	SourceValue:         {TypeBinary, TypeString},
	SourceIngestedAt:    {TypeTimestamptz},
	SourceBatchTime:     {TypeTimestamptz},
}

func (q Query) column(name string) (Column, bool) {
	for _, c := range q.Columns() {
		if c.Name == name {
			return c, true
		}
	}
	return Column{}, false
}

// columnNames is for messages and suggestions.
func (q Query) columnNames() []string {
	var out []string
	for _, c := range q.Columns() {
		out = append(out, c.Name)
	}
	return out
}

func (l *loader) checkQuery(p *Pipeline, i int) {
	q := &p.Queries[i]
	key := fmt.Sprintf("queries[%d]", i)
	l.checkFrom(q, key+".from")
	l.checkCare(q, key)
	l.checkState(q, key)
	l.checkTrigger(q, key+".trigger")
	l.checkParse(q, key)
	l.checkWatermark(q, key)
	l.checkAggregate(q, key)
	l.checkTo(p, q, key)
	l.checkColumnsPast(q, key)
	if q.DeadLetter != nil && sameTable(q.DeadLetter.Table, q.To.Table()) {
		l.faultKey(key+".deadLetter.table", "deadLetter.table is the query's own table %q; dead letters need another", q.DeadLetter.Table)
	}
	if q.OnLostCheckpoint == OnLostRestart {
		l.warn(key+".onLostCheckpoint", "restart starts over when the checkpoint is lost: rows that are in the table already come again as duplicates")
	}
}

// sameTable compares names as a catalog may: without case.
func sameTable(a, b string) bool { return a != "" && strings.EqualFold(a, b) }

func (l *loader) checkFrom(q *Query, key string) {
	k, t := q.From.Kafka, q.From.Table
	switch {
	case l.isBroken(key) && k == nil && t == nil:
	case k != nil && t != nil:
		l.faultKey(key, "from has both kafka and table; a query has one source")
	case k == nil && t == nil:
		l.faultKey(key, "from needs kafka or table")
	}
	if t != nil && t.StartingOffsets.Mode == Specific {
		l.checkStartingOffsets(t.StartingOffsets, nil, nil, key+".table.startingOffsets")
	}
	if k == nil {
		return
	}
	key += ".kafka"
	switch {
	case l.isBroken(key + ".topics"), l.isBroken(key + ".topicPattern"):
	case len(k.Topics) > 0 && k.TopicPattern != "":
		l.faultKey(key+".topicPattern", "kafka has both topics and topicPattern; keep one")
	case len(k.Topics) == 0 && k.TopicPattern == "":
		l.faultKey(key, "kafka needs topics or topicPattern")
	}
	l.checkStartingOffsets(k.StartingOffsets, k.Topics, k.Partitions, key+".startingOffsets")
	if k.StartingTimestamp != nil && k.StartingOffsetsByTimestamp != nil {
		l.faultKey(key+".startingOffsetsByTimestamp", "startingTimestamp and startingOffsetsByTimestamp say the same thing twice; keep one")
	}
	for topic := range k.StartingOffsetsByTimestamp {
		l.checkTopicListed(topic, k.Topics, key+".startingOffsetsByTimestamp")
	}
	if !k.FailOnDataLoss {
		l.warn(key+".failOnDataLoss", "failOnDataLoss is off: records that retention removes before they are read are lost without a stop")
	}
}

// checkStartingOffsets checks the entries of offsets by topic and partition.
func (l *loader) checkStartingOffsets(s StartingOffsets, topics []string, parts Partitions, key string) {
	for topic, byPart := range s.Offsets {
		l.checkTopicListed(topic, topics, key)
		for part, offset := range byPart {
			at := fmt.Sprintf("%s.%s.%d", key, topic, part)
			if offset < OffsetEarliest {
				l.faultKey(at, "partition %d: offset %d is not an offset, -2 (earliest) or -1 (latest)", part, offset)
			}
			if !parts.Contains(part) {
				l.faultKey(at, "partition %d is not among the query's partitions %s", part, parts)
			}
		}
	}
}

func (l *loader) checkTopicListed(topic string, topics []string, key string) {
	if len(topics) > 0 && !slices.Contains(topics, topic) {
		l.faultKey(key+"."+topic, "topic %q is not among the query's topics", clip(topic))
	}
}

func (l *loader) checkTrigger(q *Query, key string) {
	if l.isBroken(key) {
		return
	}
	n := 0
	if _, given := l.places[key+".processingTime"]; given {
		n++
	}
	if q.Trigger.AvailableNow {
		n++
	}
	if q.Trigger.Once {
		n++
	}
	if n > 1 {
		l.faultKey(key, "trigger has more than one of processingTime, availableNow and once; keep one")
	}
}

func (l *loader) checkParse(q *Query, key string) {
	if q.Parse == nil {
		if q.DeadLetter != nil {
			l.faultKey(key+".deadLetter", "deadLetter without parse: nothing can fail in a query that stores records as they are")
		}
		if q.Typed() {
			l.checkTyped(q, key)
			return
		}
		for name, given := range map[string]bool{"filter": q.Filter != "", "watermark": q.Watermark != nil, "dropDuplicatesWithinWatermark": len(q.DropDuplicatesWithinWatermark) > 0} {
			if given && !l.isBroken(key+".parse") {
				l.faultKey(key+"."+name, "%s works on declared columns: add parse", name)
			}
		}
		return
	}
	if q.DeadLetter == nil && !l.isBroken(key+".deadLetter") {
		l.faultKey(key+".parse", "parse needs deadLetter: a row that cannot be parsed has to end in a counted place")
	}
	l.checkFormat(q.Parse, key+".parse")
	seen := map[string]bool{}
	for i, c := range q.Parse.Columns {
		at := fmt.Sprintf("%s.parse.columns[%d]", key, i)
		if folded := strings.ToLower(c.Name); c.Name != "" {
			if seen[folded] {
				l.faultKey(at+".name", "column %q is declared twice", c.Name)
			}
			seen[folded] = true
		}
		l.checkColumn(c, at)
	}
}

func (l *loader) checkColumn(c Column, at string) {
	switch {
	case l.isBroken(at + ".path"), l.isBroken(at + ".source"), l.isBroken(at + ".type"):
	case c.Path != "" && c.Source != "":
		l.faultKey(at+".source", "column %q has both path and source; keep one", c.Name)
	case c.Path == "" && c.Source == "":
		l.faultKey(at, "column %q needs path or source", c.Name)
	case c.Source != "" && !slices.Contains(sourceTypes[c.Source], c.Type):
		l.faultKey(at+".type", "source %s has the type %s; %q declares %s", c.Source, strings.Join(sourceTypes[c.Source], " or "), c.Name, c.Type)
	case c.TimeFormat != "" && (c.Path == "" || c.Type != TypeTimestamptz):
		l.faultKey(at+".timeFormat", "timeFormat is for a timestamptz with a path")
	}
}

// unknownColumn reports a name that is not a column of the query.
func (l *loader) unknownColumn(q *Query, at, what, name string) {
	msg := fmt.Sprintf("%s: no column %q", what, clip(name))
	if s := suggest(name, q.columnNames()); s != "" {
		msg += fmt.Sprintf("; did you mean %q?", s)
	}
	l.faultKey(at, "%s", msg)
}

func (l *loader) checkWatermark(q *Query, key string) {
	columnsKnown := q.Parse == nil || !l.isBroken(key+".parse")
	if w := q.Watermark; w != nil && w.Column != "" && columnsKnown {
		if c, ok := columnOf(q.Input(), w.Column); !ok {
			l.unknownIn(q.Input(), key+".watermark.column", "watermark", w.Column)
		} else if c.Type != TypeTimestamptz {
			l.faultKey(key+".watermark.column", "watermark column %q is a %s; it has to be a timestamptz", w.Column, c.Type)
		} else if !c.Required && (q.Parse != nil || q.Typed()) {
			l.faultKey(key+".watermark.column", "watermark column %q has to be required: a row without event time is neither late nor on time", w.Column)
		}
	}
	if _, given := l.places[key+".watermark.delay"]; q.Watermark != nil && q.Parse != nil && !given && !l.isBroken(key+".watermark") {
		l.faultKey(key+".watermark", "watermark needs delay: how far behind the latest event time an event is still taken")
	}
	if w := q.Watermark; w != nil {
		_, idle := l.places[key+".watermark.idleTimeout"]
		switch {
		case w.PerPartition && q.Typed():
			l.faultKey(key+".watermark.perPartition", "perPartition: the query that parses has drawn the watermark; set it there")
		case idle && !w.PerPartition && !l.isBroken(key+".watermark"):
			l.faultKey(key+".watermark.idleTimeout", "idleTimeout is for perPartition: without it no partition holds the watermark back")
		}
	}
	dedup := key + ".dropDuplicatesWithinWatermark"
	if len(q.DropDuplicatesWithinWatermark) == 0 {
		return
	}
	if q.Watermark == nil && !l.isBroken(key+".watermark") {
		l.faultKey(dedup, "dropDuplicatesWithinWatermark without watermark would remember every id for ever; add watermark")
	}
	if !columnsKnown {
		return
	}
	for i, name := range q.DropDuplicatesWithinWatermark {
		at := dedup
		if _, ok := l.places[fmt.Sprintf("%s[%d]", dedup, i)]; ok {
			at = fmt.Sprintf("%s[%d]", dedup, i)
		}
		c, ok := columnOf(q.Input(), name)
		switch {
		case name == "" || l.isBroken(at):
		case !ok:
			l.unknownIn(q.Input(), at, "dropDuplicatesWithinWatermark", name)
		case c.Source == SourceBatchTime || c.Source == SourceIngestedAt || c.Source == SourceOffset:
			l.faultKey(at, "dropDuplicatesWithinWatermark: %q differs in every copy of an event, so nothing would be dropped", name)
		case inexact(c.Type):
			l.faultKey(at, "dropDuplicatesWithinWatermark: %q is a %s, which has no exact equality", name, c.Type)
		case q.Parse != nil && !c.Required:
			l.faultKey(at, "dropDuplicatesWithinWatermark: column %q has to be required", name)
		}
	}
	if q.From.Kafka != nil && len(q.From.Kafka.Partitions) > 0 {
		l.faultKey(key+".from.kafka.partitions", "partitions with dropDuplicatesWithinWatermark: a resent event can hash to a partition of another instance; run the query over all partitions")
	}
}

// transformTypes are the column types that a partition transform takes.
var transformTypes = map[string][]string{
	"year": {TypeTimestamptz}, "month": {TypeTimestamptz}, "day": {TypeTimestamptz}, "hour": {TypeTimestamptz},
	"bucket":   {TypeString, TypeJSON, TypeInt, TypeLong, TypeTimestamptz, TypeBinary},
	"truncate": {TypeString, TypeJSON, TypeInt, TypeLong, TypeBinary},
	"identity": {TypeString, TypeInt, TypeLong, TypeBoolean, TypeDate, TypeTimestamptz},
}

// checkTo checks the sink: exactly one, and what it says.
func (l *loader) checkTo(p *Pipeline, q *Query, key string) {
	to := key + ".to"
	switch {
	case len(q.To.kinds()) > 1:
		l.faultKey(to, "to has both %s; a query has one main sink. For a second one add a query with a checkpoint of its own", strings.Join(q.To.kinds(), " and "))
	case q.To.Iceberg != nil:
		l.checkSink(q, q.To.Iceberg.Properties, key, to+".iceberg")
		l.checkUpsert(q, key, to+".iceberg")
	case q.To.Delta != nil:
		l.checkDelta(p, q.To.Delta, to+".delta")
		l.checkSink(q, q.To.Delta.Properties, key, to+".delta")
		l.checkUpsert(q, key, to+".delta")
	case len(q.To.kinds()) == 1:
		l.checkExternal(p, q, to)
	case !l.isBroken(to):
		l.faultKey(to, "to needs a sink: %s", oneOf(sinkKeys))
	}
	l.checkSinkTypes(q, key)
	if d := q.DeadLetter; d != nil {
		l.checkProperties(d.Properties, key+".deadLetter.properties")
		if d.Format == FormatDelta && d.Table != "" {
			l.needWarehouse(p, key+".deadLetter.table")
		}
	}
}

func (l *loader) checkDelta(p *Pipeline, d *DeltaSink, key string) {
	switch {
	case l.isBroken(key + ".table"), l.isBroken(key + ".path"):
	case d.Table == "" && d.Path == "":
		l.faultKey(key, "delta needs table or path")
	case d.Table != "" && d.Path != "":
		l.faultKey(key+".path", "delta has both table and path; keep one")
	case d.Table != "":
		l.needWarehouse(p, key+".table")
	}
	for i, f := range d.PartitionBy {
		if at := fmt.Sprintf("%s.partitionBy[%d]", key, i); f.Column != "" && f.Transform != "identity" && !l.isBroken(at) {
			l.faultKey(at, "partitionBy: Delta has no %s; name a column, such as one that parse declares", f)
		}
	}
	if strings.HasPrefix(d.AppID, "weir/") {
		l.faultKey(key+".appId", "appId: ids that begin with weir/ are the engine's own")
	}
}

// needWarehouse: a Delta table is in no catalog, so its name is a folder.
func (l *loader) needWarehouse(p *Pipeline, key string) {
	if p.Warehouse == "" && !l.isBroken("warehouse") {
		l.faultKey(key, "a Delta table's name is a folder of the warehouse, and the pipeline names none; add warehouse, or give delta a path")
	}
}

// checkSink checks what every table has. query is the query's key, key the
// sink's.
func (l *loader) checkSink(q *Query, properties map[string]string, query, key string) {
	columnsKnown := q.Parse == nil || !l.isBroken(query+".parse")
	seen := map[string]bool{}
	for i, f := range q.To.PartitionBy() {
		at := fmt.Sprintf("%s.partitionBy[%d]", key, i)
		if f.Column == "" || l.isBroken(at) || !columnsKnown {
			continue
		}
		c, ok := q.column(f.Column)
		switch {
		case !ok:
			l.unknownColumn(q, at, "partitionBy", f.Column)
		case !slices.Contains(transformTypes[f.Transform], c.Type):
			l.faultKey(at, "partitionBy: %s does not apply to %q, which is a %s", f.Transform, f.Column, c.Type)
		case seen[f.String()]:
			l.faultKey(at, "partitionBy: %s is given twice", f)
		}
		seen[f.String()] = true
	}
	l.checkProperties(properties, key+".properties")
}

// reservedProperties are table properties that the protocol itself depends on.
var reservedProperties = regexp.MustCompile(`^(weir\.|commit\.retry\.)`)

func (l *loader) checkProperties(props map[string]string, key string) {
	for name, value := range props {
		at := key + "." + name
		switch {
		case reservedProperties.MatchString(name):
			l.faultKey(at, "table property %q is the protocol's own; remove it", clip(name))
		case name == "format-version" && value != "2":
			l.faultKey(at, "format-version: this build writes Iceberg format version 2")
		}
	}
}
