package lake_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/catalogtest"
	"github.com/weirlake/weir/internal/objstore/s3"
)

// motoKeys are any keys.
var motoKeys = s3.Credentials{AccessKeyID: "test", SecretAccessKey: "hunter2"}

// motoIgnores is why nothing races on moto itself.
const motoIgnores = "moto's Glue ignores VersionId: the last of two racing commits wins there. AWS refuses the first one's loser (ConcurrentModificationException), which the suite tries through a proxy that does the same"

func glueConfig(t *testing.T, moto *catalogtest.Server, endpoint, bucket string) lake.Config {
	t.Helper()
	stores, err := s3.NewStores(s3.Config{Endpoint: "http://" + moto.Addr(), Region: "us-east-1", PathStyle: true, Credentials: motoKeys})
	if err != nil {
		t.Fatal(err)
	}
	return lake.Config{
		Type: lake.TypeGlue, Warehouse: "s3://" + bucket + "/warehouse", Stores: stores,
		Glue: lake.Glue{AWS: s3.Config{Region: "us-east-1", Endpoint: endpoint, Credentials: motoKeys, BackOffMax: 20 * time.Millisecond}},
	}
}

func TestGlueByMoto(t *testing.T) {
	moto := catalogtest.StartMoto(t)
	moto.Bucket("lake")
	for _, c := range []subtest{
		{"Conformance", glueConformance},
		{"ConformanceWhereVersionsAreLookedAt", glueVersioned},
		{"EveryWayThatItCanBeWrongIsSaid", glueErrors},
		{"AnotherEnginesTableIsLeftAlone", glueForeign},
		{"ThrottledCommitIsSentAgainAndMadeOnce", glueThrottled},
		{"UpdateKeepsWhatOthersWroteIntoTheEntry", glueKeeps},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, moto) })
	}
}

var glueNamespaces atomic.Int64

func glueHarness(moto *catalogtest.Server, endpoint string) catalogtest.Harness {
	return catalogtest.Harness{
		Namespace: fmt.Sprintf("ns%d", glueNamespaces.Add(1)),
		Open:      func(t *testing.T) *lake.Catalog { return open(t, glueConfig(t, moto, endpoint, "lake")) },
		Faulty: func(t *testing.T) (*lake.Catalog, catalogtest.Faults) {
			line := catalogtest.NewGlueLine(t, moto)
			return open(t, glueConfig(t, moto, line.URL(), "lake")), line
		},
		NotKilled: "moto keeps everything in memory: what it held is gone after a kill",
		Flat:      "Glue has databases and tables in them, nothing deeper",
	}
}

func glueConformance(t *testing.T, moto *catalogtest.Server) {
	catalogtest.Run(t, "Glue: moto, an emulation", func(*testing.T) catalogtest.Harness {
		h := glueHarness(moto, "http://"+moto.Addr())
		h.Unconditional = motoIgnores
		return h
	})
}

func glueVersioned(t *testing.T, moto *catalogtest.Server) {
	line := catalogtest.NewGlueLine(t, moto)
	catalogtest.Run(t, "Glue: moto behind a proxy that checks VersionId as AWS does", func(*testing.T) catalogtest.Harness {
		return glueHarness(moto, line.URL())
	})
}

func glueErrors(t *testing.T, moto *catalogtest.Server) {
	line := catalogtest.NewGlueLine(t, moto)
	for code, want := range map[string]string{
		"AccessDeniedException":         "glue:GetTable",
		"UnrecognizedClientException":   "AWS_*",
		"InvalidSignatureException":     "AWS_*",
		"InvalidInputException":         "catalogId",
		"GlueEncryptionException":       "encrypted",
		"UnknownOperationException/404": "catalog.glue.endpoint",
	} {
		name, status, _ := strings.Cut(code, "/")
		line.Refuse = func(string) (int, string) {
			if status == "404" {
				return http.StatusNotFound, name
			}
			return http.StatusBadRequest, name
		}
		cfg := glueConfig(t, moto, line.URL(), "lake")
		wrong(t, cfg, failure.Config, name)
		_, err := lake.Open(context.Background(), cfg)
		if f := new(failure.Error); !errors.As(err, &f) || !strings.Contains(f.Hint, want) {
			t.Errorf("%s: the way out does not name %s: %+v", name, want, err)
		}
	}
	line.Refuse = func(string) (int, string) { return http.StatusInternalServerError, "InternalServiceException" }
	wrong(t, glueConfig(t, moto, line.URL(), "lake"), failure.Unreachable, "InternalServiceException")
	wrong(t, glueConfig(t, moto, "http://"+nobody(t), "lake"), failure.Unreachable, "the Glue catalog in us-east-1 at http://")
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_CONFIG_FILE", "/nonexistent")
	cfg := glueConfig(t, moto, line.URL(), "lake")
	cfg.Glue.AWS.Region = ""
	wrong(t, cfg, failure.Config, "no AWS region")

	c := open(t, glueConfig(t, moto, "http://"+moto.Addr(), "lake"))
	for ident, want := range map[string]string{"a.b.c": "database.table", "Bronze.events": "lower case"} {
		_, err := c.LoadTable(context.Background(), strings.Split(ident, "."))
		if !failure.Is(err, failure.Config) || !strings.Contains(fmt.Sprintf("%v", err), "Glue") {
			t.Errorf("%s: %v, want a word on %s", ident, err, want)
		}
	}
}

// glueForeign: an entry of Hive's under the name of a table is neither taken for
// a missing table nor overwritten.
func glueForeign(t *testing.T, moto *catalogtest.Server) {
	c := open(t, glueConfig(t, moto, "http://"+moto.Addr(), "lake"))
	ident := table.Identifier{"foreign", "events"}
	if _, err := c.EnsureTable(context.Background(), ident, catalogtest.Schema, catalogtest.Spec(), nil); err != nil {
		t.Fatal(err)
	}
	catalogtest.GlueCall(t, moto, "UpdateTable", map[string]any{"DatabaseName": "foreign", "TableInput": map[string]any{
		"Name": "events", "TableType": "EXTERNAL_TABLE", "Parameters": map[string]string{"classification": "json"}}})
	if _, err := c.EnsureTable(context.Background(), ident, catalogtest.Schema, catalogtest.Spec(), nil); !failure.Is(err, failure.Config) || errors.Is(err, lake.ErrNoTable) {
		t.Fatalf("%v", err)
	}
}

func glueThrottled(t *testing.T, moto *catalogtest.Server) {
	line := catalogtest.NewGlueLine(t, moto)
	c := open(t, glueConfig(t, moto, line.URL(), "lake"))
	tbl, err := c.EnsureTable(context.Background(), table.Identifier{"throttled", "events"}, catalogtest.Schema, catalogtest.Spec(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var refused atomic.Int64
	line.Refuse = func(operation string) (int, string) {
		if operation == "UpdateTable" && refused.Add(1) <= 3 {
			return http.StatusBadRequest, "ThrottlingException"
		}
		return 0, ""
	}
	after, err := c.Commit(context.Background(), tbl, lake.Change{Summary: map[string]string{"weir.n": "1"}})
	if err != nil {
		t.Fatal(err)
	}
	if n := refused.Load(); n != 4 || len(after.Metadata().Snapshots()) != 1 {
		t.Errorf("%d updates, %d snapshots", n, len(after.Metadata().Snapshots()))
	}
	line.Refuse = func(operation string) (int, string) {
		if operation == "UpdateTable" {
			return http.StatusBadRequest, "OperationTimeoutException"
		}
		return 0, ""
	}
	if _, err := c.Commit(context.Background(), after, lake.Change{}); !errors.Is(err, lake.ErrUnknown) {
		t.Errorf("a time-out within Glue: %v", err)
	}
}

func glueKeeps(t *testing.T, moto *catalogtest.Server) {
	c := open(t, glueConfig(t, moto, "http://"+moto.Addr(), "lake"))
	tbl, err := c.EnsureTable(context.Background(), table.Identifier{"kept", "events"}, catalogtest.Schema, catalogtest.Spec(), nil)
	if err != nil {
		t.Fatal(err)
	}
	entry := catalogtest.GlueCall(t, moto, "GetTable", map[string]any{"DatabaseName": "kept", "Name": "events"})["Table"].(map[string]any)
	input := map[string]any{"Name": "events", "TableType": entry["TableType"], "Owner": "alice", "Retention": 7,
		"Description": "what the wikis do", "StorageDescriptor": entry["StorageDescriptor"], "Parameters": entry["Parameters"]}
	input["Parameters"].(map[string]any)["lake.owner"] = "team-a"
	catalogtest.GlueCall(t, moto, "UpdateTable", map[string]any{"DatabaseName": "kept", "TableInput": input})
	if _, err := c.Commit(context.Background(), tbl, lake.Change{}); err != nil {
		t.Fatal(err)
	}
	entry = catalogtest.GlueCall(t, moto, "GetTable", map[string]any{"DatabaseName": "kept", "Name": "events"})["Table"].(map[string]any)
	params := entry["Parameters"].(map[string]any)
	if entry["Owner"] != "alice" || entry["Description"] != "what the wikis do" || params["lake.owner"] != "team-a" {
		t.Errorf("the entry is now %v", entry)
	}
	if params["previous_metadata_location"] != tbl.MetadataLocation() || params["metadata_location"] == tbl.MetadataLocation() {
		t.Errorf("locations %v", params)
	}
}
