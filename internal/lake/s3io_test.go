package lake

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/objstore/s3"
	"github.com/weirlake/weir/internal/s3test"
)

const testBucket = "lake"

// openOnS3 is a catalog in a folder whose tables lie on S3.
func openOnS3(t *testing.T, endpoint string) *Catalog {
	t.Helper()
	stores, err := s3.NewStores(s3.Config{
		Endpoint: endpoint, Region: s3test.Region, PathStyle: true, BackOffMax: 20 * time.Millisecond,
		Credentials: s3.Credentials{AccessKeyID: s3test.AccessKeyID, SecretAccessKey: s3test.SecretAccessKey},
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open(context.Background(), Config{URI: filepath.Join(t.TempDir(), "catalog.db"), Warehouse: "s3://" + testBucket + "/wh", Stores: stores})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestTablesOnS3AreMadeCommittedExpiredAndKeepNoSettingsOfTheStore(t *testing.T) {
	srv := s3test.Start(t)
	srv.Bucket(testBucket)
	c := openOnS3(t, srv.Endpoint())
	tbl := ensure(t, c, "a.b")
	if !strings.HasPrefix(tbl.Location(), "s3://"+testBucket+"/wh/") {
		t.Fatalf("location %s", tbl.Location())
	}
	for range 12 {
		var err error
		if tbl, err = c.Commit(t.Context(), tbl, Change{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Expire(t.Context(), tbl, Retention{Keep: 2}); err != nil {
		t.Fatal(err)
	}
	fresh, err := c.LoadTable(t.Context(), tbl.Identifier())
	if err != nil {
		t.Fatal(err)
	}
	if len(fresh.Metadata().Snapshots()) != 2 || HeadOf(fresh) != HeadOf(tbl) {
		t.Errorf("%d snapshots, head %v", len(fresh.Metadata().Snapshots()), HeadOf(fresh))
	}
	for k := range fresh.Properties() {
		if strings.HasPrefix(k, "s3.") || k == storesProperty {
			t.Errorf("the table has the property %s", k)
		}
	}
	f, err := fresh.FS(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	io := f.(*ObjectIO)
	metadata := 0
	var all []string
	err = io.WalkDir(fresh.Location(), func(path string, d fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".metadata.json") {
			metadata++
		}
		info, ierr := d.Info()
		if ierr != nil || info.Size() == 0 || info.ModTime().IsZero() {
			t.Errorf("%s: %v, %v", path, info, ierr)
		}
		all = append(all, path)
		return err
	})
	if err != nil || metadata > 11 || metadata < 2 {
		t.Errorf("%d metadata files are left, %v", metadata, err)
	}
	if !slices.Contains(all, fresh.MetadataLocation()) {
		t.Errorf("the current metadata file %s is not among %v", fresh.MetadataLocation(), all)
	}
	deleted, err := io.DeleteFiles(t.Context(), append(all, fresh.Location()+"/never-was"))
	if err != nil || len(deleted) != len(all)+1 {
		t.Errorf("%d of %d deleted, %v", len(deleted), len(all)+1, err)
	}
	if _, err := io.Stat(fresh.MetadataLocation()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a deleted file: %v", err)
	}
}

func TestACommitOnS3WhoseMetadataCannotBeWrittenChangesNothing(t *testing.T) {
	srv := s3test.Start(t)
	srv.Bucket(testBucket)
	down := false
	proxy := s3test.NewProxy(t, srv.Endpoint(), func(r *http.Request) s3test.Fault {
		if down && r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, ".metadata.json") {
			return s3test.SlowDown
		}
		return s3test.Pass
	})
	c := openOnS3(t, proxy.URL)
	tbl := ensure(t, c, "a.b")
	down = true
	_, err := c.Commit(t.Context(), tbl, Change{Properties: map[string]string{"weir.query.q": "1"}})
	if err == nil || errors.Is(err, ErrUnknown) || errors.Is(err, ErrConflict) || !failure.Is(err, failure.Unreachable) {
		t.Fatalf("want a commit that was certainly not made, got %v", err)
	}
	down = false
	bump(t, c, tbl, 1)
}

func TestAnAnswerThatIsLostAndThrottlingDoNotDisturbACommitOnS3(t *testing.T) {
	srv := s3test.Start(t)
	srv.Bucket(testBucket)
	n := 0
	proxy := s3test.NewProxy(t, srv.Endpoint(), func(*http.Request) s3test.Fault {
		n++
		switch n % 5 {
		case 1:
			return s3test.LoseAnswer
		case 3:
			return s3test.SlowDown
		}
		return s3test.Pass
	})
	c := openOnS3(t, proxy.URL)
	tbl := ensure(t, c, "a.b")
	for n := range 5 {
		tbl = bump(t, c, tbl, n)
	}
	fresh, err := c.LoadTable(t.Context(), tbl.Identifier())
	if err != nil || len(fresh.Metadata().Snapshots()) != 5 {
		t.Fatalf("%v, %v", fresh, err)
	}
}

func TestWhatACatalogSaysOfItsStorageIsUsedWhereThePipelineSaysNothing(t *testing.T) {
	vended := map[string]string{
		"s3.endpoint": "http://vended:9000", "s3.access-key-id": "vended", "s3.secret-access-key": "secret", "s3.session-token": "token",
		"client.region": "eu-north-1",
	}
	got, changed, err := withProperties(s3.Config{}, vended)
	if err != nil || !changed || got.Endpoint != "http://vended:9000" || !got.PathStyle || got.Region != "eu-north-1" || got.Credentials.SessionToken != "token" {
		t.Errorf("%+v, %v, %v", got, changed, err)
	}
	own := s3.Config{Endpoint: "http://own:9000", Region: "own", Credentials: s3.Credentials{AccessKeyID: "own", SecretAccessKey: "own"}}
	if got, changed, err := withProperties(own, vended); err != nil || changed || got.Credentials.AccessKeyID != "own" || got.Endpoint != own.Endpoint {
		t.Errorf("the pipeline's own settings lost: %+v, %v, %v", got, changed, err)
	}
	if _, _, err := withProperties(s3.Config{}, map[string]string{"s3.remote-signing-enabled": "true"}); !failure.Is(err, failure.Config) {
		t.Errorf("remote signing: %v", err)
	}
}

func TestWarehousesAreOnStoresThatAreKnown(t *testing.T) {
	for warehouse, word := range map[string]string{
		"hdfs://b/p": "HDFS", "abfss://c/p": "container", "s3://": "bucket", "s3://b/a b": "characters", "gs://b/a b": "characters",
	} {
		if _, err := WarehouseURI(warehouse); !failure.Is(err, failure.Config) || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", warehouse, err)
		}
	}
	for in, want := range map[string]string{"s3a://b/p/": "s3://b/p", "gs://b/p/": "gs://b/p",
		"wasbs://c@a.blob.core.windows.net/p": "abfss://c@a.dfs.core.windows.net/p"} {
		if got, err := WarehouseURI(in); err != nil || got != want {
			t.Errorf("%s: %s, %v", in, got, err)
		}
	}
}

// TestACommitOnS3CostsAFewRequests counts them, so that a change which reads a
// file once more is noticed: each is a round trip of tens of milliseconds.
func TestACommitOnS3CostsAFewRequests(t *testing.T) {
	srv := s3test.Start(t)
	srv.Bucket(testBucket)
	proxy := s3test.NewProxy(t, srv.Endpoint(), nil)
	c := openOnS3(t, proxy.URL)
	tbl := ensure(t, c, "a.b")
	for n := range 12 { // beyond the metadata files that are kept
		tbl = bump(t, c, tbl, n)
	}
	before := len(proxy.Seen())
	if _, err := c.LoadTable(t.Context(), table.Identifier{"a", "b"}); err != nil {
		t.Fatal(err)
	}
	bump(t, c, tbl, 12)
	var ops []string
	for _, r := range proxy.Seen()[before:] {
		ops = append(ops, r.Method+" "+r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:])
	}
	t.Logf("%d requests:\n%s", len(ops), strings.Join(ops, "\n"))
	if len(ops) > 3 {
		t.Errorf("a commit took %d requests: %v", len(ops), ops)
	}
}

func TestManifestsAreKeptUpToABoundAndGivenUpWithTheirFile(t *testing.T) {
	k := &keptFiles{order: list.New(), byKey: map[keptKey]*list.Element{}}
	at := func(n int) keptKey { return keptKey{at: fmt.Sprint(n, ".avro")} }
	k.put(at(-1), make([]byte, keptFileBytesMax+1))
	for n := range 2 * keptBytesMax / keptFileBytesMax {
		k.put(at(n), make([]byte, keptFileBytesMax))
		k.get(at(0)) // stays, as it is used
	}
	if _, ok := k.get(at(-1)); ok || k.bytes > keptBytesMax || len(k.byKey) != k.order.Len() {
		t.Errorf("%d bytes in %d files are kept", k.bytes, len(k.byKey))
	}
	if _, ok := k.get(at(0)); !ok {
		t.Error("the file that is used all the time was given up")
	}
	k.remove(at(0))
	if _, ok := k.get(at(0)); ok {
		t.Error("a removed file is kept")
	}
}
