package checkpoint

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore"
)

// still is a clock that stands.
type still struct{}

func (still) Now() time.Time                                   { return noon }
func (still) Sleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

const (
	query   = "bronze"
	lineage = "11111111-0000-0000-0000-000000000001"
	foreign = "22222222-0000-0000-0000-000000000002"
	fresh   = "33333333-0000-0000-0000-000000000003"
	topicID = "topic-id-1"
)

// pos is the position with the given next offsets of partitions 0, 1, ….
func pos(next ...int64) batch.Position {
	k := &batch.KafkaPosition{ClusterID: "cluster-1"}
	for i, n := range next {
		k.Set("wiki", topicID, int32(i), batch.PartitionPosition{NextOffset: n, LastOffset: n - 1, LeaderEpoch: 4, Rows: n})
	}
	return batch.Position{Kafka: k}
}

// at is the position after batch n: ten offsets a batch in each of two partitions.
func at(n int64) batch.Position { return pos((n+1)*10, (n+1)*10) }

func planOf(n int64) Plan {
	return Plan{
		QueryID: lineage, BatchID: n, Epoch: marker.Epoch{Number: 3, Nonce: "three"},
		Start: at(n - 1), End: at(n), BatchTime: noon.Add(time.Duration(n) * time.Minute),
		Watermark: marker.Watermark{Micros: n * 1000}, Transform: "transform-1",
	}
}

// markerOf is the marker that the commit of planOf(n) leaves.
func markerOf(n int64) *marker.Marker {
	m := &marker.Marker{
		Format: 1, Kind: marker.KindStream, QueryName: query, QueryID: lineage, BatchID: n,
		Epoch: marker.Epoch{Number: 3, Nonce: "three"}, Attempt: fmt.Sprintf("attempt-%d", n),
		Position: at(n), Watermark: marker.Watermark{Micros: (n + 1) * 1000}, BatchTime: noon.Add(time.Duration(n) * time.Minute),
		Transform: "transform-1", Instance: "instance-1", RenewedAt: noon,
		State: []marker.StateFile{{Operator: "dedup", Path: fmt.Sprintf("state/dedup/%d-a.delta", n), SHA256: "x"}},
	}
	if n < 0 {
		m.Claim, m.State = true, nil
		return m
	}
	m.PlanHash = PlanHash(planOf(n))
	return m
}

// after is a checkpoint whose newest commit is n, -1 for none.
func after(n int64) Facts {
	f := Facts{Exists: true, Metadata: &Metadata{QueryID: lineage, QueryName: query, InstanceID: "instance-1"},
		HasState: func(marker.StateFile) bool { return true }}
	if n >= 0 {
		p := planOf(n)
		f.Plan, f.PlanHash = &p, PlanHash(p)
		f.Commit = &CommitEntry{QueryID: lineage, BatchID: n, Marker: markerOf(n)}
	}
	return f
}

// planned is a checkpoint whose newest commit is n and which has planned n+1.
func planned(n int64) Facts {
	f := after(n)
	p := planOf(n + 1)
	f.Plan, f.PlanHash = &p, PlanHash(p)
	return f
}

func mainSink(m *marker.Marker) SinkFacts {
	return SinkFacts{Name: "lake.bronze", Main: true, Exists: true, Identity: "uuid-main", Readable: true, Marker: m}
}

func sideSink(m *marker.Marker) SinkFacts {
	return SinkFacts{Name: "lake.dead", Exists: true, Identity: "uuid-dead", Readable: true, Marker: m}
}

func self() Self {
	return Self{QueryName: query, InstanceID: "instance-1", NewQueryID: fresh, Transform: "transform-1", Now: noon, Lease: 30 * time.Second}
}

func source() SourceFacts { return SourceFacts{Assigned: pos(0, 0).Kafka} }

func wantOutcome(t *testing.T, d Decision, want Outcome) {
	t.Helper()
	if d.Outcome != want {
		t.Fatalf("outcome %s, want %s\n%s\n%s", d.Outcome, want, d.Reason, d.Hint)
	}
}

func newLog(t *testing.T) (*Log, *objstore.Memory) {
	t.Helper()
	m := objstore.NewMemory(still{})
	l := Open(m, query)
	if _, err := l.CreateMetadata(t.Context(), Metadata{QueryID: lineage, InstanceID: "instance-1", CreatedAt: noon}); err != nil {
		t.Fatal(err)
	}
	return l, m
}

// fill writes plans and commits of batches from..to, and returns the log.
func fill(t *testing.T, l *Log, from, to int64) {
	t.Helper()
	for n := from; n <= to; n++ {
		if _, err := l.WritePlan(t.Context(), planOf(n)); err != nil {
			t.Fatal(err)
		}
		if err := l.WriteCommit(t.Context(), CommitEntry{QueryID: lineage, BatchID: n, Marker: markerOf(n)}); err != nil {
			t.Fatal(err)
		}
	}
}

func gather(t *testing.T, l *Log) Facts {
	t.Helper()
	f, err := l.Gather(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return f
}
