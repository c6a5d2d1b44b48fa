package engine_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/sinktest"
)

// memTable is a table in memory that outlives the processes that use it.
type memTable struct {
	name  string
	power *power

	mu      sync.Mutex
	uuid    string // empty where the table does not exist
	made    int
	seq     int64
	head    *memSnapshot
	markers map[string]*marker.Marker
	staged  map[string]*memFile
	// log is the life of the table: one line a claim or commit.
	log []string
}

// memSnapshot is one commit. cut is true where its parents have expired.
type memSnapshot struct {
	seq     int64
	parent  *memSnapshot
	cut     bool
	attempt string
	files   []*memFile
	markers map[string]*marker.Marker
}

type memFile struct {
	path string
	recs []arrow.RecordBatch
	rows int64
}

// conflictsMax bounds how often a commit meets a moved head.
const conflictsMax = 100

func newMemTable(name string, p *power) *memTable {
	return &memTable{name: name, power: p, markers: map[string]*marker.Marker{}, staged: map[string]*memFile{}}
}

// drop takes the table away.
func (m *memTable) drop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.uuid, m.seq, m.head, m.markers = "", 0, nil, map[string]*marker.Marker{}
}

// rollBack sets the head back by n commits; properties stay, as on Iceberg.
func (m *memTable) rollBack(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for range n {
		m.head = m.head.parent
	}
}

// expire forgets everything but the head.
func (m *memTable) expire() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.head != nil {
		m.head.parent, m.head.cut = nil, true
	}
}

// foreign commits files as another engine does, without a marker.
func (m *memTable) foreign(change func(files []*memFile) []*memFile) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var files []*memFile
	if m.head != nil {
		files = slices.Clone(m.head.files)
	}
	m.push("foreign", change(files))
}

// push adds a snapshot; the caller holds mu.
func (m *memTable) push(attempt string, files []*memFile) {
	m.seq++
	m.head = &memSnapshot{seq: m.seq, parent: m.head, attempt: attempt, files: files, markers: maps.Clone(m.markers)}
}

// headSeq is 0 on an empty table; the caller holds mu.
func (m *memTable) headSeq() int64 {
	if m.head == nil {
		return 0
	}
	return m.head.seq
}

// marker is the query's memory, nil if there is none.
func (m *memTable) marker(query string) *marker.Marker {
	m.mu.Lock()
	defer m.mu.Unlock()
	return copyOf(m.markers[query])
}

func copyOf(m *marker.Marker) *marker.Marker {
	if m == nil {
		return nil
	}
	s, err := m.Encode()
	if err != nil {
		panic(err)
	}
	out, err := marker.Decode(s)
	if err != nil {
		panic(err)
	}
	return out
}

// keys are the live rows by key, how often each is there.
func (m *memTable) keys(key func(rec arrow.RecordBatch, row int) string) map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]int{}
	if m.head == nil {
		return out
	}
	for _, f := range m.head.files {
		for _, rec := range f.recs {
			for i := range int(rec.NumRows()) {
				out[key(rec, i)]++
			}
		}
	}
	return out
}

// memSink is the sink of one process over a memTable.
type memSink struct {
	t     *memTable
	query string
	side  bool
	// before and after are the conformance suite's interventions.
	before, after func() error
	uuid          string // of the table that was claimed
}

var _ sink.Sink = (*memSink)(nil)

func (s *memSink) Name() string { return s.t.name }
func (s *memSink) Close() error { return nil }

func (s *memSink) Facts(_ context.Context, queryName string) (sink.Facts, error) {
	if err := s.t.power.check(); err != nil {
		return sink.Facts{}, err
	}
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	return s.facts(queryName), nil
}

func (s *memSink) facts(queryName string) sink.Facts {
	t := s.t
	f := sink.Facts{Exists: t.uuid != "", Identity: t.uuid, HeadSequence: t.headSeq(), HeadID: t.headSeq(), Handle: t.headSeq(), Others: map[string]*marker.Marker{}}
	for name, m := range t.markers {
		if name == queryName {
			f.Marker = copyOf(m)
		} else if m.Kind == marker.KindStream {
			f.Others[name] = copyOf(m)
		}
	}
	if f.Marker != nil {
		f.Rewound = t.rewound(f.Marker)
	}
	return f
}

func (m *memTable) rewound(mk *marker.Marker) string {
	if m.headSeq() < mk.BaseSequence {
		return fmt.Sprintf("the head is %d, the marker was built on %d", m.headSeq(), mk.BaseSequence)
	}
	for s := m.head; s != nil; s = s.parent {
		if s.attempt == mk.Attempt || s.cut {
			return ""
		}
	}
	return "no snapshot holds attempt " + mk.Attempt
}

func (s *memSink) Claim(_ context.Context, want sink.Facts, m *marker.Marker) (sink.Permit, bool, error) {
	if want.Marker != nil && !m.Epoch.Newer(want.Marker.Epoch) {
		return sink.Permit{}, false, failure.New(failure.Fenced, "epoch %s does not come after %s", m.Epoch, want.Marker.Epoch)
	}
	var none []*memFile
	_, _, moved, err := s.write(fmt.Sprintf("%s claim %d", s.t.name, m.BatchID), m, &none, func() (*marker.Marker, bool, error) {
		if got := s.t.markers[m.QueryName]; got != nil && got.Attempt == m.Attempt {
			return got, false, nil
		}
		seq, _ := want.Handle.(int64)
		return nil, s.t.uuid != want.Identity || s.t.headSeq() != seq, nil
	})
	if err != nil || moved {
		return sink.Permit{}, moved, err
	}
	s.uuid = s.t.uuid
	return sink.NewPermit(s, m.Epoch), false, nil
}

// write makes one commit after judge has looked at the table: found ends it,
// moved refuses it. A head that moves between judge and the commit is a
// conflict, and judge looks again.
func (s *memSink) write(op string, m *marker.Marker, files *[]*memFile, judge func() (*marker.Marker, bool, error)) (written, found *marker.Marker, moved bool, err error) {
	t := s.t
	for range conflictsMax {
		if err := t.power.check(); err != nil {
			return nil, nil, false, err
		}
		t.mu.Lock()
		found, moved, err := judge()
		seq, markers := t.headSeq(), maps.Clone(t.markers)
		t.mu.Unlock()
		if err != nil || moved || found != nil {
			return nil, found, moved, err
		}
		if err := sink.CheckOverlap(t.name, markers, m); err != nil {
			return nil, nil, false, err
		}
		if f := s.before; f != nil {
			s.before = nil
			if f() != nil {
				continue // the store is away: ask again
			}
		}
		t.mu.Lock()
		if t.headSeq() != seq {
			t.mu.Unlock()
			continue
		}
		if err := t.power.step(op); err != nil {
			t.mu.Unlock()
			return nil, nil, false, err
		}
		if t.uuid == "" {
			t.made++
			t.uuid = fmt.Sprintf("%s-%d", t.name, t.made)
		}
		w := copyOf(m)
		w.BaseSequence = t.headSeq()
		t.markers[m.QueryName] = w
		var live []*memFile
		if t.head != nil {
			live = slices.Clone(t.head.files)
		}
		t.push(m.Attempt, append(live, *files...))
		t.log = append(t.log, op)
		t.mu.Unlock()
		if f := s.after; f != nil {
			s.after = nil
			if f() != nil {
				continue // the answer was lost: judge finds out
			}
		}
		return copyOf(w), nil, false, nil
	}
	return nil, nil, false, failure.New(failure.Runtime, "the head of %s moved %d times", t.name, conflictsMax)
}

func (s *memSink) Commit(ctx context.Context, p sink.Permit, prev *marker.Marker, staged sink.Staged, m *marker.Marker) (sink.Committed, error) {
	if !p.IssuedBy(s) || m.Epoch != p.Epoch() || prev == nil || m.BatchID != prev.BatchID+1 || m.Claim || m.PlanHash == "" {
		return sink.Committed{}, errors.New("a commit that no engine makes")
	}
	if err := ctx.Err(); err != nil {
		return sink.Committed{}, err
	}
	fault.Reach(s.query, fault.CommitBefore)
	var files []*memFile
	conflicts := -1
	written, found, _, err := s.write(fmt.Sprintf("%s commit %d", s.t.name, m.BatchID), m, &files, func() (*marker.Marker, bool, error) {
		conflicts++
		found, err := s.judge(p, prev, m)
		if err != nil || found != nil {
			return found, false, err
		}
		files = files[:0]
		for _, f := range staged.Files {
			there, ok := s.t.staged[f.Path]
			if !ok {
				return nil, false, fmt.Errorf("%w: %s", sink.ErrStale, f.Path)
			}
			files = append(files, there)
		}
		return nil, false, nil
	})
	if err != nil {
		return sink.Committed{}, err
	}
	if found != nil {
		return sink.Committed{Marker: copyOf(found), Found: true, Conflicts: conflicts}, nil
	}
	return sink.Committed{Marker: written, SnapshotID: written.BaseSequence + 1, Conflicts: conflicts}, nil
}

// judge holds the rules of the commit; the caller holds mu.
func (s *memSink) judge(p sink.Permit, prev, m *marker.Marker) (*marker.Marker, error) {
	t, cur := s.t, s.t.markers[m.QueryName]
	switch {
	case t.uuid != s.uuid || cur == nil:
		return nil, failure.New(failure.Checkpoint, "%s was dropped", t.name)
	case t.rewound(cur) != "":
		return nil, failure.New(failure.Checkpoint, "%s went backwards: %s", t.name, t.rewound(cur))
	case cur.QueryID != m.QueryID, cur.Epoch.Newer(p.Epoch()), cur.Epoch.Number == p.Epoch().Number && cur.Epoch != p.Epoch():
		return nil, failure.New(failure.Fenced, "%s is held by epoch %s of %s", t.name, cur.Epoch, cur.QueryID)
	case cur.BatchID == m.BatchID && cur.PlanHash == m.PlanHash:
		return cur, nil
	case cur.BatchID >= m.BatchID:
		return nil, failure.New(failure.Fenced, "%s holds batch %d already", t.name, cur.BatchID)
	case cur.BatchID != prev.BatchID || !prev.Position.SameOffsets(cur.Position):
		return nil, failure.New(failure.Checkpoint, "%s is at batch %d, %s", t.name, cur.BatchID, cur.Position)
	}
	return nil, nil
}

func (s *memSink) Stage(_ context.Context, batchID int64, attempt string) (sink.Stage, error) {
	if err := s.t.power.check(); err != nil {
		return nil, err
	}
	return &memStage{s: s, batchID: batchID, attempt: attempt}, nil
}

type memStage struct {
	s       *memSink
	batchID int64
	attempt string
	f       memFile
}

func (st *memStage) Write(rec arrow.RecordBatch) error {
	st.f.recs = append(st.f.recs, rec)
	st.f.rows += rec.NumRows()
	return nil
}

func (st *memStage) Abort() {}

func (st *memStage) Close(context.Context) (sink.Staged, error) {
	out := sink.Staged{Attempt: st.attempt, Rows: st.f.rows}
	if st.f.rows == 0 {
		return out, nil
	}
	if err := st.s.t.power.step(fmt.Sprintf("%s stage %d", st.s.t.name, st.batchID)); err != nil {
		return out, err
	}
	st.f.path = fmt.Sprintf("%s/%d-%s", st.s.t.name, st.batchID, st.attempt)
	st.s.t.mu.Lock()
	st.s.t.staged[st.f.path] = &st.f
	st.s.t.mu.Unlock()
	out.Files = []sink.StagedFile{{Path: st.f.path, Rows: st.f.rows, Encoded: []byte("by path")}}
	return out, nil
}

func (s *memSink) RebuildScan(_ context.Context, m *marker.Marker, columns []string, timeColumn string, minMicros int64, emit func(arrow.RecordBatch) error) error {
	if err := s.t.power.check(); err != nil {
		return err
	}
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	at := s.t.head
	for x := s.t.head; x != nil; x = x.parent {
		if x.attempt == m.Attempt {
			at = x
		}
	}
	if at == nil {
		return nil
	}
	for _, f := range at.files {
		for _, rec := range f.recs {
			picked := pick(rec, columns, timeColumn, minMicros)
			if err := emit(picked); err != nil {
				return err
			}
		}
	}
	return nil
}

// pick is the columns of the rows from minMicros on.
func pick(rec arrow.RecordBatch, columns []string, timeColumn string, minMicros int64) arrow.RecordBatch {
	fields := make([]arrow.Field, len(columns))
	for i, c := range columns {
		fields[i] = rec.Schema().Field(rec.Schema().FieldIndices(c)[0])
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(fields, nil))
	defer b.Release()
	ts := rec.Column(rec.Schema().FieldIndices(timeColumn)[0]).(*array.Timestamp)
	for row := range int(rec.NumRows()) {
		if int64(ts.Value(row)) < minMicros {
			continue
		}
		for i, c := range columns {
			switch a := rec.Column(rec.Schema().FieldIndices(c)[0]).(type) {
			case *array.String:
				b.Field(i).(*array.StringBuilder).Append(a.Value(row))
			case *array.Timestamp:
				b.Field(i).(*array.TimestampBuilder).Append(a.Value(row))
			default:
				panic(fmt.Sprintf("column %s of type %s", c, a.DataType()))
			}
		}
	}
	return b.NewRecordBatch()
}

// TestTheSinkInMemoryConforms qualifies the fake for the tests of the engine.
func TestTheSinkInMemoryConforms(t *testing.T) {
	schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}}, nil)
	record := func(ids []int64) arrow.RecordBatch {
		b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
		defer b.Release()
		b.Field(0).(*array.Int64Builder).AppendValues(ids, nil)
		return b.NewRecordBatch()
	}
	sinktest.Run(t, func(*testing.T) sinktest.Harness {
		table := newMemTable("lake.events", newPower())
		return sinktest.Harness{
			Open: func(_ *testing.T, query string) sinktest.Opened {
				s := &memSink{t: table, query: query}
				return sinktest.Opened{
					Sink:       s,
					BeforeNext: func(f func() error) { s.before = f },
					AfterNext:  func(f func() error) { s.after = f },
				}
			},
			Record: record,
			IDs: func(*testing.T) []int64 {
				var out []int64
				for k, n := range table.keys(func(rec arrow.RecordBatch, row int) string {
					return fmt.Sprint(rec.Column(0).(*array.Int64).Value(row))
				}) {
					var id int64
					fmt.Sscan(k, &id)
					for range n {
						out = append(out, id)
					}
				}
				return out
			},
			Files: func(*testing.T) int {
				if table.head == nil {
					return 0
				}
				return len(table.head.files)
			},
			ForeignAppend: func(_ *testing.T, id int64) {
				table.foreign(func(files []*memFile) []*memFile {
					return append(files, &memFile{path: "foreign-" + clock.Nonce(), recs: []arrow.RecordBatch{record([]int64{id})}, rows: 1})
				})
			},
			ForeignRewrite: func(*testing.T) { table.foreign(func(files []*memFile) []*memFile { return files }) },
			RollBack:       func(_ *testing.T, n int) { table.rollBack(n) },
			ExpireAll:      func(*testing.T) { table.expire() },
			Drop:           func(*testing.T) { table.drop() },
		}
	})
}
