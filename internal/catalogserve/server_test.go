package catalogserve_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/catalogserve"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/catalogtest"
	"github.com/weirlake/weir/internal/lake/datafile"
)

// lakehouse is a catalog in a file with tables, and what is in them.
type lakehouse struct {
	catalog *lake.Catalog
	rows    map[string]int
}

func newLakehouse(t *testing.T) lakehouse {
	t.Helper()
	dir := t.TempDir()
	return fill(t, lake.Config{URI: filepath.Join(dir, "catalog.db"), Warehouse: filepath.Join(dir, "warehouse")})
}

// fill makes the tables in a catalog.
func fill(t *testing.T, cfg lake.Config) lakehouse {
	t.Helper()
	c, err := lake.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	l := lakehouse{catalog: c, rows: map[string]int{"a.events": 5, "a.empty": 0, "b.events": 2}}
	for name, n := range l.rows {
		l.add(t, name, n)
	}
	return l
}

func (l lakehouse) add(t *testing.T, name string, rows int) {
	t.Helper()
	ident, err := lake.ParseName(name)
	if err != nil {
		t.Fatal(err)
	}
	tbl, err := l.catalog.EnsureTable(context.Background(), ident, catalogtest.Schema, catalogtest.Spec(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if rows == 0 {
		return
	}
	storage, err := lake.DataFSOf(context.Background(), tbl)
	if err != nil {
		t.Fatal(err)
	}
	w, err := datafile.NewWriter(datafile.Spec{Schema: tbl.Schema(), PartitionSpec: tbl.Spec(), FormatVersion: 2,
		Properties: tbl.Properties(), Location: lake.DataLocation(tbl), FS: storage}, clock.Nonce()+"-", nil)
	if err != nil {
		t.Fatal(err)
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "ts", Type: batch.Timestamp}}, nil))
	defer b.Release()
	for i := range rows {
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		b.Field(1).(*array.TimestampBuilder).Append(arrow.Timestamp(1_780_000_000_000_000 + int64(i)*86_400_000_000))
	}
	if err := w.Write(b.NewRecordBatch()); err != nil {
		t.Fatal(err)
	}
	files, err := w.Close(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var ch lake.Change
	for _, f := range files {
		ch.Files = append(ch.Files, f.DataFile)
	}
	if _, err := l.catalog.Commit(context.Background(), tbl, ch); err != nil {
		t.Fatal(err)
	}
}

// serve serves the lakehouse until the test ends.
func (l lakehouse) serve(t *testing.T, token string) string {
	t.Helper()
	s, err := catalogserve.Listen(catalogserve.Options{Tables: l.catalog, Listen: "127.0.0.1:0", Token: token, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s.URL()
}

func ask(t *testing.T, method, url string, header map[string]string) (status int, h http.Header, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, url, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	if host := header["Host"]; host != "" {
		req.Host = host
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(b)
}

func TestReadsAreAnsweredInTheProtocolsWords(t *testing.T) {
	l := newLakehouse(t)
	if _, err := l.catalog.EnsureTable(context.Background(), table.Identifier{"a", "inner", "deep"}, catalogtest.Schema, catalogtest.Spec(), nil); err != nil {
		t.Fatal(err)
	}
	url := l.serve(t, "")
	for _, tc := range []struct {
		method, path string
		status       int
		want         string
	}{
		{"GET", "/v1/config", 200, `"endpoints":["GET /v1/{prefix}/namespaces",`},
		{"GET", "/v1/config?warehouse=x", 200, `"overrides":{}`},
		{"GET", "/v1/namespaces", 200, `{"namespaces":[["a"],["b"]]}`},
		{"GET", "/v1/namespaces?parent=a", 200, `{"namespaces":[["a","inner"]]}`},
		{"GET", "/v1/namespaces?parent=b", 200, `{"namespaces":[]}`},
		{"GET", "/v1/namespaces?parent=no", 404, "NoSuchNamespaceException"},
		{"GET", "/v1/namespaces/a", 200, `"namespace":["a"]`},
		{"GET", "/v1/namespaces/a%1Finner", 200, `"namespace":["a","inner"]`},
		{"GET", "/v1/namespaces/no", 404, "NoSuchNamespaceException"},
		{"HEAD", "/v1/namespaces/a", 204, ""},
		{"HEAD", "/v1/namespaces/no", 404, ""},
		{"GET", "/v1/namespaces/a/tables", 200, `{"namespace":["a"],"name":"events"}`},
		{"GET", "/v1/namespaces/a%1Finner/tables", 200, `{"identifiers":[{"namespace":["a","inner"],"name":"deep"}]}`},
		{"GET", "/v1/namespaces/no/tables", 404, "NoSuchNamespaceException"},
		{"GET", "/v1/namespaces/a/tables/events", 200, `"metadata-location":"file:///`},
		{"GET", "/v1/namespaces/a%1Finner/tables/deep", 200, `"table-uuid"`},
		{"GET", "/v1/namespaces/a/tables/no", 404, "NoSuchTableException"},
		{"GET", "/v1/namespaces/no/tables/no", 404, "NoSuchTableException"},
		{"HEAD", "/v1/namespaces/a/tables/events", 204, ""},
		{"HEAD", "/v1/namespaces/a/tables/no", 404, ""},
		{"GET", "/v1/namespaces/a/views", 200, `{"identifiers":[]}`},
		{"POST", "/v1/namespaces/a/tables/events/metrics", 204, ""},
		{"GET", "/", 404, "ends before /v1"},
		{"GET", "/namespaces", 404, "ends before /v1"},
	} {
		status, h, body := ask(t, tc.method, url+tc.path, nil)
		if status != tc.status || !strings.Contains(body, tc.want) {
			t.Errorf("%s %s: %d %.300s\nwant %d %s", tc.method, tc.path, status, body, tc.status, tc.want)
		}
		if body != "" && h.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: content type %q", tc.method, tc.path, h.Get("Content-Type"))
		}
	}
}

func TestWhatWouldChangeSomethingIsRefusedWithAReason(t *testing.T) {
	url := newLakehouse(t).serve(t, "")
	for _, tc := range []struct{ method, path string }{
		{"POST", "/v1/namespaces"}, {"DELETE", "/v1/namespaces/a"}, {"POST", "/v1/namespaces/a/properties"},
		{"POST", "/v1/namespaces/a/tables"}, {"POST", "/v1/namespaces/a/tables/events"}, {"DELETE", "/v1/namespaces/a/tables/events?purgeRequested=true"},
		{"POST", "/v1/tables/rename"}, {"POST", "/v1/transactions/commit"}, {"POST", "/v1/namespaces/a/register"},
		{"POST", "/v1/namespaces/a/views"}, {"PUT", "/v1/namespaces/a/tables/events"}, {"PATCH", "/v1/config"},
		{"POST", "/v1/oauth/tokens"},
	} {
		status, h, body := ask(t, tc.method, url+tc.path, nil)
		if status != http.StatusMethodNotAllowed || !strings.Contains(body, "this catalog") || h.Get("Allow") == "" {
			t.Errorf("%s %s: %d %s", tc.method, tc.path, status, body)
		}
		var doc struct {
			Error struct {
				Message, Type string
				Code          int
			}
		}
		if err := json.Unmarshal([]byte(body), &doc); err != nil || doc.Error.Code != status || doc.Error.Type == "" {
			t.Errorf("%s %s: not the protocol's error: %s", tc.method, tc.path, body)
		}
	}
}

func TestMetadataIsServedAsItWasWritten(t *testing.T) {
	l := newLakehouse(t)
	url := l.serve(t, "")
	for _, codec := range []string{"none", "gzip"} {
		name := "c." + codec
		ident, _ := lake.ParseName(name)
		if _, err := l.catalog.EnsureTable(context.Background(), ident, catalogtest.Schema, catalogtest.Spec(),
			map[string]string{table.MetadataCompressionKey: codec}); err != nil {
			t.Fatal(err)
		}
		l.add(t, name, 3)
		// What this library does not know must reach the reader too.
		location, body, err := l.catalog.Metadata(context.Background(), ident)
		if err != nil {
			t.Fatal(err)
		}
		if codec == "none" {
			body = bytes.Replace(body, []byte(`{`), []byte(`{"of-another-engine":9007199254740993,`), 1)
			if err := os.WriteFile(strings.TrimPrefix(location, "file://"), body, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, _, got := ask(t, "GET", url+"/v1/namespaces/c/tables/"+codec, nil)
		var doc struct {
			Location string          `json:"metadata-location"`
			Metadata json.RawMessage `json:"metadata"`
		}
		if err := json.Unmarshal([]byte(got), &doc); err != nil {
			t.Fatal(err)
		}
		var want bytes.Buffer
		if err := json.Compact(&want, body); err != nil {
			t.Fatal(err)
		}
		if doc.Location != location || !bytes.Equal(doc.Metadata, want.Bytes()) {
			t.Errorf("%s: %s\n%.300s\nwant %s\n%.300s", codec, doc.Location, doc.Metadata, location, want.Bytes())
		}
	}
}

func TestACommitIsSeenByTheNextRequest(t *testing.T) {
	l := newLakehouse(t)
	rest, err := lake.Open(context.Background(), lake.Config{Type: lake.TypeREST, URI: l.serve(t, "")})
	if err != nil {
		t.Fatal(err)
	}
	defer rest.Close()
	for range 3 {
		l.add(t, "a.events", 1)
		ours, err := l.catalog.LoadTable(context.Background(), table.Identifier{"a", "events"})
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := rest.LoadTable(context.Background(), table.Identifier{"a", "events"})
		if err != nil || lake.HeadOf(theirs) != lake.HeadOf(ours) {
			t.Fatalf("head %v, %v; want %v", lake.HeadOf(theirs), err, lake.HeadOf(ours))
		}
		// And our own client is told that it cannot write.
		if _, err := rest.Commit(context.Background(), theirs, lake.Change{}); err == nil || lake.IsConflict(err) || errors.Is(err, lake.ErrUnknown) {
			t.Fatalf("a commit through a read-only catalog: %v", err)
		}
	}
}

func TestOthersAreKeptOut(t *testing.T) {
	l := newLakehouse(t)
	url := l.serve(t, "")
	for host, want := range map[string]int{"evil.example": 403, "localhost:1": 200, "127.0.0.1": 200, "[::1]:8181": 200} {
		if status, _, body := ask(t, "GET", url+"/v1/config", map[string]string{"Host": host}); status != want {
			t.Errorf("Host %s: %d %s", host, status, body)
		}
	}
	const token = "0123456789abcdef0123"
	guarded := l.serve(t, token)
	for header, want := range map[string]int{"": 401, "Bearer wrong": 401, "Basic " + token: 401, "Bearer " + token: 200, "bearer " + token: 200} {
		status, h, body := ask(t, "GET", guarded+"/v1/config", map[string]string{"Authorization": header, "Host": "lake.example"})
		if status != want || (status == 401) != (h.Get("WWW-Authenticate") != "") || strings.Contains(body, token) {
			t.Errorf("Authorization %q: %d %s", header, status, body)
		}
	}
	for _, o := range []catalogserve.Options{
		{Listen: "0.0.0.0:0"}, {Listen: ":0"}, {Listen: "0.0.0.0:0", Token: "short"}, {Listen: "nowhere"}, {Listen: "127.0.0.1:http"}, {Listen: "lake.example:1"},
	} {
		o.Tables = l.catalog
		if s, err := catalogserve.Listen(o); err == nil || !failure.Is(err, failure.Config) {
			t.Errorf("%+v: %v %v", o, s, err)
		}
	}
}

// broken is a catalog that does not answer.
type broken struct{ catalogserve.Tables }

func (broken) NamespaceExists(context.Context, table.Identifier) (bool, error) {
	return false, failure.New(failure.Unreachable, "secret place")
}

func TestWhatWentWrongInsideIsLoggedAndNotTold(t *testing.T) {
	var log bytes.Buffer
	s, err := catalogserve.Listen(catalogserve.Options{Tables: broken{}, Listen: "127.0.0.1:0", Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	status, _, body := ask(t, "GET", s.URL()+"/v1/namespaces/a", nil)
	cancel()
	<-done
	if status != http.StatusServiceUnavailable || strings.Contains(body, "secret place") || !strings.Contains(log.String(), "secret place") {
		t.Errorf("%d %s\n%s", status, body, log.String())
	}
}
