package prove

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/weirlake/weir/internal/replay"
)

const (
	// streamRate is how many base events there are in a second of event time. A
	// resume with the usual overlap of ten seconds so repeats about a thousand
	// events: fewer than ingestion remembers.
	streamRate = 100
	// streamSlack keeps the last event's time before the clock's.
	streamSlack = time.Minute
	// ingestMax bounds the publication of a scenario's events.
	ingestMax = 3 * time.Minute
)

// event is one frame of a scenario's stream, with what the scenario knows of it.
type event struct {
	id      string // empty where the event has none
	kind    string // the change's type
	class   replay.Class
	payload []byte
}

// edit reports whether silver's filter lets the event through.
func (e event) edit() bool { return e.kind == "edit" || e.kind == "new" }

// stream is what a scenario publishes: a script of the replay's generator,
// which `weir replay-sse` would send byte for byte the same.
type stream struct {
	cfg    replay.Config
	gen    *replay.Generator
	server *replay.Running
}

// newStream lays a script out so that its last event is about a minute old.
// dataCentreRun changes the data centre after so many frames, 0 never.
func (e *Env) newStream(script replay.Script, dataCentreRun int64) (*stream, error) {
	cfg := replay.Config{Clock: e.o.Clock, Generator: replay.GeneratorConfig{
		Seed: e.rng.Uint64(), Rate: streamRate, Script: script, SwitchEvery: dataCentreRun,
	}}
	gen, err := replay.NewGenerator(cfg.Generator)
	if err != nil {
		return nil, err
	}
	// The clock only says where the stream lies in time, not what is in it.
	span := time.Duration(gen.Length()) * time.Second / streamRate
	cfg.Generator.Start = e.o.Clock.Now().Add(-span - streamSlack).Truncate(time.Second)
	if gen, err = replay.NewGenerator(cfg.Generator); err != nil {
		return nil, err
	}
	return &stream{cfg: cfg, gen: gen}, nil
}

// frames is the stream's length.
func (s *stream) frames() int64 { return s.gen.Length() }

// serve starts the server of the stream; it holds back all frames until Limit.
func (e *Env) serve(ctx context.Context, s *stream) error {
	r, err := replay.Listen(ctx, s.cfg, "127.0.0.1:0")
	if err != nil {
		return err
	}
	r.Server.SetLimit(0)
	s.server = r
	e.cleanup = append(e.cleanup, func() { _ = r.Close() })
	return nil
}

// events reads frames from (inclusive) to (exclusive).
func (s *stream) events(from, to int64) ([]event, error) {
	cur := s.gen.Cursor()
	out := make([]event, 0, to-from)
	for n := from; n < to; n++ {
		ev := event{class: cur.Class(n), payload: cur.Append(nil, n)}
		var doc struct {
			Meta struct {
				ID string `json:"id"`
			} `json:"meta"`
			Type string `json:"type"`
		}
		err := json.Unmarshal(ev.payload, &doc)
		if err == nil {
			ev.id, ev.kind = doc.Meta.ID, doc.Type
		}
		// What breaks the contract need not be JSON.
		if ev.class != replay.ContractViolation && (err != nil || ev.id == "") {
			return nil, fmt.Errorf("frame %d of the stream has no id", n)
		}
		out = append(out, ev)
	}
	return out, nil
}

// ids of the events of a class.
func ids(events []event, class replay.Class, also func(event) bool) map[string]bool {
	out := map[string]bool{}
	for _, ev := range events {
		if ev.class == class && (also == nil || also(ev)) {
			out[ev.id] = true
		}
	}
	return out
}

// ingestUntil runs weir ingest until topic and dead-letter topic hold so many
// messages, and stops it.
func (e *Env) ingestUntil(ctx context.Context, s setup, want, wantDead int64) error {
	p, err := e.start("weir ingest", nil, "ingest", e.path(ingestFileName))
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%d messages and %d dead letters in Kafka", want, wantDead)
	err = e.until(ctx, p, ingestMax, what, func() (bool, error) {
		n, err := e.size(ctx, s.Topic)
		if err != nil || n < want {
			return false, err
		}
		dead, err := e.size(ctx, s.DLQ)
		return dead >= wantDead, err
	})
	if err != nil {
		return err
	}
	return p.stop(ctx)
}

// ingestToTheEnd runs weir ingest until the server says that there is no more.
func (e *Env) ingestToTheEnd(ctx context.Context) error {
	p, err := e.start("weir ingest, to the end", nil, "ingest", e.path(ingestFileName))
	if err != nil {
		return err
	}
	return p.wait(ctx, ingestMax)
}

// size is the number of offsets of a topic.
func (e *Env) size(ctx context.Context, topic string) (n int64, err error) {
	b, err := e.kafka.Bounds(ctx, topic)
	if err != nil {
		return 0, err
	}
	for _, p := range b.Partitions {
		n += p.Stable - p.LogStart
	}
	return n, nil
}
