package scan_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/scan"
	"github.com/weirlake/weir/internal/source/iceberg/bronzetest"
)

const day0 = 20_000

// read runs Range and renders the rows.
func read(t *testing.T, req scan.Request) ([]string, scan.Result) {
	t.Helper()
	var out []string
	res, err := scan.Range(t.Context(), req, func(rec arrow.RecordBatch) error {
		defer rec.Release()
		out = append(out, bronzetest.Lines(rec)...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(out)) != res.Rows {
		t.Fatalf("%d rows emitted, %d reported", len(out), res.Rows)
	}
	return out, res
}

// expect are the rows within the ranges, rendered in the order of the contract.
func expect(rows []bronzetest.Row, want []batch.Range) []string {
	var in []bronzetest.Row
	for _, r := range rows {
		for _, w := range want {
			if r.Partition == w.Partition && r.Offset >= w.From && r.Offset < w.To {
				in = append(in, r)
			}
		}
	}
	slices.SortStableFunc(in, func(a, b bronzetest.Row) int {
		if a.Partition != b.Partition {
			return int(a.Partition - b.Partition)
		}
		return int(a.Offset - b.Offset)
	})
	rec := bronzetest.Record(in...)
	defer rec.Release()
	return bronzetest.Lines(rec)
}

func ranges(p0from, p0to, p1from, p1to int64) []batch.Range {
	return []batch.Range{{Topic: bronzetest.Topic, Partition: 0, From: p0from, To: p0to}, {Topic: bronzetest.Topic, Partition: 1, From: p1from, To: p1to}}
}

// fill commits n batches of rows in two partitions and returns all rows and
// the snapshot after each batch.
func fill(b *bronzetest.Table, n int) (all []bronzetest.Row, snaps []int64) {
	var at [2]int64
	for i := range n {
		var rows []bronzetest.Row
		for p := range int32(2) {
			k := 20 + 7*i + int(p)
			rows = append(rows, bronzetest.Rows(p, at[p], k, day0+int64(i/2))...)
			at[p] += int64(k)
		}
		all = append(all, rows...)
		snaps = append(snaps, b.Commit(rows...).CurrentSnapshot().SnapshotID)
	}
	return all, snaps
}

func TestBothWaysGiveTheSameRowsInOrder(t *testing.T) {
	b := bronzetest.New(t, 2)
	all, snaps := fill(b, 6)
	tbl := b.Load()
	r := rand.New(rand.NewPCG(1, 1))
	for i := range snaps[:5] {
		v, err := scan.Offsets(tbl.SnapshotByID(snaps[i]))
		if err != nil {
			t.Fatal(err)
		}
		head, _ := scan.Offsets(tbl.CurrentSnapshot())
		from0, _ := v.Get(bronzetest.Topic, 0)
		from1, _ := v.Get(bronzetest.Topic, 1)
		to0, _ := head.Get(bronzetest.Topic, 0)
		to1, _ := head.Get(bronzetest.Topic, 1)
		for range 5 {
			want := ranges(from0.NextOffset+r.Int64N(10), to0.NextOffset-r.Int64N(10), from1.NextOffset, to1.NextOffset-r.Int64N(30))
			req := scan.Request{Table: tbl, SnapshotID: tbl.CurrentSnapshot().SnapshotID, Since: snaps[i], Want: want}
			fast, res := read(t, req)
			if !res.Incremental {
				t.Fatalf("not incremental: %s", res.Reason)
			}
			req.Since = 0
			slow, res := read(t, req)
			if res.Incremental {
				t.Fatal("a scan without a starting snapshot cannot be incremental")
			}
			exp := expect(all, want)
			if !slices.Equal(fast, exp) || !slices.Equal(slow, exp) {
				t.Fatalf("since batch %d %v: %d incremental, %d full, want %d rows", i, want, len(fast), len(slow), len(exp))
			}
		}
	}
}

func TestOnlyTheFilesOfNewSnapshotsAreOpened(t *testing.T) {
	b := bronzetest.New(t, 2)
	_, snaps := fill(b, 6)
	tbl := b.Load()
	v, _ := scan.Offsets(tbl.SnapshotByID(snaps[4]))
	p0, _ := v.Get(bronzetest.Topic, 0)
	want := []batch.Range{{Topic: bronzetest.Topic, Partition: 0, From: p0.NextOffset, To: 1 << 40}}
	_, res := read(t, scan.Request{Table: tbl, SnapshotID: tbl.CurrentSnapshot().SnapshotID, Since: snaps[4], Want: want})
	if !res.Incremental || res.Files != 2 {
		t.Errorf("%+v: want the two files (days) of the last batch", res)
	}
	_, res = read(t, scan.Request{Table: tbl, SnapshotID: tbl.CurrentSnapshot().SnapshotID, Want: want})
	if res.Files > 3 { // of 12: bounds are over both partitions
		t.Errorf("a full scan opened %d files; their offset bounds leave 3", res.Files)
	}
}

func TestACompactionBetweenIsSkippedAndItsRowsAreNotReadTwice(t *testing.T) {
	b := bronzetest.New(t, 2)
	all, snaps := fill(b, 3)
	b.Compact(all)
	more := bronzetest.Rows(0, 100, 50, day0)
	b.Commit(more...)
	all = append(all, more...)
	tbl := b.Load()
	want := ranges(20, 1000, 21, 1000)
	fast, res := read(t, scan.Request{Table: tbl, SnapshotID: tbl.CurrentSnapshot().SnapshotID, Since: snaps[0], Want: want})
	if !res.Incremental {
		t.Errorf("not incremental: %s", res.Reason)
	}
	slow, _ := read(t, scan.Request{Table: tbl, SnapshotID: tbl.CurrentSnapshot().SnapshotID, Want: want})
	exp := expect(all, want)
	if !slices.Equal(fast, exp) || !slices.Equal(slow, exp) {
		t.Fatalf("%d incremental, %d full, want %d rows", len(fast), len(slow), len(exp))
	}
}

func TestABrokenChainFallsBackToAFullScan(t *testing.T) {
	cases := map[string]func(*bronzetest.Table){
		"is expired":     func(b *bronzetest.Table) { b.ExpireAllButHead() },
		"is of the kind": func(b *bronzetest.Table) { b.Delete(iceberg.EqualTo(iceberg.Reference("offset"), int64(3))) },
		"past offset":    func(*bronzetest.Table) {},
	}
	for reason, damage := range cases {
		b := bronzetest.New(t, 2)
		all, snaps := fill(b, 3)
		damage(b)
		tbl := b.Load()
		since := snaps[0]
		want := ranges(20, 1000, 21, 1000)
		if reason == "past offset" {
			since = snaps[1] // this snapshot holds wanted rows already
		}
		got, res := read(t, scan.Request{Table: tbl, SnapshotID: tbl.CurrentSnapshot().SnapshotID, Since: since, Want: want})
		if res.Incremental || !strings.Contains(res.Reason, reason) {
			t.Errorf("%s: %+v", reason, res)
		}
		if exp := expect(all, want); !slices.Equal(got, exp) {
			t.Errorf("%s: %d rows, want %d", reason, len(got), len(exp))
		}
	}
}

// Expiry by another process deletes files between the load of the table and
// the read; the pinned snapshot still has the rows.
func TestAFileThatExpiryTookAwayIsNotMissed(t *testing.T) {
	b := bronzetest.New(t, 2)
	all, snaps := fill(b, 3)
	b.Compact(all)
	tbl := b.Load() // its metadata still lists every snapshot
	head := tbl.CurrentSnapshot().SnapshotID
	b.ExpireAllButHead()
	want := ranges(20, 1000, 21, 1000)
	got, res := read(t, scan.Request{Table: tbl, SnapshotID: head, Since: snaps[0], Want: want})
	if res.Incremental {
		t.Error("files of expired snapshots were read")
	}
	if exp := expect(all, want); !slices.Equal(got, exp) {
		t.Errorf("%d rows, want %d", len(got), len(exp))
	}
}

func TestDeletedRowsDoNotComeBack(t *testing.T) {
	for _, mode := range []string{table.WriteModeCopyOnWrite, table.WriteModeMergeOnRead} {
		b := bronzetest.New(t, 2)
		all, _ := fill(b, 3)
		b.Properties(iceberg.Properties{table.WriteDeleteModeKey: mode})
		b.Delete(iceberg.NewAnd(iceberg.EqualTo(iceberg.Reference("partition"), int32(1)), iceberg.EqualTo(iceberg.Reference("offset"), int64(25))))
		tbl := b.Load()
		want := ranges(10, 50, 10, 50)
		got, _ := read(t, scan.Request{Table: tbl, SnapshotID: tbl.CurrentSnapshot().SnapshotID, Want: want})
		exp := expect(slices.DeleteFunc(slices.Clone(all), func(r bronzetest.Row) bool { return r.Partition == 1 && r.Offset == 25 }), want)
		if !slices.Equal(got, exp) {
			t.Errorf("%s: %d rows, want %d", mode, len(got), len(exp))
		}
	}
}

func TestRowsOfInterleavedFilesComeInOffsetOrder(t *testing.T) {
	b := bronzetest.New(t, 2)
	all := bronzetest.Rows(0, 0, 3000, day0)
	r := rand.New(rand.NewPCG(3, 3))
	var parts [4][]bronzetest.Row
	for _, row := range all { // any row in any of four files, and twice a day
		row.Micros = (day0 + r.Int64N(2)) * 86_400_000_000
		i := r.IntN(4)
		parts[i] = append(parts[i], row)
	}
	var moved []bronzetest.Row
	for _, p := range parts {
		moved = append(moved, p...)
		b.ForeignAppend(p...)
	}
	tbl := b.Load()
	want := ranges(5, 2990, 0, 10)
	got, _ := read(t, scan.Request{Table: tbl, SnapshotID: tbl.CurrentSnapshot().SnapshotID, Want: want})
	if exp := expect(moved, want); !slices.Equal(got, exp) {
		t.Fatalf("%d rows, want %d in order", len(got), len(exp))
	}
}

func TestARowThatIsThereTwiceIsEmittedTwice(t *testing.T) {
	b := bronzetest.New(t, 1)
	rows := bronzetest.Rows(0, 0, 10, day0)
	b.Commit(rows...)
	b.ForeignAppend(rows[4:6]...)
	tbl := b.Load()
	got, _ := read(t, scan.Request{Table: tbl, SnapshotID: tbl.CurrentSnapshot().SnapshotID, Want: ranges(0, 10, 0, 0)})
	if len(got) != 12 {
		t.Fatalf("%d rows, want 12: whoever counts must see a double", len(got))
	}
}

func TestColumnsAreEmittedAsAskedAndOtherTopicsLeftOut(t *testing.T) {
	b := bronzetest.New(t, 1)
	rows := bronzetest.Rows(0, 0, 5, day0)
	other := bronzetest.Rows(0, 0, 5, day0)
	for i := range other {
		other[i].Topic = "other"
	}
	b.Commit(append(other, rows...)...)
	tbl := b.Load()
	var names []string
	n := int64(0)
	_, err := scan.Range(t.Context(), scan.Request{Table: tbl, SnapshotID: tbl.CurrentSnapshot().SnapshotID, Want: ranges(1, 4, 0, 0), Columns: []string{"value", "offset"}}, func(rec arrow.RecordBatch) error {
		defer rec.Release()
		for _, f := range rec.Schema().Fields() {
			names = append(names, f.Name)
		}
		n += rec.NumRows()
		return nil
	})
	if err != nil || n != 3 || !slices.Equal(names, []string{"value", "offset"}) {
		t.Fatalf("%d rows of %v: %v", n, names, err)
	}
}

func TestASnapshotThatIsGoneIsSourceChanged(t *testing.T) {
	b := bronzetest.New(t, 1)
	tbl := b.Load()
	_, err := scan.Range(t.Context(), scan.Request{Table: tbl, SnapshotID: 42, Want: ranges(0, 1, 0, 0)}, func(arrow.RecordBatch) error { return nil })
	if !failure.Is(err, failure.SourceChanged) {
		t.Fatalf("got %v", err)
	}
}

func TestADamagedFileIsAnErrorThatNamesIt(t *testing.T) {
	b := bronzetest.New(t, 1)
	b.Commit(bronzetest.Rows(0, 0, 500, day0)...)
	tbl := b.Load()
	var damaged string
	root, _ := lake.LocalPath(tbl.Location())
	_ = filepath.WalkDir(root, func(p string, _ os.DirEntry, _ error) error {
		if strings.HasSuffix(p, ".parquet") {
			damaged = p
		}
		return nil
	})
	raw, err := os.ReadFile(damaged)
	if err != nil {
		t.Fatal(err)
	}
	for _, cut := range []string{"pages", "footer"} {
		bad := slices.Clone(raw)
		if cut == "pages" {
			for i := 40; i < len(bad)/2; i++ {
				bad[i] ^= 0x5a
			}
		} else {
			bad = bad[:len(bad)-20]
		}
		if err := os.WriteFile(damaged, bad, 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := scan.Range(t.Context(), scan.Request{Table: tbl, SnapshotID: tbl.CurrentSnapshot().SnapshotID, Want: ranges(0, 500, 0, 0)}, func(rec arrow.RecordBatch) error {
			rec.Release()
			return nil
		})
		if err == nil || !strings.Contains(err.Error(), filepath.Base(damaged)) {
			t.Errorf("damaged %s: %v", cut, err)
		}
	}
}

func TestEmitsErrorEndsTheScan(t *testing.T) {
	b := bronzetest.New(t, 2)
	fill(b, 2)
	tbl := b.Load()
	boom := fmt.Errorf("boom")
	_, err := scan.Range(t.Context(), scan.Request{Table: tbl, SnapshotID: tbl.CurrentSnapshot().SnapshotID, Want: ranges(0, 100, 0, 100)}, func(rec arrow.RecordBatch) error {
		rec.Release()
		return boom
	})
	if err != boom {
		t.Fatalf("got %v", err)
	}
}
