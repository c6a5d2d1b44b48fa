package tests

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/kafkatest"
	"github.com/weirlake/weir/internal/lake/catalogtest"
	"github.com/weirlake/weir/internal/s3test"
)

// envCloudRun turns the long test on: it starts a Kafka with TLS and log-in, an
// S3 server and a Postgres, all by the project's own scripts.
const envCloudRun = "WEIR_CLOUD_RUN"

// TestTheExampleOnKafkaWithTLSPostgresAndS3KilledFiveTimesIsExact runs
// examples/cloud.yaml as it is shipped: from the stream over ingestion and Kafka
// (TLS, SCRAM) into bronze and silver on S3, with the catalog in Postgres.
func TestTheExampleOnKafkaWithTLSPostgresAndS3KilledFiveTimesIsExact(t *testing.T) {
	if os.Getenv(envCloudRun) == "" {
		t.Skip("starts a Kafka with TLS, an S3 server and a Postgres: run make cloud-run, or set " + envCloudRun)
	}
	const events, seed, kills = 30_000, 20261130, 5
	weirBin(t)
	python(t)
	s3, pg := s3test.Start(t), catalogtest.StartPostgres(t)
	kafka := kafkatest.StartSecure(t)
	s3.Bucket(s3Bucket)
	data, file := t.TempDir(), filepath.Join(repo(t), "examples", "cloud.yaml")
	for k, v := range map[string]string{
		"WEIR_DATA": data, "WEIR_SSE_URL": generated(t, events, seed), "WEIR_SSE_SINCE": "2000-01-01T00:00:00Z", "WEIR_TRIGGER": "50ms", "WEIR_MAX_OFFSETS": "1500",
		"CATALOG_URI": pg.URI(pg.Addr(), pg.NewDatabase()),
		"S3_ENDPOINT": s3.Endpoint(), "S3_BUCKET": s3Bucket, "S3_PATH_STYLE": "true", "AWS_REGION": s3test.Region,
		"AWS_ACCESS_KEY_ID": s3test.AccessKeyID, "AWS_SECRET_ACCESS_KEY": s3test.SecretAccessKey,
		"KAFKA_BOOTSTRAP": kafka.LoginTLS, "KAFKA_CA_FILE": kafka.CA, "KAFKA_USER": kafkatest.User, "KAFKA_PASSWORD": kafka.Password,
	} {
		t.Setenv(k, v)
	}
	t.Logf("%d events, kills seeded with %d", events, seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	var logged strings.Builder
	for n := range kills {
		query := []string{"bronze", "silver"}[rnd.IntN(2)]
		logged.WriteString(killWithAPlan(t, s3, "checkpoints/"+query, rnd.IntN(4), "run", file, "--listen", "none"))
		t.Logf("kill %d: %s had a batch under way", n+1, query)
	}
	out, errs, code := weir(t, nil, "run", file, "--once", "--listen", "none", "--output", "json")
	if code != exitOK {
		t.Fatalf("weir run: exit %d\n%s\n%s", code, tail(out), tail(errs))
	}
	logged.WriteString(out + errs)
	audit, errs, code := weir(t, nil, "audit", file, "--output", "json")
	if code != exitOK {
		t.Fatalf("weir audit: exit %d\n%s\n%s", code, tail(audit), tail(errs))
	}
	var report struct {
		Tables []tableAudit `json:"tables"`
	}
	if err := json.Unmarshal([]byte(audit), &report); err != nil {
		t.Fatal(err)
	}
	byName := map[string]tableAudit{}
	for _, a := range report.Tables {
		byName[a.Table] = a
	}
	bronze, silver := byName["bronze.recentchange"], byName["silver.edits"]
	if !bronze.Exact || !silver.Exact || bronze.Rows == 0 || silver.Silver == nil || silver.Rows != silver.Silver.DistinctIDs || bronze.Rows != bronze.KafkaRecords {
		t.Fatalf("bronze %+v, silver %+v", bronze, silver)
	}
	countedByOthers(t, s3, serveFile(t, file), bronze, silver)
	for _, secret := range []string{kafka.Password, s3test.SecretAccessKey, "weir:weir@"} {
		if strings.Contains(logged.String()+audit, secret) {
			t.Errorf("%q is in what the program prints", secret)
		}
	}
}

// countedByOthers counts with PyIceberg and, where it is there, DuckDB, both
// through weir catalog serve and the S3 server.
func countedByOthers(t *testing.T, s3 *s3test.Server, url string, bronze, silver tableAudit) {
	t.Helper()
	args := []string{"--catalog", url, "--property", "s3.endpoint=" + s3.Endpoint(), "--property", "s3.region=" + s3test.Region,
		"--property", "s3.access-key-id=" + s3test.AccessKeyID, "--property", "s3.secret-access-key=" + s3test.SecretAccessKey}
	var b, s counted
	reader(t, &b, "count_iceberg.py", append(args, "--table", bronze.Table)...)
	reader(t, &s, "count_iceberg.py", append(args, "--table", silver.Table)...)
	if b.Rows != bronze.Rows || b.DistinctOffsets != bronze.Rows || s.Rows != silver.Rows || s.DistinctIDs != silver.Rows {
		t.Errorf("PyIceberg: bronze %+v, silver %+v; audit %+v, %+v", b, s, bronze, silver)
	}
	duckdb := filepath.Join(repo(t), ".cache", "venv-duckdb", "bin", "python")
	if _, err := os.Stat(duckdb); err != nil {
		t.Fatalf("no DuckDB with its Iceberg extension: run scripts/venv.sh duckdb (%v)", err)
	}
	var d map[string]counted
	readerOf(t, duckdb, &d, "count_duckdb_attached.py", "--catalog", url, "--s3", strings.TrimPrefix(s3.Endpoint(), "http://"),
		"--key", s3test.AccessKeyID, "--secret", s3test.SecretAccessKey, bronze.Table, silver.Table)
	if db, ds := d[bronze.Table], d[silver.Table]; db.Rows != bronze.Rows || db.DistinctOffsets != bronze.Rows || ds.Rows != silver.Rows || ds.DistinctIDs != silver.Rows {
		t.Errorf("DuckDB: %+v; audit %+v, %+v", d, bronze, silver)
	}
}

// killWithAPlan runs the program and kills it the n-th time that the query with
// the checkpoint has a plan without a commit. It returns what the run printed.
func killWithAPlan(t *testing.T, s3 *s3test.Server, checkpoint string, n int, args ...string) string {
	t.Helper()
	log := func(name string) int64 {
		return newest(s3.ObjectPath(s3Bucket, checkpoint+"/"+name))
	}
	p := start(t, nil, append(args, "--log-level", "debug")...)
	seen := log("offsets")
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if o := log("offsets"); o > seen && o > log("commits") {
			if n--; n < 0 {
				p.kill9()
				return p.out.String() + p.errs.String()
			}
			seen = o
		}
		if !p.running() {
			t.Fatalf("it ended by itself\n%s", tail(p.errs.String()))
		}
	}
	p.kill9()
	t.Fatalf("%s had no batch under way\n%s", checkpoint, tail(p.errs.String()))
	return ""
}

// generated serves a generated stream and gives its address.
func generated(t *testing.T, events, seed int) string {
	t.Helper()
	p := start(t, nil, "replay-sse", "--events", strconv.Itoa(events), "--seed", strconv.Itoa(seed), "--rate", "3000", "--listen", "127.0.0.1:0", "--output", "json")
	return urlOf(t, p)
}

// serveFile runs weir catalog serve on a pipeline file and gives its URL.
func serveFile(t *testing.T, file string) string {
	t.Helper()
	return urlOf(t, start(t, nil, "catalog", "serve", file, "--listen", "127.0.0.1:0", "--output", "json"))
}

// urlOf waits for the address that a server prints.
func urlOf(t *testing.T, p *process) string {
	t.Helper()
	var doc struct {
		URL string `json:"url"`
	}
	waitFor(t, "a served address", func() bool {
		if !p.running() {
			t.Fatalf("it ended by itself\n%s", tail(p.errs.String()))
		}
		return json.Unmarshal([]byte(p.out.String()), &doc) == nil && doc.URL != ""
	})
	return doc.URL
}
