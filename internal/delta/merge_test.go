package delta

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/failure"
)

// change is one row of a change stream.
type change struct {
	line
	deleted bool
}

func source(changes []change) []arrow.RecordBatch {
	lines := make([]line, len(changes))
	b := array.NewBooleanBuilder(memory.DefaultAllocator)
	defer b.Release()
	for i, c := range changes {
		lines[i] = c.line
		b.Append(c.deleted)
	}
	rec := rows(lines...)
	defer rec.Release()
	fields := append(slices.Clone(rowSchema.Fields()), arrow.Field{Name: "deleted", Type: arrow.FixedWidthTypes.Boolean})
	return one(array.NewRecordBatch(arrow.NewSchema(fields, nil), append(slices.Clone(rec.Columns()), b.NewArray()), rec.NumRows()))
}

var byKey = MergeOptions{Keys: []string{"id"}, OrderBy: []string{"seq"}, DeleteColumn: "deleted"}

func merge(t *testing.T, tbl *Table, changes []change, o MergeOptions) MergeResult {
	t.Helper()
	r, err := Merge(context.Background(), tbl, source(changes), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestMergeUpdatesInsertsAndDeletesByKey(t *testing.T) {
	tbl, dir := localTable(t)
	create(t, tbl, CreateOptions{})
	mustAppend(t, tbl, rows(line{1, "a", 1, ""}, line{2, "b", 1, ""}, line{3, "c", 1, ""}), AppendOptions{})
	mustAppend(t, tbl, rows(line{50, "far", 1, ""}), AppendOptions{})
	r := merge(t, tbl, []change{
		{line{2, "old", 2, ""}, false}, {line{2, "new", 5, ""}, false}, {line{2, "late", 3, ""}, false},
		{line{3, "", 2, ""}, true}, {line{4, "d", 1, ""}, false}, {line{9, "", 1, ""}, true},
	}, byKey)
	want := []line{{1, "a", 1, ""}, {2, "new", 5, ""}, {4, "d", 1, ""}, {50, "far", 1, ""}}
	if got := contents(t, tbl); !slices.Equal(got, want) {
		t.Fatalf("got %v want %v", got, want)
	}
	if r.Inserted != 1 || r.Updated != 1 || r.Deleted != 1 || r.FilesRewritten != 1 || r.RowsCopied != 1 {
		t.Fatalf("%+v", r)
	}
	if _, err := Delete(context.Background(), tbl, one(ids(50, 1)), MergeOptions{Keys: []string{"id"}}); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, tbl); !slices.Equal(got, want[:3]) {
		t.Fatalf("after the delete: %v", got)
	}
	if py := deltaRS(t, dir, "id"); py.Rows != 3 || py.Sum != 7 {
		t.Fatalf("delta-rs reads %+v", py)
	}
}

func TestMergeRefusesNullKeysAndAppendOnlyTables(t *testing.T) {
	tbl, _ := localTable(t)
	create(t, tbl, CreateOptions{Configuration: map[string]string{PropAppendOnly: "true"}})
	mustAppend(t, tbl, rows(line{1, "a", 1, ""}), AppendOptions{})
	_, err := Merge(context.Background(), tbl, source([]change{{line{1, "b", 2, ""}, false}}), byKey)
	if !failure.Is(err, failure.Config) {
		t.Fatalf("append-only: %v", err)
	}
	_, err = Merge(context.Background(), tbl, source([]change{{line{1, "b", 2, ""}, false}}), MergeOptions{Keys: []string{"part"}, DeleteColumn: "deleted"})
	if !failure.Is(err, failure.SchemaConflict) {
		t.Fatalf("null key: %v", err)
	}
}

// model is what a merge should do.
type model map[int64]line

func (m model) apply(changes []change, ignoreOlder bool) {
	last := map[int64]change{}
	for _, c := range changes {
		if had, ok := last[c.id]; !ok || c.seq >= had.seq {
			last[c.id] = c
		}
	}
	for id, c := range last {
		had, ok := m[id]
		switch {
		case ignoreOlder && ok && had.seq > c.seq:
		case c.deleted:
			delete(m, id)
		default:
			m[id] = c.line
		}
	}
}

func (m model) lines() []line {
	out := make([]line, 0, len(m))
	for _, l := range m {
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b line) int { return int(a.id - b.id) })
	return out
}

// A stream of batches is delivered with redeliveries: after any batch, batches
// from an earlier one on come again in order, as after a crash.
func TestMergeConvergesUnderReplay(t *testing.T) {
	runs := 12
	if testing.Short() {
		runs = 4
	}
	for n := range runs {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Logf("seed %d", seed)
			replay(t, rand.New(rand.NewPCG(seed, 1)), n%2 == 0, n%3 == 0)
		})
	}
}

func replay(t *testing.T, rng *rand.Rand, partitioned, remembered bool) {
	batches := make([][]change, 8)
	seq := int64(0)
	for b := range batches {
		for range 1 + rng.IntN(12) {
			seq++
			id := int64(rng.IntN(20))
			// A key stays in its partition, or moves: both must work.
			part := string(rune('a' + rng.IntN(3)))
			batches[b] = append(batches[b], change{line{id, fmt.Sprint("v", seq), seq, part}, rng.IntN(4) == 0})
		}
		rng.Shuffle(len(batches[b]), func(i, j int) { batches[b][i], batches[b][j] = batches[b][j], batches[b][i] })
	}
	want := model{}
	for _, b := range batches {
		want.apply(b, false)
	}
	tbl, _ := localTable(t)
	o := CreateOptions{}
	if partitioned {
		o.PartitionColumns = []string{"part"}
	}
	create(t, tbl, o)
	for b := 0; b < len(batches); b++ {
		if b > 0 && rng.IntN(3) == 0 {
			b -= rng.IntN(b + 1) // the checkpoint was older than the table
		}
		opts := byKey
		if remembered {
			opts.TxnAppID, opts.TxnVersion = "q", int64(b)
		}
		merge(t, tbl, batches[b], opts)
		if rng.IntN(4) == 0 {
			if _, err := Optimize(context.Background(), tbl, OptimizeOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := contents(t, tbl); !slices.Equal(got, want.lines()) {
		t.Fatalf("got  %v\nwant %v", got, want.lines())
	}
	// Without deletes the order of whole batches does not matter either.
	shuffled, _ := localTable(t)
	create(t, shuffled, o)
	want = model{}
	opts := byKey
	opts.IgnoreOlder = true
	for _, i := range rng.Perm(len(batches)) {
		var kept []change
		for _, c := range batches[i] {
			c.deleted = false
			kept = append(kept, c)
		}
		merge(t, shuffled, kept, opts)
	}
	for _, b := range batches {
		for _, c := range b {
			c.deleted = false
			want.apply([]change{c}, true)
		}
	}
	if got := contents(t, shuffled); !slices.Equal(got, want.lines()) {
		t.Fatalf("out of order: got  %v\nwant %v", got, want.lines())
	}
}

func TestMergesThatRaceEndAsIfOneAfterTheOther(t *testing.T) {
	tbl, dir := localTable(t)
	create(t, tbl, CreateOptions{})
	mustAppend(t, tbl, ids(0, 4), AppendOptions{})
	done := make(chan error)
	for w := range int64(4) {
		go func() {
			mine := openDir(t, dir)
			var err error
			for i := range int64(5) {
				_, e := Merge(context.Background(), mine, source([]change{{line{w, "w", 10 + i, ""}, false}, {line{100 + w*10 + i, "new", 1, ""}, false}}), byKey)
				if e != nil {
					err = e
				}
			}
			done <- err
		}()
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	got := contents(t, tbl)
	if len(got) != 4+20 {
		t.Fatalf("%d rows: %v", len(got), got)
	}
	for _, l := range got[:4] {
		if l.seq != 14 {
			t.Fatalf("an update was lost: %v", l)
		}
	}
}
