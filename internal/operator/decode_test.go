package operator

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/weirlake/weir/internal/event"
	"github.com/weirlake/weir/internal/marker"
)

// reversed decodes values that are JSON from the end to the beginning.
type reversed struct{ outage error }

func (r *reversed) Decode(_ context.Context, dst, value []byte) ([]byte, error) {
	if bytes.HasPrefix(value, []byte("!")) {
		return dst, &event.Error{Reason: "unknown_schema", Detail: "schema 9"}
	}
	if r.outage != nil {
		return dst, r.outage
	}
	for i := len(value) - 1; i >= 0; i-- {
		dst = append(dst, value[i])
	}
	return dst, nil
}

func TestValuesAreDecodedBeforeTheyAreParsed(t *testing.T) {
	d := &reversed{}
	r := newRun(t, Config{
		Columns: []Column{
			{Name: "id", Path: "$.id", Type: "string", Required: true},
			{Name: "raw", Source: "value", Type: "binary"},
		},
		DeadLetter: true, Format: "reversed", Decoder: d,
	})
	res := r.batchOf(values(`}"a":"di"{`, `!`, `}"b":"di"{`, ``, `oops`), []record{{}})
	equalCounts(t, res.Counters, marker.Counters{Read: 6, Emitted: 2, DeadLettered: 4})
	equalStrings(t, "ids", column1(r.main, "id"), "a", "b")
	// The record's own bytes, not what they were decoded to.
	equalStrings(t, "raw", column1(r.main, "raw"), `0x7d2261223a226469227b`, `0x7d2262223a226469227b`)
	equalStrings(t, "dead", column1(r.dead, "reason"), "unknown_schema", "empty_value", "invalid_json", "null_value")
	equalStrings(t, "dead values", column1(r.dead, "value"), "0x21", "0x", "0x6f6f7073", "<nil>")

	// What is no fault of a value fails the batch, and nothing of it is kept.
	d.outage = errors.New("the registry is away")
	r.begin()
	if err := r.tr.Process(rows(r.mem, 0, values(`}"c":"di"{`)), r.emit); !errors.Is(err, d.outage) {
		t.Fatalf("an outage: %v", err)
	}
	r.tr.Rollback()
}

func TestAnotherFormatIsAnotherTransform(t *testing.T) {
	cfg := Config{Columns: []Column{{Name: "id", Path: "$.id", Type: "string"}}}
	plain := newRun(t, cfg).tr.Fingerprint()
	cfg.Format, cfg.Decoder = "avro", &reversed{}
	if newRun(t, cfg).tr.Fingerprint() == plain {
		t.Error("the fingerprint does not know the format")
	}
}
