package delta

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/objstore"
)

// rowSchema is a table of versioned rows.
var rowSchema = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64},
	{Name: "name", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "seq", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
	{Name: "at", Type: batch.Timestamp, Nullable: true},
	{Name: "part", Type: arrow.BinaryTypes.String, Nullable: true},
}, nil)

type line struct {
	id   int64
	name string
	seq  int64
	part string
}

func rows(lines ...line) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, rowSchema)
	defer b.Release()
	for _, l := range lines {
		b.Field(0).(*array.Int64Builder).Append(l.id)
		b.Field(1).(*array.StringBuilder).Append(l.name)
		b.Field(2).(*array.Int64Builder).Append(l.seq)
		b.Field(3).(*array.TimestampBuilder).Append(arrow.Timestamp(1_700_000_000_000_000 + l.seq*1500))
		if l.part == "" {
			b.Field(4).AppendNull()
		} else {
			b.Field(4).(*array.StringBuilder).Append(l.part)
		}
	}
	return b.NewRecordBatch()
}

func ids(from, n int64) arrow.RecordBatch {
	lines := make([]line, n)
	for i := range lines {
		lines[i] = line{id: from + int64(i), name: "n", seq: 1}
	}
	return rows(lines...)
}

func one(r arrow.RecordBatch) []arrow.RecordBatch { return []arrow.RecordBatch{r} }

func localTable(t testing.TB) (*Table, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "table")
	return openDir(t, dir), dir
}

func openDir(t testing.TB, dir string) *Table {
	t.Helper()
	s, err := OpenLocal(dir, objstore.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return Open(s, Options{Warn: func(err error) { t.Error("warned:", err) }})
}

func create(t testing.TB, tbl *Table, o CreateOptions) *Snapshot {
	t.Helper()
	s, err := tbl.Create(context.Background(), rowSchema, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustAppend(t testing.TB, tbl *Table, rec arrow.RecordBatch, o AppendOptions) AppendResult {
	t.Helper()
	r, err := Append(context.Background(), tbl, one(rec), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// contents reads the table: id → name@seq, in order of ids; an id that occurs
// twice is listed twice.
func contents(t testing.TB, tbl *Table) []line {
	t.Helper()
	out, err := readAll(tbl)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func readAll(tbl *Table) ([]line, error) {
	s, err := tbl.Snapshot(context.Background())
	if err != nil {
		return nil, err
	}
	var out []line
	err = tbl.Scan(context.Background(), s, ScanOptions{}, func(rec arrow.RecordBatch) error {
		defer rec.Release()
		for i := range int(rec.NumRows()) {
			l := line{id: rec.Column(0).(*array.Int64).Value(i), name: rec.Column(1).(*array.String).Value(i), seq: rec.Column(2).(*array.Int64).Value(i)}
			if p := rec.Column(4).(*array.String); p.IsValid(i) {
				l.part = p.Value(i)
			}
			out = append(out, line{l.id, string([]byte(l.name)), l.seq, string([]byte(l.part))})
		}
		return nil
	})
	slices.SortFunc(out, func(a, b line) int { return int(a.id - b.id) })
	return out, err
}

// python is the interpreter with deltalake.
func python(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts Python; skipped under -short")
	}
	if p := os.Getenv("WEIR_PYTHON"); p != "" {
		return p
	}
	if p, err := filepath.Abs("../../.cache/venv/bin/python"); err == nil {
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}
	t.Skip("no Python with deltalake and pyarrow: set WEIR_PYTHON")
	return ""
}

type pyTable struct {
	Version, Rows, Distinct, Sum, Files int64
	Txns                                map[string]*int64
}

// deltaRS reads a table with delta-rs.
func deltaRS(t *testing.T, dir, column string, appIDs ...string) pyTable {
	t.Helper()
	py := python(t)
	raw := script(t, py, append([]string{"testdata/read.py", dir, column}, appIDs...)...)
	var out pyTable
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatalf("%v\n%s", err, raw)
	}
	return out
}

func script(t *testing.T, py string, args ...string) []byte {
	t.Helper()
	raw, err := exec.CommandContext(t.Context(), py, args...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			raw = exit.Stderr
		}
		t.Fatalf("%v\n%s", err, raw)
	}
	return bytes.TrimSpace(raw)
}

// movedClock is the machine's clock, moved by hand; nobody waits by it.
type movedClock struct{ by time.Duration }

func (c *movedClock) Now() time.Time                                   { return clock.System{}.Now().Add(c.by) }
func (c *movedClock) Sleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }
