package tests

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// upsertFile is the lab with a stream of Debezium's envelopes that is landed in an
// Iceberg and in a Delta table.
const upsertFile = `  - name: iceberg
    from:
      kafka: {topics: [edits], startingOffsets: earliest, maxOffsetsPerTrigger: 120}
    trigger: {processingTime: 20ms}
    parse: &account
      columns:
        - {name: id, path: $.id, type: long, required: true}
        - {name: owner, path: $.owner, type: string}
        - {name: balance, path: $.balance, type: long}
        - {name: lsn, path: $.__source.lsn, type: long, required: true}
    deadLetter: {table: ops.dead_iceberg}
    to:
      iceberg: {table: bank.accounts, mode: upsert, keys: [id], orderBy: [lsn], changes: debezium}
  - name: delta
    from:
      kafka: {topics: [edits], startingOffsets: earliest, maxOffsetsPerTrigger: 120}
    trigger: {processingTime: 20ms}
    parse: *account
    deadLetter: {table: ops.dead_delta, format: delta}
    to:
      delta: {table: bank.accounts_delta, mode: upsert, keys: [id], orderBy: [lsn], changes: debezium}
ops: {progressTable: ops.stream_progress, flushInterval: 200ms}
`

// account is a row, and a change of one.
type account struct {
	lsn     int64
	owner   string
	balance int64
	deleted bool
}

// bank is a lab whose topic is a change stream, beside a plain map of what the
// tables have to hold.
type bank struct {
	*lab
	rng  *rand.Rand
	want map[int64]account
	lsn  int64
	dead int64
	keys int64
	// ordered: no change comes late.
	ordered bool
}

func newBank(t *testing.T, seed uint64) *bank {
	t.Helper()
	t.Logf("seed %d", seed)
	b := &bank{lab: newLab(t, 0), rng: rand.New(rand.NewPCG(seed, 1)), want: map[int64]account{}, keys: 60}
	raw, err := os.ReadFile(b.file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(string(raw), "  - name: bronze")
	_, tail, ok := strings.Cut(rest, "ops: {progressTable: ops.stream_progress, flushInterval: 200ms}\n")
	if !ok {
		t.Fatal("the lab's pipeline file has changed")
	}
	if err := os.WriteFile(b.file, []byte(head+upsertFile+tail), 0o644); err != nil {
		t.Fatal(err)
	}
	return b
}

// changes sends n changes, a key always to the same partition: inserts, updates,
// deletes with their tombstones, late ones (also of deleted keys), resent ones,
// and now and then something that is no envelope.
func (b *bank) changes(n int) {
	b.t.Helper()
	var records []*kgo.Record
	send := func(id int64, key, value string) {
		r := &kgo.Record{Topic: labTopic, Partition: int32(id % 2), Key: []byte(key)}
		if value != "" {
			r.Value = []byte(value)
		}
		records = append(records, r)
	}
	for range n {
		id := b.rng.Int64N(b.keys)
		b.lsn++
		c := account{lsn: b.lsn, owner: fmt.Sprintf("o'%d \"q\" é", b.lsn), balance: b.rng.Int64(), deleted: b.rng.IntN(4) == 0}
		if b.rng.IntN(5) == 0 && !b.ordered {
			c.lsn = max(1, b.lsn-b.rng.Int64N(200)) // late
		}
		key := fmt.Sprintf(`{"id":%d}`, id)
		row := fmt.Sprintf(`{"id":%d,"owner":%q,"balance":%d}`, id, c.owner, c.balance)
		before, after, op := "null", row, "u"
		if c.deleted {
			if before, after, op = row, "null", "d"; b.rng.IntN(2) == 0 {
				before = "null" // a table without replica identity
			}
		}
		value := fmt.Sprintf(`{"before":%s,"after":%s,"source":{"connector":"postgresql","lsn":%d},"op":"%s","ts_ms":1}`, before, after, c.lsn, op)
		if b.rng.IntN(3) == 0 {
			value = `{"schema":{"type":"struct"},"payload":` + value + `}`
		}
		send(id, key, value)
		if c.deleted {
			send(id, key, "")
		}
		if b.rng.IntN(10) == 0 {
			send(id, key, value) // resent
		}
		if b.rng.IntN(40) == 0 {
			send(id, key, `{"hello":1}`)
			b.dead++
		}
		if had, ok := b.want[id]; !ok || c.lsn >= had.lsn {
			b.want[id] = c
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := b.client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		b.t.Fatal(err)
	}
	b.sent += int64(len(records))
}

// exact lets three readers compare both tables with the map.
func (b *bank) exact() {
	b.t.Helper()
	got := map[string][][]any{}
	reader(b.t, &got, "rows_by_key.py", "--catalog", b.catalog(), "--table", "bank.accounts",
		"--delta", filepath.Join(b.dir, "warehouse", "bank", "accounts_delta"), "--column", "id", "--column", "lsn", "--column", "owner")
	var want [][]any
	for id, a := range b.want {
		if !a.deleted {
			want = append(want, []any{float64(id), float64(a.lsn), a.owner})
		}
	}
	slices.SortFunc(want, func(x, y []any) int { return cmp.Compare(x[0].(float64), y[0].(float64)) })
	for name, rows := range got {
		if !reflect.DeepEqual(rows, want) {
			b.t.Errorf("%s reads %d rows, want %d\n got %.900v\nwant %.900v", name, len(rows), len(want), rows, want)
		}
	}
	if len(got) != 3 {
		b.t.Errorf("%d readers", len(got))
	}
	var dead struct{ Rows int64 }
	reader(b.t, &dead, "count_delta.py", "--table", filepath.Join(b.dir, "warehouse", "ops", "dead_delta"))
	if dead.Rows != b.dead {
		b.t.Errorf("%d dead letters, want %d", dead.Rows, b.dead)
	}
	if b.t.Failed() {
		b.t.FailNow()
	}
}

// heldBy compares the rows of a store, by key, with the map.
func (b *bank) heldBy(held map[int64]account) {
	b.t.Helper()
	want := map[int64]account{}
	for id, a := range b.want {
		if !a.deleted {
			want[id] = a
		}
	}
	if !maps.Equal(held, want) {
		b.t.Fatalf("the store holds %d keys, want %d\n got %.900v\nwant %.900v", len(held), len(want), held, want)
	}
}

func TestAChangeStreamLandsInBothTablesAsInAPlainMapWhateverIsKilled(t *testing.T) {
	python(t)
	b := newBank(t, 11)
	b.changes(300)
	for _, step := range []string{"stage.file:2", "stage.state:1", "commit.side:1", "commit.before:1", "commit.metadata:1", "commit.swapped:2", "done.written:1"} {
		for _, query := range []string{"iceberg", "delta"} {
			b.crash(query + "/" + step)
			b.changes(60)
		}
	}
	b.run(exitOK)
	b.exact()
	// A lost checkpoint: positions and rows are the tables', what was deleted
	// before is forgotten. Every change from then on is newer.
	b.remove(b.checkpoint("iceberg"))
	b.remove(b.checkpoint("delta"))
	b.lsn += 1000
	b.changes(200)
	b.run(exitOK)
	b.exact()
	// The audit says that it has nothing to compare such tables with.
	_, errs, code := weir(t, nil, "audit", b.file)
	if code != exitConfig || !strings.Contains(errs, "bank.accounts") {
		t.Fatalf("exit %d\n%s", code, tail(errs))
	}
}
