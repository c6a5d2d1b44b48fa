// Package marker is what a sink remembers of a query. Checkpoint, sinks and
// the engine speak of the same marker; this package is the one place that
// says how it is named and written.
//
// A marker is written in the same commit as the rows that it speaks of, twice
// on Iceberg (snapshot summary and table property), as txn actions on Delta,
// as a row in the same transaction in a database.
package marker

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/weirlake/weir/internal/batch"
)

// Format is the version of the marker's JSON. A reader refuses a newer one.
const Format = 1

// Kinds of markers. Only stream markers take part in the overlap check of
// partitions; the others name work that re-reads what a stream has delivered.
const (
	KindStream     = "stream"
	KindLateReplay = "late-replay"
	KindDeadReplay = "dead-letter-replay"
	KindRefill     = "refill"
)

// Snapshot summary keys. They are public: scripts and other engines read them.
const (
	KeyQueryName     = "weir.query-name"
	KeyQueryID       = "weir.query-id"
	KeyBatchID       = "weir.batch-id"
	KeyEpoch         = "weir.epoch"
	KeyAttempt       = "weir.attempt"
	KeyPosition      = "weir.position"
	KeyNextWatermark = "weir.next-watermark"
	// KeyOffsets is the merged offset vector of all queries that feed the
	// table, as of this snapshot. A reader takes its end from here.
	KeyOffsets = "weir.offsets"
	// KeyMarker is the whole marker as JSON, so that history can be read.
	KeyMarker = "weir.marker"
	// PropertyPrefix + query name is the table property with the whole marker.
	PropertyPrefix = "weir.query."
)

// PropertyKey is the table property that holds the marker of a query.
func PropertyKey(queryName string) string { return PropertyPrefix + queryName }

// Epoch numbers the process starts of a query. The number orders them; the
// nonce tells two starts apart that raced for the same number.
type Epoch struct {
	Number int64  `json:"number"`
	Nonce  string `json:"nonce"`
}

// Newer reports whether e fences o.
func (e Epoch) Newer(o Epoch) bool { return e.Number > o.Number }

// String is number-nonce.
func (e Epoch) String() string { return fmt.Sprintf("%d-%s", e.Number, e.Nonce) }

// Watermark is the state of event time after a batch, all times in
// microseconds since 1970 UTC.
type Watermark struct {
	// Micros is the watermark that the next batch uses; MinTime before any event.
	Micros int64 `json:"micros"`
	// MaxEventMicros is the greatest event time seen, per partition
	// ("topic-partition") where per-partition watermarks are on, else under "".
	MaxEventMicros map[string]int64 `json:"max_event_micros,omitempty"`
	// SeenMicros is, per partition, the batch time of the last batch that had an
	// event of it; only where per-partition watermarks are on.
	SeenMicros map[string]int64 `json:"seen_micros,omitempty"`
	// Idle lists the partitions that did not hold the watermark back.
	Idle []string `json:"idle,omitempty"`
}

// MinTime is the watermark before the first event.
const MinTime = int64(-1 << 62)

// StateFile names the version of an operator's state that belongs to a batch.
// Only the tip of a chain is named; each delta names its parent and the
// parent's checksum.
type StateFile struct {
	Operator string `json:"operator"`
	// Path is relative to the checkpoint location.
	Path   string `json:"path"`
	SHA256 string `json:"sha256"`
	Keys   int64  `json:"keys"`
	Bytes  int64  `json:"bytes"`
	// Definition is the fingerprint of what the operator is: its keys, windows
	// and columns. State of another definition is not gone on with.
	Definition string `json:"definition,omitempty"`
	// Since is where the state began with nothing (--new-state); rows before it
	// are in no group. Nil where it began with the query.
	Since *batch.KafkaPosition `json:"since,omitempty"`
}

// Counters say what became of the rows of a batch. Read is always the sum of
// the rest, where rows that were emitted because a group of rows was complete
// (Results) are none of those that were read; the engine checks it before
// anything becomes visible.
type Counters struct {
	Read         int64 `json:"read"`
	Emitted      int64 `json:"emitted"`
	Filtered     int64 `json:"filtered"`
	Duplicate    int64 `json:"duplicate"`
	Late         int64 `json:"late"`
	DeadLettered int64 `json:"dead_lettered"`
	// Aggregated are the rows that were taken into sessions or windows; Results,
	// part of Emitted, are the sessions or windows that were completed.
	Aggregated int64 `json:"aggregated,omitempty"`
	Results    int64 `json:"results,omitempty"`
}

// Add adds o to c.
func (c *Counters) Add(o Counters) {
	c.Read += o.Read
	c.Emitted += o.Emitted
	c.Filtered += o.Filtered
	c.Duplicate += o.Duplicate
	c.Late += o.Late
	c.DeadLettered += o.DeadLettered
	c.Aggregated += o.Aggregated
	c.Results += o.Results
}

// Balanced reports whether every row that was read ended in a counted place.
func (c Counters) Balanced() bool {
	return c.Read == c.Emitted-c.Results+c.Aggregated+c.Filtered+c.Duplicate+c.Late+c.DeadLettered
}

// Freshness of a batch in milliseconds: commit time minus event time (minus
// Kafka timestamp where a query has no event time).
type Freshness struct {
	P50 int64 `json:"p50_ms"`
	P95 int64 `json:"p95_ms"`
	Max int64 `json:"max_ms"`
}

// Marker is what a sink remembers of a query after a batch.
type Marker struct {
	Format    int    `json:"format"`
	Kind      string `json:"kind"`
	QueryName string `json:"query_name"`
	// QueryID is the lineage: a UUID that only onLostCheckpoint: restart renews.
	QueryID string `json:"query_id"`
	// Predecessor is the query id that a restart replaced, if any.
	Predecessor string `json:"predecessor,omitempty"`
	// BatchID is -1 in the first claim of a new query.
	BatchID int64 `json:"batch_id"`
	Epoch   Epoch `json:"epoch"`
	// Attempt is a nonce per try of a commit; a claim has one too.
	Attempt string `json:"attempt"`
	// Claim is true on the zero-file snapshot that a start writes: same batch
	// id and position as the marker before it, a newer epoch.
	Claim bool `json:"claim,omitempty"`
	// PlanHash is the hash of offsets/BatchID; kept by a claim.
	PlanHash string         `json:"plan_hash,omitempty"`
	Position batch.Position `json:"position"`
	// Watermark is the one that the next batch uses.
	Watermark Watermark `json:"watermark"`
	// BatchTime is the clock of the batch's transforms.
	BatchTime time.Time `json:"batch_time"`
	// Transform is the fingerprint of configuration, contract and code.
	Transform string      `json:"transform,omitempty"`
	State     []StateFile `json:"state,omitempty"`
	Counters  Counters    `json:"counters"`
	// Instance is the deployment that wrote the marker; RenewedAt is when.
	Instance  string    `json:"instance"`
	RenewedAt time.Time `json:"renewed_at"`
	// BaseSequence is the sequence number of the head that the commit was
	// built on, 0 on an empty table.
	BaseSequence int64 `json:"base_sequence"`
}

// Encode is the marker's JSON.
func (m *Marker) Encode() (string, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return "", fmt.Errorf("encode marker of query %s: %w", m.QueryName, err)
	}
	return string(b), nil
}

// Decode reads a marker and refuses formats that this version does not know.
func Decode(s string) (*Marker, error) {
	var head struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal([]byte(s), &head); err != nil {
		return nil, fmt.Errorf("marker is not JSON: %w", err)
	}
	if head.Format < 1 || head.Format > Format {
		return nil, fmt.Errorf("marker format %d, this version knows up to %d", head.Format, Format)
	}
	m := &Marker{}
	if err := json.Unmarshal([]byte(s), m); err != nil {
		return nil, fmt.Errorf("decode marker: %w", err)
	}
	return m, nil
}

// Summary is the snapshot summary of a commit that writes the marker. offsets
// is the merged vector of all queries that feed the table.
func (m *Marker) Summary(offsets *batch.KafkaPosition) (map[string]string, error) {
	whole, err := m.Encode()
	if err != nil {
		return nil, err
	}
	pos, err := json.Marshal(m.Position)
	if err != nil {
		return nil, fmt.Errorf("encode position of query %s: %w", m.QueryName, err)
	}
	out := map[string]string{
		KeyQueryName: m.QueryName,
		KeyQueryID:   m.QueryID,
		KeyBatchID:   fmt.Sprint(m.BatchID),
		KeyEpoch:     m.Epoch.String(),
		KeyAttempt:   m.Attempt,
		KeyPosition:  string(pos),
		KeyMarker:    whole,
	}
	if m.Watermark.Micros != MinTime {
		out[KeyNextWatermark] = time.UnixMicro(m.Watermark.Micros).UTC().Format("2006-01-02T15:04:05.000000Z")
	}
	if offsets != nil {
		b, err := json.Marshal(offsets)
		if err != nil {
			return nil, fmt.Errorf("encode offsets of the table: %w", err)
		}
		out[KeyOffsets] = string(b)
	}
	return out, nil
}

// FromProperties decodes every marker among a table's properties, by query name.
func FromProperties(props map[string]string) (map[string]*Marker, error) {
	out := map[string]*Marker{}
	for k, v := range props {
		name, ok := strings.CutPrefix(k, PropertyPrefix)
		if !ok {
			continue
		}
		m, err := Decode(v)
		if err != nil {
			return nil, fmt.Errorf("table property %s: %w", k, err)
		}
		if m.QueryName != name {
			return nil, fmt.Errorf("table property %s holds the marker of query %q", k, m.QueryName)
		}
		out[name] = m
	}
	return out, nil
}

// Hash is the hexadecimal SHA-256 of b; plans, state files and transforms are
// named by it.
func Hash(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}
