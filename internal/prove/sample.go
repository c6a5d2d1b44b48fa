package prove

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"
)

// The sample: 400 events of which exactly 196 are edits or new pages.
const (
	sampleEvents  = 400
	sampleEdits   = 180
	sampleNew     = 16
	sampleLogs    = 60
	sampleThreads = 4 // type "142"; the rest are categorize events
)

// event is one message of a scenario, with what the scenario knows of it.
type event struct {
	id      string
	kind    string // the change's type, or the kind of violation
	at      time.Time
	payload []byte
}

// counted reports whether the event belongs into silver.
func (e event) counted() bool { return e.kind == "edit" || e.kind == "new" }

// uuid is an id from the scenario's own source.
func uuid(r *rand.Rand) string {
	a, b := r.Uint64(), r.Uint64()
	a = a&^0xf000 | 0x4000       // version 4
	b = b&^(0b11<<62) | 0b10<<62 // variant
	return fmt.Sprintf("%08x-%04x-%04x-%04x-%012x", a>>32, a>>16&0xffff, a&0xffff, b>>48, b&0xffffffffffff)
}

// sample makes one loop of the sample with ids of its own, spread over a
// minute that begins at start: far less than any watermark delay.
func sample(r *rand.Rand, start time.Time) []event {
	kinds := make([]string, 0, sampleEvents)
	add := func(kind string, n int) {
		for range n {
			kinds = append(kinds, kind)
		}
	}
	add("edit", sampleEdits)
	add("new", sampleNew)
	add("log", sampleLogs)
	add("142", sampleThreads)
	add("categorize", sampleEvents-len(kinds))
	r.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	out := make([]event, len(kinds))
	for i, kind := range kinds {
		at := start.Add(time.Duration(i) * time.Minute / sampleEvents)
		out[i] = makeEvent(r, kind, at)
	}
	return out
}

func makeEvent(r *rand.Rand, kind string, at time.Time) event {
	e := event{id: uuid(r), kind: kind, at: at}
	page := r.IntN(100_000)
	doc := map[string]any{
		"$schema": "/mediawiki/recentchange/1.0.0",
		"meta": map[string]any{
			"id": e.id, "dt": at.UTC().Format("2006-01-02T15:04:05.000Z"), "domain": "en.wikipedia.org",
			"stream": "mediawiki.recentchange", "uri": fmt.Sprintf("https://en.wikipedia.org/wiki/Page_%d", page),
			"request_id": uuid(r), "topic": "eqiad.mediawiki.recentchange", "partition": 0, "offset": r.Int64N(1 << 33),
		},
		"type": kind, "namespace": r.IntN(16), "title": fmt.Sprintf("Page %d", page), "wiki": "enwiki",
		"comment": "a change made for a proof", "parsedcomment": "a change made for a proof",
		"timestamp": at.Unix(), "user": fmt.Sprintf("User-%04x", r.IntN(1<<16)), "bot": r.IntN(4) == 0,
		"server_url": "https://en.wikipedia.org", "server_name": "en.wikipedia.org", "server_script_path": "/w",
	}
	switch kind {
	case "edit", "new":
		doc["id"], doc["minor"] = r.Int64N(1<<32), r.IntN(3) == 0
		length, revision := map[string]any{"new": r.IntN(1 << 16)}, map[string]any{"new": r.Int64N(1 << 33)}
		if kind == "edit" {
			length["old"], revision["old"] = r.IntN(1<<16), r.Int64N(1<<33)
		}
		doc["length"], doc["revision"] = length, revision
	case "log":
		doc["log_id"], doc["log_type"], doc["log_action"] = r.Int64N(1<<32), "patrol", "patrol"
		doc["log_params"], doc["log_action_comment"] = []any{}, "marked"
	}
	e.payload, _ = json.Marshal(doc) // maps of plain values: cannot fail
	return e
}

// violations are n messages that break the contract in several ways.
func violations(r *rand.Rand, n int, at time.Time) []event {
	out := make([]event, n)
	for i := range out {
		e := makeEvent(r, "edit", at)
		var doc map[string]any
		_ = json.Unmarshal(e.payload, &doc)
		switch i % 5 {
		case 0:
			delete(doc, "meta")
		case 1:
			delete(doc["meta"].(map[string]any), "id")
		case 2:
			doc["$schema"] = "/mediawiki/recentchange/2.0.0"
		case 3:
			doc["bot"] = "perhaps"
		case 4:
			e.payload = e.payload[:len(e.payload)/2]
		}
		if i%5 != 4 {
			e.payload, _ = json.Marshal(doc)
		}
		e.kind = "violation"
		out[i] = e
	}
	return out
}
