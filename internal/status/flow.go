package status

import (
	"net/url"
	"strings"
)

// node is one box of the picture: what flows in, what it is, how it is, and
// what it sets aside.
type node struct {
	Kind  string // stream, ingest, topic, query
	Title string
	Sub   string
	// State is ok, wait, bad or idle; Word says it for those who see no colour.
	State, Word string
	// In is the rate on the arrow that leads here, From where it comes from;
	// Moving is set where something flows.
	In, From string
	Moving   bool
	Facts    []fact
	Aside    *aside
}

type fact struct{ Label, Value string }

// aside is what does not flow on.
type aside struct {
	Label, Where, Count string
	Some                bool
}

// flow lays the pipeline out in columns, in the direction of the stream.
func flow(m *Model) [][]node {
	var columns [][]node
	add := func(c []node) {
		if len(c) > 0 {
			columns = append(columns, c)
		}
	}
	var streams, ingests, topics []node
	fed := map[string]*Ingest{}
	for i := range m.Ingests {
		in := &m.Ingests[i]
		fed[in.Topic] = in
		streams = append(streams, streamNode(in))
		ingests = append(ingests, ingestNode(in))
	}
	for _, t := range m.Topics {
		if dead(m, t.Name) {
			continue
		}
		topics = append(topics, topicNode(t, fed[t.Name]))
	}
	if len(m.Topics) == 0 {
		for _, name := range topicNames(m) {
			topics = append(topics, topicNode(Topic{Name: name}, fed[name]))
		}
	}
	add(streams)
	add(ingests)
	add(topics)
	for level := 0; ; level++ {
		var c []node
		more := false
		for i := range m.Queries {
			q := &m.Queries[i]
			more = more || q.Level > level
			if q.Level == level {
				c = append(c, queryNode(q, m))
			}
		}
		add(c)
		if !more {
			return columns
		}
	}
}

// dead reports whether a topic is where ingestion puts dead letters.
func dead(m *Model, topic string) bool {
	for _, in := range m.Ingests {
		if in.DeadLetterTopic == topic {
			return true
		}
	}
	return false
}

// topicNames are the topics that the pipeline names, for as long as the broker
// has not been asked.
func topicNames(m *Model) []string {
	var out []string
	seen := map[string]bool{}
	add := func(name string) {
		if name != "" && !seen[name] {
			seen[name] = true
			out = append(out, name)
		}
	}
	for _, in := range m.Ingests {
		add(in.Topic)
	}
	for _, q := range m.Queries {
		if q.SourceKind == "kafka" {
			add(q.Source)
		}
	}
	return out
}

func streamNode(in *Ingest) node {
	host, rest := in.Source, ""
	if u, err := url.Parse(in.Source); err == nil && u.Host != "" {
		host, rest = u.Host, strings.TrimSuffix(u.Path, "/")
	}
	return node{Kind: "stream", Title: "Event stream", Sub: host + rest, State: "ok", Word: "source",
		Facts: []fact{{"Read", size(in.Stats.Bytes)}, {"Reconnects", count(in.Stats.Reconnects)}}}
}

func ingestNode(in *Ingest) node {
	n := node{Kind: "ingest", Title: in.Name, Sub: "ingest, " + in.Delivery, In: rate(in.Rates.Received), Moving: in.Rates.Received > 0,
		Facts: []fact{
			{"Freshness", span(float64(in.Stats.LagMillis) / 1000)},
			{"In flight", count(in.Stats.InFlight)},
			{"Published", count(in.Stats.Published)},
		}}
	n.State, n.Word = stateOf(in.State, false)
	if in.DeadLetterTopic != "" {
		n.Aside = &aside{Label: "dead letters", Where: in.DeadLetterTopic, Count: count(in.Stats.DeadLetters), Some: in.Stats.DeadLetters > 0}
	}
	return n
}

func topicNode(t Topic, in *Ingest) node {
	n := node{Kind: "topic", Title: t.Name, Sub: "Kafka topic", State: "ok", Word: "topic"}
	if in != nil {
		n.In, n.Moving = rate(in.Rates.Published), in.Rates.Published > 0
	}
	if t.Partitions > 0 {
		n.Facts = []fact{{"Records", count(t.Records)}, {"Partitions", count(int64(t.Partitions))}}
	}
	return n
}

func queryNode(q *Query, m *Model) node {
	n := node{Kind: "query", Title: q.Name, Sub: q.Table, From: q.Source, In: rate(q.Rates.Input), Moving: q.Rates.Input > 0}
	stalled := false
	for _, r := range m.Health.Reasons {
		stalled = stalled || r.Subject == q.Name && r.Code == CodeStalled
	}
	n.State, n.Word = stateOf(q.State, stalled)
	lag, fresh, since := "–", "–", "–"
	if q.LagOffsets != nil {
		lag = count(*q.LagOffsets)
	}
	if q.Freshness != (Freshness{}) {
		fresh = span(q.Freshness.P95Seconds)
	}
	if q.CommittedAt != nil {
		since = ago(m.Now.Sub(*q.CommittedAt)) + " ago"
	}
	n.Facts = []fact{{"Lag", lag}, {"Freshness", fresh}, {"Last commit", since}}
	for _, t := range m.Tables {
		if t.Name == q.Table && !t.Missing {
			n.Facts = append(n.Facts, fact{"Rows", count(t.Rows)})
		}
	}
	if q.DeadLetterTable != "" {
		n.Aside = &aside{Label: "dead letters", Where: q.DeadLetterTable, Count: count(q.Totals.DeadLettered), Some: q.Totals.DeadLettered > 0}
	}
	return n
}

func stateOf(state string, stalled bool) (tone, word string) {
	switch {
	case state == Failed:
		return "bad", "failed"
	case state == Retrying:
		return "bad", "waiting for its store"
	case stalled:
		return "bad", "stalled"
	case state == Starting:
		return "wait", "starting"
	case state == Done:
		return "idle", "done"
	}
	return "ok", "running"
}
