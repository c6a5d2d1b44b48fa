package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/weirlake/weir/internal/objstore/cloud/cloudtest"
)

// onCloud puts the lab's tables and checkpoints into a bucket; the catalog stays
// a local file.
func (l *lab) onCloud(bucket, store string) {
	l.t.Helper()
	l.edit(fmt.Sprintf("warehouse: %q", filepath.Join(l.dir, "warehouse")), "warehouse: "+bucket+"/warehouse")
	l.edit(fmt.Sprintf("checkpointLocation: %q", filepath.Join(l.dir, "checkpoints")), "checkpointLocation: "+bucket+"/checkpoints\nstores: ["+store+"]")
}

// killedOnCloud kills the pipeline at the steps where a batch is half done, and
// counts.
func killedOnCloud(l *lab) {
	l.t.Helper()
	for _, point := range []string{"bronze/stage.done:2", "silver/commit.metadata:2", "bronze/commit.swapped:2", "silver/plan.written:2", "silver/commit.swapped:1"} {
		l.crash(point)
		l.produce(300)
	}
	l.run(exitOK)
	l.exact()
	for _, name := range []string{"warehouse", "checkpoints"} {
		if left, err := os.ReadDir(filepath.Join(l.dir, name)); err == nil {
			l.t.Errorf("there is a local folder %s with %d entries", name, len(left))
		}
	}
}

func TestAPipelineOnAnEmulatedGoogleCloudStorageKilledFiveTimesIsExact(t *testing.T) {
	weirBin(t)
	srv := cloudtest.StartGCS(t)
	l := newLab(t, 600)
	l.onCloud(srv.Bucket("lake"), fmt.Sprintf("{type: gcs, endpoint: %q, anonymous: true}", srv.Endpoint()))
	killedOnCloud(l)
}

// PyIceberg's access to Azure by pyarrow takes container@account for the
// container's name: what counts here is the audit.
func TestAPipelineOnAnEmulatedAzureKilledFiveTimesIsExact(t *testing.T) {
	weirBin(t)
	srv := cloudtest.StartAzure(t)
	l := newLab(t, 600)
	l.onCloud(srv.Bucket("lake"), fmt.Sprintf("{type: azure, account: %s, endpoint: %q, accountKey: %q}", cloudtest.Account, srv.Endpoint(), cloudtest.AccountKey))
	killedOnCloud(l)
}
