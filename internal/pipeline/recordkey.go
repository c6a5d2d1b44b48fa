package pipeline

import "fmt"

// RecordKeyField is the field that recordKey adds to each row.
const RecordKeyField = "weir_key"

// RecordKey names the columns that are a row's place in Kafka; topic may be
// empty. ok is false where the rows do not carry their place.
func (q Query) RecordKey() (topic, partition, offset string, ok bool) {
	for _, c := range q.Columns() {
		source := c.Source
		if q.Parse == nil {
			source = c.Name
		}
		switch {
		case source == SourceTopic && c.Type == TypeString:
			topic = c.Name
		case source == SourcePartition && (c.Type == TypeInt || c.Type == TypeLong):
			partition = c.Name
		case source == SourceOffset && c.Type == TypeLong:
			offset = c.Name
		}
	}
	return topic, partition, offset, partition != "" && offset != ""
}

// RecordKeyFaults say why the rows cannot carry a record key.
func (q Query) RecordKeyFaults() (out []string) {
	topic, _, _, ok := q.RecordKey()
	many := q.From.Kafka != nil && (len(q.From.Kafka.Topics) > 1 || q.From.Kafka.TopicPattern != "")
	switch {
	case !ok:
		out = append(out, "needs the record's place in the rows: columns with source: partition (int) and source: offset (long)")
	case topic == "" && many:
		out = append(out, "needs a column with source: topic, because the query reads more than one topic")
	}
	if _, taken := q.column(RecordKeyField); taken {
		out = append(out, fmt.Sprintf("adds a field %q, and the rows have a column of that name", RecordKeyField))
	}
	return out
}

// checkRecordKey refuses a key that the rows cannot give.
func (l *loader) checkRecordKey(q *Query, at string) {
	for _, why := range q.RecordKeyFaults() {
		l.faultKey(at, "recordKey %s", why)
	}
}
