package weir

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/weirlake/weir/internal/failure"
)

// TestRowsCarryTheirRecordKey: the same one in both, and a query whose rows do not
// know their place is refused before it reads.
func TestRowsCarryTheirRecordKey(t *testing.T) {
	k := newKafka(t, 2)
	k.send(25)
	dir := t.TempDir()
	var mu sync.Mutex
	keys := map[string][]string{}
	note := func(name string, text []byte) {
		mu.Lock()
		defer mu.Unlock()
		for line := range bytes.Lines(text) {
			var row struct {
				Key string `json:"weir_key"`
			}
			if err := json.Unmarshal(line, &row); err != nil {
				t.Error(err)
			}
			keys[name] = append(keys[name], row.Key)
		}
	}
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		note("api", text)
	}))
	defer srv.Close()
	sinks := map[string]Table{
		"api":     HTTP{URL: srv.URL, ChunkRows: 4, RecordKey: true},
		"program": Exec{Command: []string{"sh", "-c", "cat >> taken"}, Dir: dir, RecordKey: true},
	}
	placed := Parse{Columns: []Column{{Name: "id", Path: "$.id", Type: "long"}, {Name: "p", Source: "partition", Type: "int"}, {Name: "o", Source: "offset", Type: "long"}}}
	for name, to := range sinks {
		if err := k.query(name+"-without", 10).To(to).Run(t.Context()); !failure.Is(err, failure.Config) || !strings.Contains(err.Error(), "source: partition") {
			t.Errorf("%s without the partition: %v", name, err)
		}
		q := k.query(name, 10)
		q.parse = &placed
		if err := q.To(to).Run(t.Context()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "taken"))
	if err != nil {
		t.Fatal(err)
	}
	note("program", text)
	for _, list := range keys {
		slices.Sort(list)
	}
	api := slices.Compact(slices.Clone(keys["api"]))
	if len(api) != 25 || !slices.Equal(keys["api"], keys["program"]) || strings.Count(api[0], "/") != 3 {
		t.Fatalf("record keys of the API %v, of the program %v", keys["api"], keys["program"])
	}
}

func TestRowsGoToAnAPIAProgramAndAFolderFromTheSameTopic(t *testing.T) {
	k := newKafka(t, 2)
	k.send(25)
	var mu sync.Mutex
	keys, rows, cut := map[string]bool{}, 0, false
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		n := 0
		for sc := bufio.NewScanner(r.Body); sc.Scan(); {
			n++
		}
		if key := r.Header.Get("Idempotency-Key"); !keys[key] {
			keys[key] = true
			rows += n
		}
		if !cut { // applied, and the answer is lost
			cut = true
			w.WriteHeader(http.StatusBadGateway)
		}
	}))
	defer srv.Close()
	taken := filepath.Join(t.TempDir(), "taken")
	folder := k.path("drop")
	for name, to := range map[string]Table{
		"api":     HTTP{URL: srv.URL, ChunkRows: 4, Headers: map[string]string{"Authorization": "Bearer x"}},
		"program": Exec{Command: []string{"sh", "-c", `tee -a ` + taken + ` | wc -l | tr -d ' '`}, AckRows: true},
		"folder":  Files{Path: folder, Format: "csv"},
	} {
		if err := k.query(name, 10).To(to).Run(t.Context()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	text, err := os.ReadFile(taken)
	if n := strings.Count(string(text), "\n"); err != nil || n != 25 || rows != 25 {
		t.Fatalf("the API has %d rows, the program %d: %v", rows, n, err)
	}
	files, err := filepath.Glob(filepath.Join(folder, "folder-*.csv"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	n := 0
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		n += strings.Count(string(text), "\n") - 1
	}
	if n != 25 {
		t.Fatalf("%d rows in %d files", n, len(files))
	}
	// The folder remembers; the API cannot be asked.
	for name, class := range map[string]failure.Class{"folder": 0, "api": failure.Checkpoint} {
		if err := os.RemoveAll(k.path("checkpoints", name)); err != nil {
			t.Fatal(err)
		}
		to := Table(Files{Path: folder, Format: "csv"})
		if name == "api" {
			to = HTTP{URL: srv.URL, ChunkRows: 4}
		}
		err := k.query(name, 10).To(to).Run(t.Context())
		if class == 0 && err != nil || class != 0 && !failure.Is(err, class) {
			t.Fatalf("%s without its checkpoint: %v", name, err)
		}
	}
	if rows != 25 {
		t.Fatalf("the API has %d rows", rows)
	}
}

func ExampleHTTP() {
	q := NewQuery("to-crm").
		From(Kafka{BootstrapServers: "127.0.0.1:9092", Topics: []string{"customers"}}).
		Checkpoint("/var/lib/weir/to-crm").
		To(HTTP{URL: "https://crm.example/batches", Headers: map[string]string{"Authorization": "Bearer …"}, ChunkRows: 500})
	fmt.Println(q.Validate())
	// Output: <nil>
}
