package bench

import (
	"context"
	"io"
	"testing"

	"github.com/weirlake/weir/internal/cassandratest"
	"github.com/weirlake/weir/internal/clock"
)

func TestFilesAnAPIAndAProgramAreMeasured(t *testing.T) {
	b := &bench{o: Options{Clock: clock.System{}, Progress: io.Discard, Seed: 1}, dir: t.TempDir()}
	records, err := b.sinkRows()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range b.deliveredPlans(context.Background(), t.TempDir(), records[:1], 2) {
		if took, err := p.run(); err != nil || took <= 0 {
			t.Errorf("%s: %v after %s", p.name, err, took)
		}
	}
}

func TestACassandraIsMeasured(t *testing.T) {
	n := cassandratest.Start(t)
	n.NewKeyspace(n.Session(), "bench")
	b := &bench{o: Options{Clock: clock.System{}, Seed: 1, Cassandra: n.Host() + "/bench"}}
	records, err := b.sinkRows()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second run meets the first one's markers
		if took, err := b.cassandraPlan(context.Background(), records[:1], 2).run(); err != nil || took <= 0 {
			t.Errorf("%v after %s", err, took)
		}
	}
}
