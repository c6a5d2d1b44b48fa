package prove

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"github.com/jackc/pgx/v5"

	"github.com/weirlake/weir/internal/audit"
)

const (
	// scriptPassword is the one of scripts/postgres.sh.
	scriptPassword = "weir"
	// storeAnswerMax bounds one question to a store.
	storeAnswerMax = time.Minute
)

// outsideStores are the stores of the group, those with a marker first.
func outsideStores() []outsideStore {
	const (
		exact = "a restart is exact"
		again = "delivery is at least once, a batch or chunk that comes again has the same id and the same rows, and a receiver that keys on the id has every row once"
	)
	return []outsideStore{
		{name: storePostgres, promise: exact + ", rows appended without a key of their own", once: true, open: openPostgres, read: readPostgres},
		{name: storeKafka, promise: exact + " for a read_committed reader", once: true, real: true, open: openTopic, read: readTopic},
		{name: storeCassandra, promise: exact + ", by keyed writes under the batch's own timestamp", once: true, open: openCassandra, read: readCassandra},
		{name: storeFile, promise: exact + " for a reader of the files that manifests list", once: true, open: openFolder, read: readFolder},
		{name: storeHTTP, promise: again, open: openAPI, read: readAPI},
		{name: storeExec, promise: again, open: openProgram, read: readProgram},
	}
}

// title is how a store is called in a sentence.
func title(name string) string {
	switch name {
	case storePostgres:
		return "Postgres"
	case storeKafka:
		return "a Kafka topic"
	case storeCassandra:
		return "Cassandra"
	case storeFile:
		return "a folder of files"
	case storeHTTP:
		return "an HTTP API"
	}
	return "a program"
}

// own is a name of a database that no other scenario has.
func (e *Env) own() string { return strings.ReplaceAll(strings.Trim(e.prefix, "-"), "-", "_") }

func (e *Env) postgres(ctx context.Context, database string) (*pgx.Conn, string, error) {
	addr, err := e.o.servers.get(ctx, "postgres", "scripts/postgres.sh install finds Postgres, or installs it where that is permitted")
	if err != nil {
		return nil, "", err
	}
	url := fmt.Sprintf("postgres://weir:%s@%s/%s?sslmode=disable", scriptPassword, addr, database)
	conn, err := pgx.Connect(ctx, url)
	return conn, url, err
}

func openPostgres(ctx context.Context, e *Env, name string) (string, error) {
	if name == target {
		conn, _, err := e.postgres(ctx, "postgres")
		if err != nil {
			return "", err
		}
		var version string
		err = conn.QueryRow(ctx, "SHOW server_version").Scan(&version)
		e.servers = append(e.servers, "Postgres "+version)
		if err == nil {
			_, err = conn.Exec(ctx, "CREATE DATABASE "+e.own())
		}
		if err = errors.Join(err, conn.Close(ctx)); err != nil {
			return "", err
		}
	}
	conn, url, err := e.postgres(ctx, e.own())
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("postgres: {url: %s, table: %s}", quote(url), name), conn.Close(ctx)
}

func readPostgres(ctx context.Context, e *Env, name string) (out []landed, err error) {
	conn, _, err := e.postgres(ctx, e.own())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	rows, err := conn.Query(ctx, "SELECT kafka_partition, kafka_offset, event_id, title FROM "+name)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (l landed, err error) {
		return l, row.Scan(&l.Partition, &l.Offset, &l.ID, &l.Title)
	})
}

func openTopic(ctx context.Context, e *Env, name string) (string, error) {
	if err := e.createTopic(ctx, name, workPartitions); err != nil {
		return "", err
	}
	// The marker's topic is made by the query.
	e.topics = append(e.topics, e.topic(name)+".weir."+outsideQuery)
	return fmt.Sprintf("kafka: {topic: %s, key: event_id}", quote(e.topic(name))), nil
}

func readTopic(ctx context.Context, e *Env, name string) (out []landed, err error) {
	err = e.scan(ctx, e.topic(name), func(r *audit.Record) error {
		out, err = appendLanded(out, r.Value, "", 0)
		return err
	})
	return out, err
}

// appendLanded adds one row of JSON.
func appendLanded(out []landed, row []byte, batch string, take int) ([]landed, error) {
	l := landed{batch: batch, take: take}
	if err := json.Unmarshal(row, &l); err != nil {
		return nil, fmt.Errorf("a row in the store: %w: %.200s", err, row)
	}
	return append(out, l), nil
}

// appendLines adds rows of NDJSON.
func appendLines(out []landed, text []byte, batch string, take int) (_ []landed, err error) {
	for line := range bytes.Lines(text) {
		if out, err = appendLanded(out, line, batch, take); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (e *Env) cassandra(ctx context.Context) (session *gocql.Session, addr string, err error) {
	addr, err = e.o.servers.get(ctx, "cassandra", "scripts/cassandra.sh fetch gets Cassandra; it needs java and mvn")
	if err != nil {
		return nil, "", err
	}
	c := gocql.NewCluster(addr)
	c.Timeout, c.ConnectTimeout = storeAnswerMax, storeAnswerMax
	session, err = c.CreateSession()
	return session, addr, err
}

func openCassandra(ctx context.Context, e *Env, name string) (string, error) {
	session, addr, err := e.cassandra(ctx)
	if err != nil {
		return "", err
	}
	defer session.Close()
	if name == target {
		var version string
		if err := session.Query("SELECT release_version FROM system.local").ScanContext(ctx, &version); err != nil {
			return "", err
		}
		e.servers = append(e.servers, "Apache Cassandra "+version)
	}
	err = session.Query("CREATE KEYSPACE IF NOT EXISTS " + e.own() + " WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}").ExecContext(ctx)
	return fmt.Sprintf("cassandra: {hosts: [%s], keyspace: %s, table: %s, keys: [kafka_partition, kafka_offset]}", quote(addr), e.own(), name), err
}

func readCassandra(ctx context.Context, e *Env, name string) (out []landed, err error) {
	session, _, err := e.cassandra(ctx)
	if err != nil {
		return nil, err
	}
	defer session.Close()
	rows := session.Query("SELECT kafka_partition, kafka_offset, event_id, title FROM " + e.own() + "." + name).IterContext(ctx)
	var l landed
	for rows.Scan(&l.Partition, &l.Offset, &l.ID, &l.Title) {
		out = append(out, l)
	}
	return out, rows.Close()
}

func openFolder(_ context.Context, e *Env, name string) (string, error) {
	return fmt.Sprintf("file: {path: %s, maxFileSize: 16KiB}", quote(e.path(name))), nil
}

// readFolder reads as a consumer does: what the manifests list. A data file that
// none lists may be there while its batch is being published.
func readFolder(_ context.Context, e *Env, name string) (out []landed, err error) {
	manifests, err := filepath.Glob(filepath.Join(e.path(name), "*.manifest.json"))
	if err != nil {
		return nil, err
	}
	for _, m := range manifests {
		var list struct {
			Rows  int
			Files []struct{ Name string }
		}
		text, err := os.ReadFile(m)
		if err == nil {
			err = json.Unmarshal(text, &list)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m, err)
		}
		before := len(out)
		for _, f := range list.Files {
			data, err := os.ReadFile(filepath.Join(e.path(name), f.Name))
			if err != nil {
				return nil, err
			}
			if out, err = appendLines(out, data, "", 0); err != nil {
				return nil, err
			}
		}
		if len(out)-before != list.Rows {
			return nil, violated("%s speaks of %d rows, its files hold %d", filepath.Base(m), list.Rows, len(out)-before)
		}
	}
	return out, nil
}

// receiver is an API that keeps everything it got, and knows the keys that it
// has applied. It outlives the processes that are killed.
type receiver struct {
	faulty bool

	mu    sync.Mutex
	calls int
	takes map[string]map[string]int // deliveries, by place and Idempotency-Key
	rows  map[string][]landed
	wrong error
}

func newReceiver(faulty bool) *receiver {
	return &receiver{faulty: faulty, takes: map[string]map[string]int{}, rows: map[string][]landed{}}
}

// Of so many requests one has a fault, where faults are asked for.
const (
	apiBusyEvery = 11
	apiCutEvery  = 7
	apiFailEvery = 5
)

func (a *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	place, key := r.URL.Path, r.Header.Get("Idempotency-Key")
	var body bytes.Buffer
	if _, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, 1<<24)); err != nil {
		return // the sender was killed under way: nothing is applied
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls++
	if a.faulty && a.calls%apiBusyEvery == 0 {
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if a.takes[place] == nil {
		a.takes[place] = map[string]int{}
	}
	take := a.takes[place][key]
	rows, err := appendLines(a.rows[place], body.Bytes(), key, take)
	if err != nil || key == "" {
		a.wrong = errors.Join(err, fmt.Errorf("a request with key %q", key))
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	a.rows[place] = rows
	a.takes[place][key]++
	switch {
	case a.faulty && a.calls%apiCutEvery == 0:
		panic(http.ErrAbortHandler) // applied, and the answer is lost
	case a.faulty && a.calls%apiFailEvery == 0:
		w.WriteHeader(http.StatusInternalServerError)
	case take > 0:
		w.WriteHeader(http.StatusConflict)
	}
}

func openAPI(_ context.Context, e *Env, name string) (string, error) {
	srv := httptest.NewServer(e.state.(*outsideState).api)
	e.cleanup = append(e.cleanup, srv.Close)
	return fmt.Sprintf("http: {url: %s, chunkRows: %d, gzip: false, recordKey: true}", quote(srv.URL+"/"+name), chunkRows), nil
}

func readAPI(_ context.Context, e *Env, name string) ([]landed, error) {
	a := e.state.(*outsideState).api
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.rows["/"+name]), a.wrong
}

// takingProgram keeps every batch that it is given under the batch's key and a
// number.
const takingProgram = `cat > taking.$$ && n=0 && while [ -e "taken.$WEIR_BATCH_KEY.$n" ]; do n=$((n+1)); done && ` +
	`rows=$(wc -l < taking.$$) && mv taking.$$ "taken.$WEIR_BATCH_KEY.$n" && echo $((rows))`

func openProgram(_ context.Context, e *Env, name string) (string, error) {
	return fmt.Sprintf("exec: {command: %s, shell: true, dir: %s, ackRows: true, recordKey: true}", quote(takingProgram), quote(e.path(name))),
		os.Mkdir(e.path(name), 0o755)
}

func readProgram(_ context.Context, e *Env, name string) (out []landed, err error) {
	files, err := filepath.Glob(filepath.Join(e.path(name), "taken.*"))
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		var key string
		var take int
		if _, err := fmt.Sscanf(strings.ReplaceAll(filepath.Base(f), ".", " "), "taken %s %d", &key, &take); err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		if out, err = appendLines(out, text, key, take); err != nil {
			return nil, err
		}
	}
	return out, nil
}
