package weir

import (
	"context"
	"errors"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/delta"
	"github.com/weirlake/weir/internal/failure"
)

// DeltaTable is a Delta table that a handler writes to. Where a table is all that
// a query writes, To(Delta{…}) is the simpler way.
type DeltaTable struct {
	table *delta.Table

	mu   sync.Mutex
	last map[string]string // by app id: the attempt that wrote with it
}

// OpenDelta names a table by its folder, local or s3://bucket/prefix. It is made
// by the first write.
func OpenDelta(ctx context.Context, path string) (*DeltaTable, error) {
	clk := clock.System{}
	store, err := app.DeltaStorage(ctx, path, clk)
	if err != nil {
		return nil, err
	}
	return &DeltaTable{table: delta.Open(store, delta.Options{Clock: clk, Engine: "weir"}), last: map[string]string{}}, nil
}

// DeltaWrite says how a batch is written to a Delta table; the zero value is
// usable.
type DeltaWrite struct {
	// Records replace the batch's, where a handler has made others of them.
	Records []arrow.RecordBatch
	// AppID is the transaction app id (txnAppId). The query id where empty, which
	// no other lineage has. An app id of your own is bound to the lineage that
	// uses it first: another one, whose batch ids would be taken for old ones and
	// dropped, is refused, or takes it over where RebindAppID says so. A handler
	// that writes to one table twice needs two.
	AppID       string
	RebindAppID bool
	// PartitionBy and Properties make a missing table.
	PartitionBy []string
	Properties  map[string]string
	// MergeSchema adds columns that the table lacks.
	MergeSchema bool
}

func (w DeltaWrite) create() *delta.CreateOptions {
	return &delta.CreateOptions{PartitionColumns: w.PartitionBy, Configuration: w.Properties}
}

// claim settles the app id of a write, and refuses a second one with the same id
// in one call of the handler: it would be taken for a repetition and dropped.
func (t *DeltaTable) claim(b Batch, appID string) (string, error) {
	if b.QueryID == "" {
		return "", failure.New(failure.Config, "Delta table %s: the batch has no query id; use AppendRecords outside a handler", t.table.Location())
	}
	if appID == "" {
		appID = b.QueryID
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last[appID] == b.Attempt && b.Attempt != "" {
		return "", failure.New(failure.Config, "Delta table %s: batch %s is written a second time under the app id %q, and would be dropped as a repetition", t.table.Location(), b.Key(), appID).
			WithHint("write everything at once, or give the second write an AppID of its own")
	}
	t.last[appID] = b.Attempt
	return appID, nil
}

func policyOf(rebind bool) delta.ReusedPolicy {
	if rebind {
		return delta.RebindReused
	}
	return delta.FailOnReused
}

// Append appends a batch, once, however often it is called for it: the table
// remembers (app id, batch id) in the same commit. It returns the batch's rows,
// also where they were there already.
func (t *DeltaTable) Append(ctx context.Context, b Batch, w DeltaWrite) (rows int64, err error) {
	appID, err := t.claim(b, w.AppID)
	if err != nil {
		return 0, err
	}
	records := w.Records
	if records == nil {
		records = b.Records
	}
	_, err = delta.Append(ctx, t.table, records, delta.AppendOptions{
		TxnAppID: appID, TxnVersion: b.BatchID, Lineage: b.QueryID, OnReusedAppID: policyOf(w.RebindAppID), Create: w.create(), MergeSchema: w.MergeSchema,
	})
	if err != nil {
		return 0, err
	}
	return b.NumRows(), nil
}

// DeltaMerge says how a batch is merged into a Delta table.
type DeltaMerge struct {
	DeltaWrite
	// Keys are the columns that name a row.
	Keys []string
	// OrderBy reduces the batch to the last row of each key; the order of the rows
	// where empty.
	OrderBy []string
	// DeleteColumn is a boolean column of the batch, not of the table: where it is
	// true the key's row goes.
	DeleteColumn string
	// IgnoreOlder leaves a row of the table alone that comes after the batch's by
	// OrderBy.
	IgnoreOlder bool
}

// Merge updates, inserts and deletes by key, once, as Append appends. Merging the
// same batch again changes nothing. It returns the batch's rows.
func (t *DeltaTable) Merge(ctx context.Context, b Batch, m DeltaMerge) (rows int64, err error) {
	appID, err := t.claim(b, m.AppID)
	if err != nil {
		return 0, err
	}
	records := m.Records
	if records == nil {
		records = b.Records
	}
	_, err = delta.Merge(ctx, t.table, records, delta.MergeOptions{
		Keys: m.Keys, OrderBy: m.OrderBy, DeleteColumn: m.DeleteColumn, IgnoreOlder: m.IgnoreOlder,
		TxnAppID: appID, TxnVersion: b.BatchID, Lineage: b.QueryID, OnReusedAppID: policyOf(m.RebindAppID), Create: m.create(),
	})
	if err != nil {
		return 0, err
	}
	return b.NumRows(), nil
}

// Txn is what makes a plain append idempotent, as Delta's own writers have it:
// txnAppId and txnVersion.
type Txn struct {
	AppID   string
	Version int64
	// Lineage names who counts the versions. Without it a writer whose versions
	// start again loses rows in silence; with it that is refused, or the app id
	// is taken over where Rebind says so.
	Lineage string
	Rebind  bool
}

// Appended is what became of a plain append.
type Appended struct {
	// Version of the table after it.
	Version int64
	// Skipped is set where the table remembered the version or a later one, so
	// that nothing was written; Rebound where the app id was taken over.
	Skipped, Rebound bool
	Rows             int64
}

// AppendRecords appends rows outside the protocol: with a zero Txn as often as it
// is called. Append is the way in a handler.
func (t *DeltaTable) AppendRecords(ctx context.Context, records []arrow.RecordBatch, x Txn) (Appended, error) {
	r, err := delta.Append(ctx, t.table, records, delta.AppendOptions{
		TxnAppID: x.AppID, TxnVersion: x.Version, Lineage: x.Lineage, OnReusedAppID: policyOf(x.Rebind), Create: &delta.CreateOptions{},
	})
	return Appended{Version: r.Version, Skipped: r.Skipped, Rebound: r.Rebound, Rows: r.Rows}, err
}

// Rows counts the table's rows at its newest version, from its log; 0 where there
// is no table.
func (t *DeltaTable) Rows(ctx context.Context) (n int64, err error) {
	s, err := t.table.Snapshot(ctx)
	if errors.Is(err, delta.ErrNoTable) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for _, f := range s.Files() {
		n += f.Rows()
	}
	return n, nil
}
