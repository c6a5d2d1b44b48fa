package app

import (
	"strings"
	"testing"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/pipeline"
)

func TestTheSameBucketOnTwoServersHasTwoLocks(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	at := func(location string, stores ...pipeline.Store) string {
		a := &App{P: &pipeline.Pipeline{Stores: stores}}
		return a.lockDir(location)
	}
	here := pipeline.Store{Type: pipeline.StoreS3, Bucket: "lake", Endpoint: "http://127.0.0.1:9000"}
	there := pipeline.Store{Type: pipeline.StoreS3, Bucket: "lake", Endpoint: "http://127.0.0.1:9001"}
	const location = "s3://lake/checkpoints/q"
	dirs := map[string]bool{at(location, here): true, at(location, there): true, at(location): true}
	if len(dirs) != 3 || dirs[""] {
		t.Errorf("two servers and the provider share locks: %v", dirs)
	}
	if at(location, here) != at(location, here) {
		t.Error("the lock of one place changes")
	}
	if at("/data/checkpoints/q", here) != "/data/checkpoints/q" {
		t.Error("a local checkpoint's lock is not in its folder")
	}
	gcs := pipeline.Store{Type: pipeline.StoreGCS, Bucket: "lake", Endpoint: "http://127.0.0.1:4443"}
	if at("gs://lake/q", gcs) == at("gs://lake/q") {
		t.Error("two servers of Google's API share a lock")
	}
}

func TestAQueryMayBeLeftOutWhereThereIsOneOnly(t *testing.T) {
	p := &pipeline.Pipeline{File: "p.yaml", Queries: []pipeline.Query{{Name: "bronze"}}}
	if q, err := QueryByName(p, ""); err != nil || q.Name != "bronze" {
		t.Errorf("%v, %v", q.Name, err)
	}
	p.Queries = append(p.Queries, pipeline.Query{Name: "silver"})
	_, err := QueryByName(p, "")
	if !failure.Is(err, failure.Config) || !strings.Contains(err.Error(), "bronze, silver") {
		t.Errorf("the error does not say which there are: %v", err)
	}
}
