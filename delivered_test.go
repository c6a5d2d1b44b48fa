package weir

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/weirlake/weir/internal/failure"
)

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
