package scan_test

import (
	"context"
	"errors"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/lake/scan"
	"github.com/weirlake/weir/internal/source/iceberg/bronzetest"
)

// TestAScanThatIsStoppedNeverPassesForAnEmptyOne: a stop between two files once
// left out the files that were not opened yet, and the reader took them for rows
// that were missing upstream.
func TestAScanThatIsStoppedNeverPassesForAnEmptyOne(t *testing.T) {
	b := bronzetest.New(t, 2)
	_, snaps := fill(b, 4)
	tbl := b.Load()
	v, err := scan.Offsets(tbl.SnapshotByID(snaps[1]))
	if err != nil {
		t.Fatal(err)
	}
	p0, _ := v.Get(bronzetest.Topic, 0)
	p1, _ := v.Get(bronzetest.Topic, 1)
	for name, req := range map[string]scan.Request{
		"whole":       {Want: ranges(0, 1<<40, 0, 1<<40)},
		"incremental": {Want: ranges(p0.NextOffset, 1<<40, p1.NextOffset, 1<<40), Since: snaps[1]},
	} {
		req.Table, req.SnapshotID = tbl, tbl.CurrentSnapshot().SnapshotID
		if _, res := read(t, req); res.Rows == 0 || res.Incremental != (name == "incremental") {
			t.Fatalf("%s, not stopped: %+v", name, res)
		}
		ctx, stop := context.WithCancel(t.Context())
		stop()
		res, err := scan.Range(ctx, req, func(rec arrow.RecordBatch) error {
			rec.Release()
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: a stopped scan gives %d rows and %v", name, res.Rows, err)
		}
	}
}
