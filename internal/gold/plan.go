package gold

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/duck"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
)

// What a published table says of itself.
const (
	// PropertyPrefix + model is the table property with the whole record.
	PropertyPrefix = "weir.gold."
	// KeyInputs and the others are keys of the snapshot's summary.
	KeyModel       = "weir.gold-model"
	KeyRun         = "weir.gold-run"
	KeyInputs      = "weir.gold-inputs"
	KeyFingerprint = "weir.gold-fingerprint"
	KeyAttempt     = "weir.gold-attempt"
)

// Record is what a table was made from.
type Record struct {
	Model       string           `json:"model"`
	RunID       string           `json:"run_id"`
	Attempt     string           `json:"attempt"`
	Fingerprint string           `json:"fingerprint"`
	Mode        string           `json:"mode"`
	Inputs      map[string]InRef `json:"inputs"`
}

// InRef is an input as it was read; an optional one that there was not is left
// out.
type InRef struct {
	UUID       string `json:"uuid"`
	SnapshotID int64  `json:"snapshot_id"`
	Sequence   int64  `json:"sequence"`
	// Rows is the snapshot that the rows are from: those after it added none
	// (a claim, a batch without rows).
	Rows int64 `json:"rows,omitempty"`
}

// same reports whether two reads of an input gave the same rows.
func (a InRef) same(b InRef) bool {
	return a.UUID == b.UUID && (a.SnapshotID == b.SnapshotID || (a.Rows != 0 && a.Rows == b.Rows))
}

// rowsOf is the newest snapshot at or below s that changed rows.
func rowsOf(t *table.Table, s *table.Snapshot) int64 {
	for s.Summary != nil && s.ParentSnapshotID != nil {
		switch s.Summary.Operation {
		case table.OpAppend:
			if n := s.Summary.Properties["added-records"]; n != "" && n != "0" {
				return s.SnapshotID
			}
		case table.OpReplace: // compaction
		default:
			return s.SnapshotID
		}
		parent := t.SnapshotByID(*s.ParentSnapshotID)
		if parent == nil || parent.SequenceNumber >= s.SequenceNumber {
			break
		}
		s = parent
	}
	return s.SnapshotID
}

// RecordOf is the record in a table's properties, nil where there is none.
func RecordOf(t *table.Table, model string) (*Record, error) {
	raw, ok := t.Properties()[PropertyPrefix+model]
	if !ok {
		return nil, nil
	}
	var r Record
	if err := json.Unmarshal([]byte(raw), &r); err != nil {
		return nil, failure.Wrap(failure.Checkpoint, err, "table %s, property %s%s", lake.Name(t.Identifier()), PropertyPrefix, model).
			WithHint("weir gold run --full-refresh makes the table anew")
	}
	return &r, nil
}

// target is the table of a model, as it was when the run began.
type target struct {
	ident  table.Identifier
	table  *table.Table // nil: there is none
	record *Record
}

func loadTarget(ctx context.Context, c *lake.Catalog, schema string, m *Model) (*target, error) {
	ident, err := lake.ParseName(schema + "." + m.Name)
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "model %s", m.Name)
	}
	t := &target{ident: ident}
	t.table, err = c.LoadTable(ctx, ident)
	if errors.Is(err, lake.ErrNoTable) {
		t.table = nil
		return t, nil
	}
	if err != nil {
		return nil, fmt.Errorf("load table %s: %w", lake.Name(ident), err)
	}
	t.record, err = RecordOf(t.table, m.Name)
	if failure.Is(err, failure.Checkpoint) {
		t.record, err = nil, nil // made anew
	}
	return t, err
}

func (t *target) head() lake.Head { return lake.HeadOf(t.table) }

func (t *target) rows() (n int64) {
	_, _ = fmt.Sscan(lake.SummaryValue(t.table.CurrentSnapshot(), "total-records"), &n)
	return n
}

// ours reports whether the head holds the rows that the record tells of:
// compaction may have come after, nothing else.
func (t *target) ours() bool {
	found := false
	lake.Walk(t.table, func(s *table.Snapshot) bool {
		if lake.SummaryValue(s, KeyAttempt) == t.record.Attempt {
			found = true
			return false
		}
		return s.Summary != nil && s.Summary.Operation == table.OpReplace
	})
	return found
}

type planKind int

const (
	planFull planKind = iota
	planIncremental
	planSkip
	planView
)

// plan says how a model is built, and why not in the cheaper way.
type plan struct {
	what planKind
	why  string
}

// planOf decides by the table's record, the pinned inputs and the model.
func (r *run) planOf(m *Model, t *target) plan {
	switch {
	case r.FullRefresh:
		return plan{planFull, "asked for"}
	case t.table == nil:
		return plan{planFull, "there is no table yet"}
	case t.record == nil:
		return plan{planFull, "the table has no record of a run"}
	case t.record.Fingerprint != m.fingerprint:
		return plan{planFull, "the model or one upstream changed"}
	case !t.ours():
		return plan{planFull, "somebody else changed the table"}
	}
	now := r.refs(m)
	if maps.EqualFunc(now, t.record.Inputs, InRef.same) {
		return plan{planSkip, "no input changed"}
	}
	if m.Config.Materialized != Incremental {
		return plan{planFull, ""}
	}
	for _, k := range r.g.Inputs(m) {
		if why := onlyAppended(r.pins[k], t.record.Inputs, k.String()); why != "" {
			return plan{planFull, why}
		}
	}
	return plan{planIncremental, ""}
}

// refs are the pinned inputs of a model.
func (r *run) refs(m *Model) map[string]InRef {
	out := map[string]InRef{}
	for _, k := range r.g.Inputs(m) {
		p := r.pins[k]
		if p == nil {
			continue
		}
		ref := InRef{UUID: p.Table.Metadata().TableUUID().String(), SnapshotID: p.Snapshot}
		if s := p.Table.SnapshotByID(p.Snapshot); s != nil {
			ref.Sequence, ref.Rows = s.SequenceNumber, rowsOf(p.Table, s)
		}
		out[k.String()] = ref
	}
	return out
}

// onlyAppended says why an input may have lost or changed rows since it was
// last read, "" where its snapshots tell that it has not.
func onlyAppended(p *duck.Pin, last map[string]InRef, name string) string {
	ref, known := last[name]
	switch {
	case p == nil && !known:
		return "" // was not there, is not there
	case p == nil:
		return "input " + name + " is gone"
	case !known:
		return "input " + name + " is new"
	case ref.UUID != p.Table.Metadata().TableUUID().String():
		return "input " + name + " is another table"
	case ref.SnapshotID == p.Snapshot || ref.SnapshotID == 0:
		return ""
	}
	for s := p.Table.SnapshotByID(p.Snapshot); s != nil && s.SequenceNumber > ref.Sequence; {
		if s.Summary == nil || (s.Summary.Operation != table.OpAppend && s.Summary.Operation != table.OpReplace) {
			return "input " + name + " was changed other than by appending"
		}
		if s.ParentSnapshotID == nil {
			break
		}
		if *s.ParentSnapshotID == ref.SnapshotID {
			return ""
		}
		s = p.Table.SnapshotByID(*s.ParentSnapshotID)
	}
	return "what happened to input " + name + " since is not in its snapshots"
}
