package lake_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/catalogserve"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/catalogtest"
	"github.com/weirlake/weir/internal/objstore/s3"
	"github.com/weirlake/weir/internal/s3test"
)

// vendor is a REST catalog that hands out other keys with each table that it
// loads; the S3 server knows them, and no session tokens. Its tables are those of a
// SQL catalog, served by the project's own server; commits it makes itself.
type vendor struct {
	behind *lake.Catalog
	reads  http.Handler
	store  string // the endpoint that it names
	// apart hands the keys out as storage-credentials in place of config.
	apart bool
	life  time.Duration // 0: it does not say

	mu    sync.Mutex
	given int
	down  bool
}

func newVendor(t *testing.T, behind *lake.Catalog, store string) *vendor {
	t.Helper()
	return &vendor{behind: behind, store: store,
		reads: catalogserve.Handler(catalogserve.Options{Tables: behind, Logger: slog.New(slog.DiscardHandler)})}
}

// ServeHTTP implements http.Handler.
func (v *vendor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	isTable := strings.Contains(r.URL.Path, "/tables/")
	switch {
	case r.URL.Path == "/v1/config": // without a list of endpoints, which would lack commits
		answerJSON(w, http.StatusOK, `{"defaults":{},"overrides":{}}`)
	case isTable && v.isDown():
		answerJSON(w, http.StatusServiceUnavailable, `{"error":{"message":"down","type":"ServiceUnavailableException","code":503}}`)
	case isTable && r.Method == http.MethodPost:
		v.commit(w, r)
	case isTable && r.Method == http.MethodGet:
		rec := httptest.NewRecorder()
		v.reads.ServeHTTP(rec, r)
		answerJSON(w, rec.Code, v.vend(rec.Body.Bytes()))
	default:
		v.reads.ServeHTTP(w, r)
	}
}

func (v *vendor) isDown() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.down
}

// vend adds keys to a table.
func (v *vendor) vend(body []byte) string {
	var doc map[string]json.RawMessage // ids do not fit into floats
	if json.Unmarshal(body, &doc) != nil || doc["metadata"] == nil {
		return string(body)
	}
	v.mu.Lock()
	v.given++
	access, secret := s3test.Keys(v.given)
	keys := map[string]string{"s3.access-key-id": access, "s3.secret-access-key": secret}
	v.mu.Unlock()
	if v.life != 0 {
		keys["s3.session-token-expires-at-ms"] = fmt.Sprint(clock.System{}.Now().Add(v.life).UnixMilli())
	}
	config := map[string]string{"s3.endpoint": v.store, "s3.region": s3test.Region}
	if v.apart {
		doc["storage-credentials"], _ = json.Marshal([]any{map[string]any{"prefix": "s3://" + vendedBucket, "config": keys}})
	} else {
		for k, value := range keys {
			config[k] = value
		}
	}
	doc["config"], _ = json.Marshal(config)
	out, _ := json.Marshal(doc)
	return string(out)
}

func (v *vendor) commit(w http.ResponseWriter, r *http.Request) {
	var doc struct {
		Requirements table.Requirements
		Updates      table.Updates
	}
	if err := json.NewDecoder(r.Body).Decode(&doc); err != nil {
		answerJSON(w, http.StatusBadRequest, `{}`)
		return
	}
	parts := strings.Split(r.URL.Path, "/") // /v1/namespaces/NS/tables/TABLE
	meta, location, err := v.behind.CommitTable(r.Context(), table.Identifier{parts[3], parts[5]}, doc.Requirements, doc.Updates)
	if err != nil {
		answerJSON(w, http.StatusConflict, fmt.Sprintf(`{"error":{"message":%q,"type":"CommitFailedException","code":409}}`, err))
		return
	}
	out, _ := json.Marshal(map[string]any{"metadata-location": location, "metadata": meta})
	answerJSON(w, http.StatusOK, string(out))
}

func answerJSON(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

const (
	vendedBucket = "vended"
	// keysMax is how many pairs the S3 server knows.
	keysMax = 100
)

// vendedBench is a table of a catalog that vends keys to a real S3 server.
type vendedBench struct {
	*vendor
	table   *table.Table
	catalog *lake.Catalog
	proxy   *s3test.Proxy
	refused func(key int, r *http.Request) bool
}

func newVendedBench(t *testing.T, set func(*vendor)) *vendedBench {
	t.Helper()
	srv := s3test.StartWithKeys(t, keysMax)
	srv.Bucket(vendedBucket)
	b := &vendedBench{refused: func(int, *http.Request) bool { return false }}
	b.proxy = s3test.NewProxy(t, srv.Endpoint(), func(r *http.Request) s3test.Fault {
		if b.refused(keyOf(r), r) {
			return s3test.ExpiredToken
		}
		return s3test.Pass
	})
	stores := func(c s3.Config) *s3.Stores {
		c.PathStyle, c.PartBytes, c.BackOffMax = true, 5<<20, 20*time.Millisecond
		out, err := s3.NewStores(c)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	behind := open(t, lake.Config{URI: filepath.Join(t.TempDir(), "catalog.db"), Warehouse: "s3://" + vendedBucket + "/wh", Stores: stores(s3.Config{
		Endpoint: srv.Endpoint(), Region: s3test.Region, Credentials: s3.Credentials{AccessKeyID: s3test.AccessKeyID, SecretAccessKey: s3test.SecretAccessKey}})})
	if _, err := behind.EnsureTable(t.Context(), events, catalogtest.Schema, catalogtest.Spec(), nil); err != nil {
		t.Fatal(err)
	}
	b.vendor = newVendor(t, behind, b.proxy.URL)
	set(b.vendor)
	front := httptest.NewServer(b.vendor)
	t.Cleanup(front.Close)
	b.catalog = open(t, lake.Config{Type: lake.TypeREST, URI: front.URL, Stores: stores(s3.Config{})})
	var err error
	if b.table, err = b.catalog.LoadTable(t.Context(), events); err != nil {
		t.Fatal(err)
	}
	return b
}

// write writes a file of four parts and reads it again.
func (b *vendedBench) write(ctx context.Context, name string) error {
	storage, err := lake.DataFSOf(ctx, b.table)
	if err != nil {
		return err
	}
	want := bytes.Repeat([]byte(name), 16<<20/len(name))
	w, err := storage.Create(lake.DataLocation(b.table) + "/" + name)
	if err != nil {
		return err
	}
	_, err = w.Write(want)
	if err = errors.Join(err, w.Close()); err != nil {
		return err
	}
	files, err := b.table.FS(ctx)
	if err != nil {
		return err
	}
	f, err := files.Open(lake.DataLocation(b.table) + "/" + name)
	if err != nil {
		return err
	}
	defer f.Close()
	if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, want) {
		return fmt.Errorf("read %d of %d bytes: %w", len(got), len(want), err)
	}
	return nil
}

// keyOf is the number of the pair that a request was signed with.
func keyOf(r *http.Request) (n int) {
	_, _ = fmt.Sscanf(s3test.KeyOf(r), "weir-key-%d", &n)
	return n
}

// used are the pairs that requests were signed with.
func (b *vendedBench) used() map[int]bool {
	out := map[int]bool{}
	for _, r := range b.proxy.Seen() {
		out[keyOf(r)] = true
	}
	return out
}

func TestVendedKeysThatEndInMidUploadAreReplacedByFreshOnes(t *testing.T) {
	for _, tc := range []struct {
		name  string
		apart bool
	}{{"InTheConfig", false}, {"AsStorageCredentials", true}} {
		t.Run(tc.name, func(t *testing.T) {
			b := newVendedBench(t, func(v *vendor) { v.apart, v.life = tc.apart, time.Hour })
			b.refused = func(key int, r *http.Request) bool {
				part := r.URL.Query().Get("partNumber")
				return key == 1 && part != "" && part != "1"
			}
			if err := b.write(t.Context(), "first.parquet"); err != nil {
				t.Fatal(err)
			}
			if used := b.used(); !used[1] || !used[2] {
				t.Errorf("requests were signed with %v", used)
			}
			// The keys of the load are gone for good.
			b.refused = func(key int, _ *http.Request) bool { return key == 1 }
			if err := b.write(t.Context(), "second.parquet"); err != nil {
				t.Fatal(err)
			}
			after, err := b.catalog.Commit(t.Context(), b.table, lake.Change{})
			if err != nil || lake.HeadOf(after).Sequence != 1 {
				t.Fatalf("commit: %v", err)
			}
		})
	}
}

// TestVendedKeysAreRenewedBeforeTheyEnd: the store does not have to say so.
func TestVendedKeysAreRenewedBeforeTheyEnd(t *testing.T) {
	b := newVendedBench(t, func(v *vendor) { v.life = 400 * time.Millisecond })
	for n := 0; len(b.used()) < 3; n++ { // the table was loaded once
		if err := b.write(t.Context(), "f.parquet"); err != nil || n == 100 {
			t.Fatalf("signed with %v, %v", b.used(), err)
		}
	}
}

func TestKeysThatNobodyRenewsEndTheWriteWithTheReason(t *testing.T) {
	b := newVendedBench(t, func(*vendor) {})
	b.refused = func(key int, _ *http.Request) bool { return key == 1 }
	b.mu.Lock()
	b.down = true
	b.mu.Unlock()
	err := b.write(t.Context(), "f.parquet")
	if !failure.Is(err, failure.Unreachable) || !strings.Contains(err.Error(), "fresh credentials for the files of a.events") {
		t.Errorf("class %s: %v", failure.ClassOf(err), err)
	}
	if _, secret := s3test.Keys(1); strings.Contains(fmt.Sprint(err), secret) {
		t.Errorf("the error shows a secret: %v", err)
	}
}
