package care_test

import (
	"context"
	"testing"

	"github.com/weirlake/weir/internal/bench/care"
)

// Counts and sizes only: what a commit takes is for weir bench care to say.
func TestATableIsAsSmallAfterManyCommitsAsAfterAFew(t *testing.T) {
	commits := 800
	r, err := care.Run(context.Background(), care.Options{Commits: commits, Rows: 1, Bucket: 400})
	if err != nil {
		t.Fatal(err)
	}
	if r.Commits != commits || r.Rows != int64(commits) {
		t.Fatalf("%d commits, %d rows", r.Commits, r.Rows)
	}
	for i, b := range r.Buckets {
		// 200 snapshots stay, a quarter more gather before they are expired, and
		// care comes every 50 commits.
		if b.Snapshots > 320 || b.MetadataBytes > 500_000 || b.Manifests > 120 || b.FilesMost > 120 {
			t.Errorf("after %d commits: %+v", b.Commits, b)
		}
		if i > 0 && float64(b.MetadataBytes) > 1.25*float64(r.Buckets[0].MetadataBytes) {
			t.Errorf("metadata grew from %d to %d bytes", r.Buckets[0].MetadataBytes, b.MetadataBytes)
		}
	}
	if r.Health.Compacted.FilesRemoved < commits/2 || r.Health.Expired < commits/3 {
		t.Errorf("care: %+v", r.Health)
	}
}
