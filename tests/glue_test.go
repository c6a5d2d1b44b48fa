package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/weirlake/weir/internal/lake/catalogtest"
)

// glueReader is the Python that has PyIceberg with boto3.
func glueReader(t *testing.T) string {
	t.Helper()
	py := filepath.Join(repo(t), ".cache", "venv-moto", "bin", "python")
	if _, err := os.Stat(py); err != nil {
		t.Skipf("no Python with PyIceberg and boto3 at %s: run scripts/venv.sh moto", py)
	}
	return py
}

// useGlue puts the lab's tables into the Glue and its files and checkpoints into
// the S3 of a moto, an emulation of both. Glue is behind a proxy that looks at
// the version of an update, as AWS does and moto does not.
func (l *lab) useGlue(moto *catalogtest.Server) (properties []string) {
	l.t.Helper()
	bucket := moto.Bucket("lake")
	s3, glue := "http://"+moto.Addr(), catalogtest.NewGlueLine(l.t, moto).URL()
	// Glue's credentials are those of the SDK's chain.
	for k, v := range map[string]string{"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"} {
		l.t.Setenv(k, v)
	}
	l.useCatalog(fmt.Sprintf("catalog: {type: glue, glue: {endpoint: %q}}", glue))
	l.edit(fmt.Sprintf("warehouse: %q", filepath.Join(l.dir, "warehouse")), "warehouse: s3://"+bucket+"/warehouse")
	l.edit(fmt.Sprintf("checkpointLocation: %q", filepath.Join(l.dir, "checkpoints")), "checkpointLocation: s3://"+bucket+"/checkpoints\n"+
		fmt.Sprintf("stores: [{endpoint: %q, pathStyle: true}]", s3))
	return []string{"glue.endpoint=" + glue, "glue.region=us-east-1", "s3.endpoint=" + s3, "s3.region=us-east-1",
		"s3.access-key-id=test", "s3.secret-access-key=test"}
}

func TestAPipelineOnGlueByMotoKilledFiveTimesIsExactByPyIcebergToo(t *testing.T) {
	weirBin(t)
	py := glueReader(t)
	moto := catalogtest.StartMoto(t)
	l := newLab(t, 600)
	properties := l.useGlue(moto)
	for _, point := range []string{"bronze/commit.metadata:2", "bronze/commit.swapped:2", "silver/commit.metadata:2", "silver/commit.side:1", "silver/commit.swapped:1"} {
		l.crash(point)
		l.produce(300)
	}
	l.run(exitOK)
	l.exact()
	args := []string{"--catalog", "glue:"}
	for _, p := range properties {
		args = append(args, "--property", p)
	}
	var b, s counted
	readerOf(t, py, &b, "count_iceberg.py", append(args, "--table", labBronze)...)
	readerOf(t, py, &s, "count_iceberg.py", append(args, "--table", labSilver)...)
	if want := int64(len(l.wantIDs())); b.Rows != l.sent || b.DistinctOffsets != l.sent || s.Rows != want || s.DistinctIDs != want {
		t.Fatalf("PyIceberg: bronze %+v of %d records, silver %+v of %d ids", b, l.sent, s, want)
	}
}
