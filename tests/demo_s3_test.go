package tests

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/weirlake/weir/internal/lake/catalogtest"
	"github.com/weirlake/weir/internal/s3test"
)

// TestADemoOnS3AndPostgresKilledOnceIsExact kills the demo with a batch under
// way; its own count holds, and PyIceberg reads the same from the S3 server by the
// Postgres.
func TestADemoOnS3AndPostgresKilledOnceIsExact(t *testing.T) {
	if os.Getenv(envCloudRun) == "" {
		t.Skip("starts an S3 server and a Postgres: run make cloud-run, or set " + envCloudRun)
	}
	const events = 5_000
	weirBin(t)
	attached := filepath.Join(repo(t), ".cache", "venv-attach", "bin", "python")
	if _, err := os.Stat(attached); err != nil {
		t.Fatalf("no PyIceberg that reads Postgres: run scripts/venv.sh attach (%v)", err)
	}
	s3, pg := s3test.Start(t), catalogtest.StartPostgres(t)
	s3.Bucket(s3Bucket)
	for k, v := range map[string]string{"AWS_REGION": s3test.Region, "AWS_ACCESS_KEY_ID": s3test.AccessKeyID, "AWS_SECRET_ACCESS_KEY": s3test.SecretAccessKey} {
		t.Setenv(k, v)
	}
	catalog, data := pg.URI(pg.Addr(), pg.NewDatabase()), t.TempDir()
	args := []string{"demo", "--data", data, "--events", strconv.Itoa(events), "--once", "--listen", "none",
		"--s3", "s3://" + s3Bucket + "/demo", "--s3-endpoint", s3.Endpoint(), "--catalog", catalog}
	logged := killWithAPlan(t, s3, "demo/checkpoints/bronze", 0, append(args, "--rate", "500")...)
	out, errs, code := weir(t, nil, append(args, "--output", "json")...)
	if code != exitOK {
		t.Fatalf("weir demo: exit %d\n%s\n%s", code, tail(out), tail(errs))
	}
	var got demoSummary
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got.BronzeRows == 0 || got.BronzeRows != got.KafkaRecords || got.SilverRows == 0 {
		t.Errorf("%+v", got)
	}
	props := []string{"--catalog", strings.Replace(catalog, "postgres://", "postgresql+psycopg://", 1), "--property", "s3.endpoint=" + s3.Endpoint(),
		"--property", "s3.region=" + s3test.Region, "--property", "s3.access-key-id=" + s3test.AccessKeyID, "--property", "s3.secret-access-key=" + s3test.SecretAccessKey}
	for table, want := range map[string]int64{"bronze.recentchange": got.BronzeRows, "silver.edits": got.SilverRows} {
		var c counted
		readerOf(t, attached, &c, "count_iceberg.py", append(props, "--table", table)...)
		if c.Rows != want || (c.DistinctOffsets != want && c.DistinctIDs != want) {
			t.Errorf("PyIceberg counts %+v in %s; the demo %d", c, table, want)
		}
	}
	if _, err := os.Stat(filepath.Join(data, "warehouse")); err == nil {
		t.Error("the demo's folder has a warehouse")
	}
	for _, secret := range []string{s3test.SecretAccessKey, "weir:weir@"} {
		if strings.Contains(logged+out+errs, secret) {
			t.Errorf("%q is in what the program prints", secret)
		}
	}
	_, errs, code = weir(t, nil, "demo", "--data", data, "--events", strconv.Itoa(events), "--once", "--listen", "none")
	if code != exitConfig || !strings.Contains(errs, "lies elsewhere") {
		t.Errorf("without its places: exit %d\n%s", code, tail(errs))
	}
}
