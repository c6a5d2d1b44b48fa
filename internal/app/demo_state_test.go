package app

import (
	"strings"
	"testing"

	"github.com/weirlake/weir/internal/failure"
)

func TestADemoGoesOnToMoreEventsAndNotBackToFewer(t *testing.T) {
	a := App{}
	a.fillOptions()
	cfg := DemoConfig{Data: t.TempDir(), Events: 100, Seed: 1, Delivery: "at-least-once"}
	first, err := a.loadDemoState(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		events int64
		fine   bool
	}{{100, true}, {99, false}, {150, true}, {100, false}, {0, true}, {149, false}, {150, true}} {
		cfg.Events = c.events
		st, err := a.loadDemoState(cfg)
		if (err == nil) != c.fine || (err != nil && !failure.Is(err, failure.Config)) {
			t.Errorf("--events %d: %v", c.events, err)
		}
		if err == nil && !st.Start.Equal(first.Start) {
			t.Errorf("--events %d: the stream begins at another time", c.events)
		}
	}
	cfg.Seed = 2
	if _, err := a.loadDemoState(cfg); !failure.Is(err, failure.Config) {
		t.Errorf("another seed: %v", err)
	}
}

func TestADemoStaysWhereItWasPut(t *testing.T) {
	a := App{}
	a.fillOptions()
	cfg := DemoConfig{Data: t.TempDir(), Seed: 1, Delivery: "at-least-once"}
	for _, c := range []struct {
		places DemoPlaces
		want   string // in the error; empty: it is fine
	}{
		{DemoPlaces{S3Endpoint: "http://h:9000"}, "goes with --s3"},
		{DemoPlaces{S3: "/tmp/x"}, "names no bucket"},
		{DemoPlaces{S3: "s3://"}, "names no bucket"},
		{DemoPlaces{S3: "s3://lake/p", S3Endpoint: "no url"}, "endpoint"},
		{DemoPlaces{Catalog: "mysql://weir:hunter2@h/db"}, "catalog"},
		{DemoPlaces{S3: "s3://lake/p", S3Endpoint: "http://h:9000", Catalog: "postgres://weir:hunter2@h/db"}, ""},
	} {
		cfg.DemoPlaces = c.places
		p, err := demoPipeline(cfg)
		if c.want != "" {
			if !failure.Is(err, failure.Config) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%+v: %v", c.places, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if p.Warehouse != "s3://lake/p/warehouse" || CheckpointDir(p, p.Queries[0]) != "s3://lake/p/checkpoints/bronze" ||
			p.Stores[0].Endpoint != "http://h:9000" || p.Catalog.URI.Reveal() != c.places.Catalog || p.Kafka.Embedded == nil {
			t.Errorf("%+v: %+v", c.places, p)
		}
		if _, err := a.loadDemoState(cfg); err != nil {
			t.Fatal(err)
		}
	}
	cfg.S3 = "s3://lake/other"
	if _, err := a.loadDemoState(cfg); !failure.Is(err, failure.Config) || !strings.Contains(err.Error(), "s3://lake/p,") || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("other places: %v", err)
	}
}
