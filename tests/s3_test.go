package tests

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/s3test"
)

const s3Bucket = "lake"

// newLabOnS3 is a lab whose tables and checkpoints lie on a real S3 server. The
// catalog stays a local file.
func newLabOnS3(t *testing.T, records int) (*lab, *s3test.Server) {
	t.Helper()
	weirBin(t)
	srv := s3test.Start(t)
	srv.Bucket(s3Bucket)
	l := newLab(t, records)
	l.edit(fmt.Sprintf("warehouse: %q", filepath.Join(l.dir, "warehouse")), "warehouse: s3://"+s3Bucket+"/warehouse")
	l.edit(fmt.Sprintf("checkpointLocation: %q", filepath.Join(l.dir, "checkpoints")), "checkpointLocation: s3://"+s3Bucket+"/checkpoints\n"+
		fmt.Sprintf("stores: [{endpoint: %q, region: %s, pathStyle: true, accessKeyId: %q, secretAccessKey: %q}]",
			srv.Endpoint(), s3test.Region, s3test.AccessKeyID, s3test.SecretAccessKey))
	return l, srv
}

// countOnS3 counts a table with PyIceberg, which reads the same bucket.
func (l *lab) countOnS3(srv *s3test.Server, table string) (c counted) {
	l.t.Helper()
	reader(l.t, &c, "count_iceberg.py", "--catalog", l.catalog(), "--table", table,
		"--property", "s3.endpoint="+srv.Endpoint(), "--property", "s3.region="+s3test.Region,
		"--property", "s3.access-key-id="+s3test.AccessKeyID, "--property", "s3.secret-access-key="+s3test.SecretAccessKey)
	return c
}

func (l *lab) exactOnS3(srv *s3test.Server) {
	l.t.Helper()
	l.exact()
	want := int64(len(l.wantIDs()))
	b, s := l.countOnS3(srv, labBronze), l.countOnS3(srv, labSilver)
	if b.Rows != l.sent || b.DistinctOffsets != l.sent || s.Rows != want || s.DistinctIDs != want {
		l.t.Errorf("PyIceberg: bronze %+v of %d records, silver %+v of %d ids", b, l.sent, s, want)
	}
}

func TestAPipelineOnS3KilledFiveTimesIsExact(t *testing.T) {
	python(t)
	l, srv := newLabOnS3(t, 2000)
	l.crash("bronze/stage.done:2")
	l.crash("silver/commit.metadata:2")
	for _, query := range []string{"bronze", "silver"} {
		l.produce(2000)
		killOnS3(l, srv, query)
	}
	l.crash("bronze/commit.swapped:3")
	l.produce(500)
	l.run(exitOK)
	l.exactOnS3(srv)
	for _, name := range []string{"warehouse", "checkpoints"} {
		if left, err := os.ReadDir(filepath.Join(l.dir, name)); err == nil {
			t.Errorf("there is a local folder %s with %d entries", name, len(left))
		}
	}
	// A checkpoint that is gone is adopted from the markers, also on S3.
	if err := os.RemoveAll(srv.ObjectPath(s3Bucket, "checkpoints/silver")); err != nil {
		t.Fatal(err)
	}
	l.produce(300)
	l.run(exitOK)
	l.exactOnS3(srv)
}

// killOnS3 kills a run while a query has a plan without a commit. The server
// keeps each object in a file of its own, so the folder can be looked at.
func killOnS3(l *lab, srv *s3test.Server, query string) {
	l.t.Helper()
	log := func(name string) int64 { return newest(srv.ObjectPath(s3Bucket, "checkpoints/"+query+"/"+name)) }
	before := log("offsets")
	p := start(l.t, nil, "run", l.file)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if n := log("offsets"); n > before && n > log("commits") {
			p.kill9()
			return
		}
		if !p.running() {
			l.t.Fatalf("it ended by itself\n%s", tail(p.errs.String()))
		}
	}
	l.t.Fatalf("%s never had a batch under way", query)
}

func TestASecondInstanceOnS3IsRefusedOnTheSameHostAndATakeOverFencesTheFirst(t *testing.T) {
	l, _ := newLabOnS3(t, 300)
	first := start(t, nil, "run", l.file)
	waitFor(t, "the first instance", func() bool { return l.statusBatch("silver") >= 0 })
	_, errs := l.run(exitFenced)
	if !strings.Contains(errs, fmt.Sprintf("process %d", first.cmd.Process.Pid)) || !strings.Contains(errs, "--take-over") {
		t.Errorf("neither the other process nor the way out is named\n%s", tail(errs))
	}
	l.run(exitOK, "--take-over")
	l.produce(300)
	if code := first.wait(); code != exitFenced {
		t.Fatalf("the first instance: exit %d\n%s", code, tail(first.errs.String()))
	}
	l.run(exitOK)
	l.exact()
}

func TestAPipelineRidesThroughAKillOfItsS3Server(t *testing.T) {
	python(t)
	l, srv := newLabOnS3(t, 500)
	p := start(t, nil, "run", l.file)
	for range 3 {
		waitFor(t, "a batch of silver", func() bool { return l.statusBatch("silver") >= 0 })
		l.produce(1000)
		time.Sleep(100 * time.Millisecond) // into the batches; whatever is under way is fine
		srv.Kill9()
		l.produce(500)
		srv.Restart()
	}
	if !p.running() {
		t.Fatalf("it ended by itself\n%s", tail(p.errs.String()))
	}
	p.stop(exitOK)
	l.run(exitOK)
	l.exactOnS3(srv)
}

// statusBatch is the last batch of a query, by `weir status`.
func (l *lab) statusBatch(query string) int64 {
	l.t.Helper()
	out, errs, code := weir(l.t, nil, "status", l.file, "--output", "json")
	if code != exitOK {
		l.t.Fatalf("weir status: exit %d\n%s", code, tail(errs))
	}
	var s struct {
		Queries []struct {
			Name    string `json:"name"`
			BatchID int64  `json:"batch_id"`
		} `json:"queries"`
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		l.t.Fatalf("%v\n%s", err, out)
	}
	for _, q := range s.Queries {
		if q.Name == query {
			return q.BatchID
		}
	}
	return -1
}

func TestACheckpointOnS3IsPutAsideAndAdoptedByHand(t *testing.T) {
	l, srv := newLabOnS3(t, 300)
	l.run(exitOK)
	out, errs, code := weir(t, nil, "checkpoint", "adopt", l.file, "silver", "--output", "json")
	if code != exitOK {
		t.Fatalf("adopt: exit %d\n%s", code, tail(errs))
	}
	var done struct{ Aside string }
	if err := json.Unmarshal([]byte(out), &done); err != nil || !strings.HasPrefix(done.Aside, "s3://"+s3Bucket+"/checkpoints/silver.aside-") {
		t.Fatalf("%s, %v", out, err)
	}
	if newest(srv.ObjectPath(s3Bucket, strings.TrimPrefix(done.Aside, "s3://"+s3Bucket+"/")+"/commits")) < 0 {
		t.Errorf("the old checkpoint is not at %s", done.Aside)
	}
	l.produce(300)
	l.run(exitOK)
	l.exact()
}

func TestAStoreThatCannotBeUsedStopsBeforeAnythingIsClaimed(t *testing.T) {
	l, _ := newLabOnS3(t, 10)
	l.edit(s3test.SecretAccessKey, "planted-secret")
	out, errs := l.run(exitConfig)
	if !strings.Contains(errs, "secretAccessKey") || strings.Contains(out+errs, "planted-secret") {
		t.Errorf("the fault is not named, or the secret is\n%s", tail(errs))
	}
	l.edit("s3://"+s3Bucket+"/warehouse", "s3://elsewhere/warehouse")
	l.edit("planted-secret", s3test.SecretAccessKey)
	if _, errs := l.run(exitConfig); !strings.Contains(errs, "bucket") {
		t.Errorf("the missing bucket is not named\n%s", tail(errs))
	}
}
