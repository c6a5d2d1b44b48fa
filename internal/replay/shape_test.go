package replay

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

// samplesFile holds recorded events; it is not part of the project.
const samplesFile = "../../../shared/samples/recentchange.jsonl"

// shape is what a set of events looks like.
type shape struct {
	events, bytes  int
	types          map[string]int
	keys           map[string]map[string]int // by type: how often each key occurs
	values         map[string]bool           // by type and key: JSON types that occur
	marks, noWords int
	bots           int
}

func shapeOf(t *testing.T, next func() []byte) shape {
	t.Helper()
	s := shape{types: map[string]int{}, keys: map[string]map[string]int{}, values: map[string]bool{}}
	for b := next(); b != nil; b = next() {
		var e map[string]any
		if err := json.Unmarshal(b, &e); err != nil {
			t.Fatalf("%v: %s", err, b)
		}
		kind, _ := e["type"].(string)
		s.events++
		s.bytes += len(b)
		s.types[kind]++
		if s.keys[kind] == nil {
			s.keys[kind] = map[string]int{}
		}
		for k, v := range e {
			s.keys[kind][k]++
			s.values[fmt.Sprintf("%s.%s:%T", kind, k, v)] = true
			if inner, ok := v.(map[string]any); ok && k != "log_params" {
				for ik, iv := range inner {
					s.keys[kind][k+"."+ik]++
					s.values[fmt.Sprintf("%s.%s.%s:%T", kind, k, ik, iv)] = true
				}
			}
		}
		if c, _ := e["comment"].(string); c == "" {
			s.noWords++
		}
		if e["bot"] == true {
			s.bots++
		}
		if p, _ := e["parsedcomment"].(string); strings.ContainsAny(p, "\u200e\u200f") {
			s.marks++
		}
	}
	return s
}

// generated gives the shape of so many base events.
func generated(t *testing.T, n int64) shape {
	t.Helper()
	c := generator(t, GeneratorConfig{Seed: 20}).Cursor()
	i := int64(-1)
	var buf []byte
	return shapeOf(t, func() []byte {
		if i++; i == n {
			return nil
		}
		buf = c.Append(buf[:0], i)
		return buf
	})
}

func TestEventsHaveTheFieldsOfTheirType(t *testing.T) {
	s := generated(t, 8000)
	always := []string{"$schema", "meta", "type", "namespace", "title", "comment", "timestamp", "user", "bot", "wiki",
		"server_url", "server_name", "server_script_path", "parsedcomment"}
	for kind, n := range s.types {
		k := s.keys[kind]
		for _, key := range always {
			if k[key] != n {
				t.Errorf("%s: %s in %d of %d", kind, key, k[key], n)
			}
		}
		edit := kind == "edit" || kind == "new"
		want := map[string]int{"minor": 0, "length.new": 0, "revision.new": 0, "length.old": 0, "revision.old": 0, "log_id": 0, "log_params": 0, "log_action_comment": 0, "id": n, "title_url": n, "notify_url": n}
		if edit {
			want["minor"], want["length.new"], want["revision.new"] = n, n, n
		}
		if kind == "edit" {
			want["length.old"], want["revision.old"] = n, n
		}
		if kind == "log" {
			want["log_id"], want["log_params"], want["log_action_comment"], want["notify_url"] = n, n, n, 0
			delete(want, "id")
		}
		if kind == "142" {
			want["title_url"], want["notify_url"] = 0, 0
		}
		for key, times := range want {
			if k[key] != times {
				t.Errorf("%s: %s in %d of %d, want %d", kind, key, k[key], n, times)
			}
		}
	}
	if k := s.keys["log"]; k["id"] == 0 || k["id"] == s.types["log"] {
		t.Errorf("id in %d of %d logs; some have none", k["id"], s.types["log"])
	}
	if k := s.keys["edit"]; k["patrolled"] < s.types["edit"]/2 || k["patrolled"] == s.types["edit"] {
		t.Errorf("patrolled in %d of %d edits", k["patrolled"], s.types["edit"])
	}
	for _, v := range []string{"log.log_params:map[string]interface {}", "log.log_params:[]interface {}"} {
		if !s.values[v] {
			t.Errorf("no %s", v)
		}
	}
	for _, kind := range []string{"edit", "new", "categorize", "log", "142", "external"} {
		if s.types[kind] == 0 {
			t.Errorf("no event of type %s", kind)
		}
	}
}

func TestEventsAreOfTheRecordedSize(t *testing.T) {
	const recordedMean = 1087
	s := generated(t, 20_000)
	if mean := float64(s.bytes) / float64(s.events); math.Abs(mean-recordedMean) > 0.03*recordedMean {
		t.Errorf("the mean event has %.0f bytes, the recorded one %d", mean, recordedMean)
	}
}

func TestEventsLookLikeRecordedOnes(t *testing.T) {
	f, err := os.Open(samplesFile)
	if err != nil {
		t.Skipf("no recorded events at %s", samplesFile)
	}
	defer func() { _ = f.Close() }()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	real := shapeOf(t, func() []byte {
		if sc.Scan() {
			return sc.Bytes()
		}
		return nil
	})
	ours := generated(t, 8000)
	share := func(n int, s shape) float64 { return float64(n) / float64(s.events) }
	for what, pair := range map[string][2]float64{
		"direction marks": {share(ours.marks, ours), share(real.marks, real)},
		"empty comments":  {share(ours.noWords, ours), share(real.noWords, real)},
		"bots":            {share(ours.bots, ours), share(real.bots, real)},
	} {
		if math.Abs(pair[0]-pair[1]) > 0.08 {
			t.Errorf("%s in %.2f of the events, recorded %.2f", what, pair[0], pair[1])
		}
	}
	// Every key and every JSON type that we make has been seen, except those of
	// rare logs and of external events, of which none was recorded.
	for _, kind := range slices.Sorted(maps.Keys(ours.types)) {
		if kind == "external" || kind == "142" {
			continue
		}
		for key := range ours.keys[kind] {
			if real.keys[kind][key] == 0 {
				t.Errorf("%s has %s, which no recorded one has", kind, key)
			}
		}
		for key, n := range real.keys[kind] {
			if n == real.types[kind] && ours.keys[kind][key] != ours.types[kind] {
				t.Errorf("every recorded %s has %s; ours have it in %d of %d", kind, key, ours.keys[kind][key], ours.types[kind])
			}
		}
	}
	for v := range ours.values {
		if kind, _, _ := strings.Cut(v, "."); kind != "external" && kind != "142" && !real.values[v] {
			t.Errorf("no recorded event has %s", v)
		}
	}
}
