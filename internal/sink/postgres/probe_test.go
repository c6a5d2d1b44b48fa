package postgres

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake/catalogtest"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
)

func TestAProbeLeavesNothingBehindAndNamesTheRightsThatAreMissing(t *testing.T) {
	server := catalogtest.StartPostgres(t)
	d := database{server, server.NewDatabase()}
	ctx := context.Background()
	tables := "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace"
	for _, upsert := range []bool{false, true} {
		s := d.open(t, "q", func(o *Options) {
			if o.Upsert = upsert; upsert {
				o.Keys = []string{"id"}
			}
		})
		if err := s.Probe(ctx); err != nil {
			t.Errorf("upsert %v: %v", upsert, err)
		}
		if n := ask[int64](t, d, tables); n != 0 {
			t.Errorf("upsert %v: it left %d relations", upsert, n)
		}
		if f, err := s.Facts(ctx, "q"); err != nil || f.Exists {
			t.Errorf("facts after a probe: %+v, %v", f, err)
		}
	}
	// A target of somebody else's making, and a user who may only look.
	d.exec(t, "CREATE TABLE edits (id bigint PRIMARY KEY, note text)",
		"DROP ROLE IF EXISTS looker", "CREATE ROLE looker LOGIN PASSWORD 'planted-look-31'",
		"REVOKE TEMPORARY ON DATABASE "+quote(d.name)+" FROM PUBLIC",
		"CREATE TABLE weir_tables (table_name text PRIMARY KEY, identity text NOT NULL, table_oid oid NOT NULL)",
		`CREATE TABLE weir_markers (table_name text NOT NULL, query_name text NOT NULL, query_id text NOT NULL, epoch bigint NOT NULL,
			batch_id bigint NOT NULL, position text NOT NULL, marker text NOT NULL, version bigint NOT NULL, written_at timestamptz NOT NULL,
			PRIMARY KEY (table_name, query_name))`,
		"GRANT CREATE ON SCHEMA public TO looker", "GRANT SELECT ON edits TO looker", "GRANT ALL ON weir_tables, weir_markers TO looker")
	as := func(user, password string) *Sink {
		u, err := url.Parse(d.url())
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.UserPassword(user, password)
		return d.open(t, "q", func(o *Options) { o.URL = u.String() })
	}
	err := as("looker", "planted-look-31").Probe(ctx)
	if !failure.Is(err, failure.Config) || !strings.Contains(err.Error(), `INSERT on "public"."edits"`) || !strings.Contains(err.Error(), "TEMPORARY") {
		t.Errorf("a user who may only look: %v", err)
	}
	if err := d.open(t, "q", nil).Probe(ctx); err != nil {
		t.Errorf("the owner: %v", err)
	}
	if n := ask[int64](t, d, "SELECT count(*) FROM weir_tables"); n != 0 {
		t.Errorf("a probe left an identity")
	}
	d.exec(t, "ALTER TABLE edits DROP COLUMN note")
	if err := d.open(t, "q", nil).Probe(ctx); !failure.Is(err, failure.SchemaConflict) && !failure.Is(err, failure.Config) {
		t.Errorf("a target without a column: %v", err)
	}
}

func TestAProbeDoesNotDisturbAQueryThatHoldsItsClaim(t *testing.T) {
	server := catalogtest.StartPostgres(t)
	d := database{server, server.NewDatabase()}
	ctx := context.Background()
	run := d.open(t, "q", nil)
	_, moved, err := run.Claim(ctx, sink.Facts{}, &marker.Marker{
		Format: marker.Format, Kind: marker.KindStream, QueryName: "q", QueryID: "6f1d6c3e-0000-4000-8000-000000000001", BatchID: -1,
		Position:  batch.Position{Kafka: &batch.KafkaPosition{ClusterID: "c"}},
		Watermark: marker.Watermark{Micros: marker.MinTime}, Instance: "test", Claim: true, Attempt: "a",
		Epoch: marker.Epoch{Number: 1, Nonce: "n"},
	})
	if err != nil || moved {
		t.Fatalf("claim: moved %v, %v", moved, err)
	}
	if err := d.open(t, "q", nil).Probe(ctx); err != nil {
		t.Fatal(err)
	}
	f, err := run.Facts(ctx, "q")
	if err != nil || f.Marker == nil || f.HeadID != 1 {
		t.Errorf("after a probe the claim reads %+v, %v", f, err)
	}
}
