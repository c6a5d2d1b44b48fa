package tests

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/s3test"
)

// outside makes the lab a pipeline with one query, named out, that writes outside.
func outside(t *testing.T, records int, to string) *lab {
	t.Helper()
	l := newLab(t, records)
	l.outside(to)
	return l
}

func (l *lab) outside(to string) {
	l.t.Helper()
	text := fmt.Sprintf(`name: lab
catalog: {type: sql, name: weir, uri: "sqlite:%[1]s/catalog.db"}
warehouse: "%[1]s/warehouse"
checkpointLocation: "%[1]s/checkpoints"
kafka: {bootstrapServers: [%[2]q]}
queries:
  - name: out
    from: {kafka: {topics: [edits], startingOffsets: earliest, maxOffsetsPerTrigger: 100}}
    trigger: {processingTime: 20ms}
    to: %[3]s
status: {listen: none}
`, l.dir, l.broker.Bootstrap(), to)
	if err := os.WriteFile(l.file, []byte(text), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

// spot is where a row comes from.
type spot struct {
	Partition int64
	Offset    int64
	Key       string `json:"weir_key"`
}

// api is an idempotent receiver with a bad day: it cuts connections after it has
// applied a chunk, answers 500 then, asks for patience, takes only small chunks,
// and refuses some rows.
type api struct {
	mu    sync.Mutex
	keys  map[string]bool
	rows  map[spot]int
	calls int
}

func (a *api) refuses(p spot) bool { return p.Offset%97 == 96 }

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls++
	var rows []spot
	sc := bufio.NewScanner(r.Body)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var p spot
		if err := json.Unmarshal(sc.Bytes(), &p); err != nil || p.Key == "" {
			w.WriteHeader(http.StatusNotFound) // ends the run: the sink is wrong
			return
		}
		rows = append(rows, spot{Partition: p.Partition, Offset: p.Offset})
	}
	key := r.Header.Get("Idempotency-Key")
	switch {
	case a.keys[key]:
		w.WriteHeader(http.StatusConflict)
		return
	case len(rows) > 20:
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		return
	case a.calls%19 == 0:
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	for _, p := range rows {
		if a.refuses(p) {
			w.WriteHeader(http.StatusUnprocessableEntity)
			return
		}
	}
	a.keys[key] = true
	for _, p := range rows {
		a.rows[p]++
	}
	switch a.calls % 13 {
	case 0:
		w.WriteHeader(http.StatusInternalServerError)
	case 1:
		if c, _, err := w.(http.Hijacker).Hijack(); err == nil {
			_ = c.Close()
		}
	}
}

// exact checks that every record is there once, but for those that are refused.
func (l *lab) exactOnce(rows map[spot]int, refused func(spot) bool) (left int64) {
	l.t.Helper()
	missing, more := 0, 0
	for i := range l.sent {
		p := spot{Partition: i % l.partitions, Offset: i / l.partitions}
		switch n := rows[p]; {
		case refused != nil && refused(p):
			left++
			more += n
		case n == 0:
			missing++
		default:
			more += n - 1
		}
	}
	if missing+more > 0 || int64(len(rows)) != l.sent-left {
		l.t.Fatalf("%d records: %d are missing, %d are there too often, %d places in all", l.sent, missing, more, len(rows))
	}
	return left
}

// TestAnHTTPAPIWithFaultsGetsEveryRowOnceThroughKillsAtEveryStep: also the rows
// that it refuses are in the table of rejected rows once.
func TestAnHTTPAPIWithFaultsGetsEveryRowOnceThroughKillsAtEveryStep(t *testing.T) {
	py := python(t)
	a := &api{keys: map[string]bool{}, rows: map[spot]int{}}
	srv := httptest.NewServer(a)
	defer srv.Close()
	l := outside(t, 300, fmt.Sprintf("{http: {url: %q, headers: {Authorization: Bearer hidden-token}, chunkRows: 30, concurrency: 2, recordKey: true, gzip: false, onRejected: deadLetter, rejectedTable: out.rejected}}", srv.URL+"/in?secret=hidden-token"))
	for _, point := range []string{
		"commit.metadata:3", "deliver.chunk:3", "commit.side:1", "commit.swapped:1", "done.written:1", "claim.done:1",
	} {
		l.produce(200)
		l.crash("out/" + point)
	}
	_, errs := l.run(exitOK)
	if strings.Contains(errs, "hidden-token") {
		t.Fatal("a secret is in the log")
	}
	refused := l.exactOnce(a.rows, a.refuses)
	var c counted
	readerOf(t, py, &c, "count_iceberg.py", "--catalog", l.catalog(), "--table", "out.rejected")
	if refused == 0 || c.Rows != refused {
		t.Fatalf("%d rows are rejected, the API refuses %d", c.Rows, refused)
	}
	// What the receiver knows cannot be read back: a lost checkpoint stops.
	l.remove(l.checkpoint("out"))
	l.produce(100)
	calls := a.calls
	if _, errs = l.run(exitCheckpoint); a.calls != calls {
		t.Fatalf("rows were sent without a checkpoint\n%s", tail(errs))
	}
}

// dropped reads the folder of dropped files as a consumer does.
func dropped(t *testing.T, dir string) map[spot]int {
	t.Helper()
	rows, listed := map[spot]int{}, map[string]bool{}
	manifests, err := filepath.Glob(filepath.Join(dir, "*.manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range manifests {
		var man struct {
			Rows  int64
			Files []struct{ Name string }
		}
		text, err := os.ReadFile(m)
		if err == nil {
			err = json.Unmarshal(text, &man)
		}
		if err != nil {
			t.Fatal(err)
		}
		n := int64(0)
		for _, f := range man.Files {
			listed[f.Name] = true
			data, err := os.ReadFile(filepath.Join(dir, f.Name))
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
				var p spot
				if err := json.Unmarshal([]byte(line), &p); err != nil {
					t.Fatal(err)
				}
				rows[p]++
				n++
			}
		}
		if n != man.Rows {
			t.Fatalf("%s speaks of %d rows, its files hold %d", m, man.Rows, n)
		}
	}
	all, err := filepath.Glob(filepath.Join(dir, "*.ndjson"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if !listed[filepath.Base(f)] {
			t.Fatalf("%s is visible and no manifest lists it", f)
		}
	}
	return rows
}

func TestDroppedFilesAreExactThroughKillsAtEveryStepAndALostCheckpoint(t *testing.T) {
	weirBin(t)
	l := newLab(t, 300)
	dir := filepath.Join(l.dir, "drop")
	l.outside(fmt.Sprintf("{file: {path: %q, maxFileSize: 8KiB}}", dir))
	l.killedDrops("claim.before:1", "claim.done:1", "stage.file:2", "commit.before:1", "commit.metadata:1", "commit.swapped:2", "publish.file:1", "publish.file:2", "done.written:1")
	l.exactOnce(dropped(t, dir), nil)
	// The folder's log can be read back: it is adopted, in the middle of a batch.
	l.produce(300)
	l.crash("out/stage.done:1")
	l.remove(l.checkpoint("out"))
	l.produce(50) // the batch now ends elsewhere
	if _, errs := l.run(exitOK); !strings.Contains(errs, "ALERT out") {
		t.Fatalf("nobody was told\n%s", tail(errs))
	}
	l.exactOnce(dropped(t, dir), nil)
	// Without log and checkpoint nobody knows what was delivered.
	l.remove(filepath.Join(dir, "_weir"))
	l.remove(l.checkpoint("out"))
	l.run(exitCheckpoint)
	l.exactOnce(dropped(t, dir), nil)
}

func (l *lab) killedDrops(points ...string) {
	l.t.Helper()
	for _, point := range points {
		l.produce(150)
		l.crash("out/" + point)
	}
	l.produce(50)
	l.run(exitOK)
}

func TestFilesDroppedIntoS3AreExactThroughKillsAtEveryStep(t *testing.T) {
	weirBin(t)
	srv := s3test.Start(t)
	srv.Bucket(s3Bucket)
	l := newLab(t, 300)
	l.outside("{file: {path: s3://" + s3Bucket + "/drop, maxFileSize: 8KiB}}")
	l.edit("status:", fmt.Sprintf("stores: [{endpoint: %q, region: %s, pathStyle: true, accessKeyId: %q, secretAccessKey: %q}]\nstatus:",
		srv.Endpoint(), s3test.Region, s3test.AccessKeyID, s3test.SecretAccessKey))
	l.killedDrops("claim.done:1", "stage.file:1", "commit.swapped:1", "publish.file:1")
	l.exactOnce(dropped(t, srv.ObjectPath(s3Bucket, "drop")), nil)
}

// TestAProgramGetsEveryBatchThroughKillsOfBothAndIsExactByItsKey: the program
// keeps a file per batch key, so that a batch that comes again replaces itself.
func TestAProgramGetsEveryBatchThroughKillsOfBothAndIsExactByItsKey(t *testing.T) {
	weirBin(t)
	l := newLab(t, 300)
	dir := filepath.Join(l.dir, "taken")
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	// Once, when asked for by a file, it waits half-way to be killed.
	const script = `cat > tmp.$$ && if [ -e wait ]; then rm wait; echo $$ > waiting.tmp; mv waiting.tmp waiting; sleep 600; fi; ` +
		`n=$(wc -l < tmp.$$) && mv tmp.$$ "batch-$WEIR_BATCH_KEY" && echo $((n))`
	l.outside(fmt.Sprintf("{exec: {command: %q, shell: true, dir: %q, ackRows: true, timeout: 10m, grace: 100ms}}", script, dir))
	for _, point := range []string{"claim.before:1", "commit.metadata:1", "commit.swapped:2", "done.written:1", "claim.done:1"} {
		l.produce(150)
		l.crash("out/" + point)
	}
	// Weir is killed while the program is at work: the program ends with it, and
	// the batch comes again.
	l.produce(150)
	if err := os.WriteFile(filepath.Join(dir, "wait"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, nil, "run", l.file, "--once")
	for begin := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(dir, "waiting")); err == nil {
			break
		}
		if !p.running() || time.Since(begin) > patience {
			t.Fatalf("the program was not run\n%s", tail(p.errs.String()))
		}
	}
	p.kill9()
	l.run(exitOK)
	rows := map[spot]int{}
	files, err := filepath.Glob(filepath.Join(dir, "batch-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
			var p spot
			if err := json.Unmarshal([]byte(line), &p); err != nil {
				t.Fatal(err)
			}
			rows[p]++
		}
	}
	l.exactOnce(rows, nil)
	l.remove(l.checkpoint("out"))
	l.run(exitCheckpoint)
}
