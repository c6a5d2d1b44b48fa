package maintain

import (
	"context"
	"errors"
	"testing"

	"github.com/apache/iceberg-go"
)

// sized is a group of one file of so many bytes.
func sized(t *testing.T, bytes int64) group {
	t.Helper()
	b, err := iceberg.NewDataFileBuilder(*iceberg.UnpartitionedSpec, iceberg.EntryContentData, "file:///f.parquet", iceberg.ParquetFile, nil, nil, nil, 1, bytes)
	if err != nil {
		t.Fatal(err)
	}
	return group{{file: b.Build()}}
}

func TestOfTheLargeRewritesBesideTheBatchesOneIsWrittenAtATime(t *testing.T) {
	end, err := sized(t, besideFree+1).turn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if _, err := sized(t, besideFree+1).turn(stopped); !errors.Is(err, context.Canceled) {
		t.Fatalf("a second one had its turn, or waits for it after its run has ended: %v", err)
	}
	free, err := sized(t, besideFree).turn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	free()
	waiting := make(chan func())
	go func() {
		end, err := sized(t, besideFree+1).turn(t.Context())
		if err != nil {
			t.Error(err)
		}
		waiting <- end
	}()
	end()
	(<-waiting)()
	if len(besideOne) != 0 {
		t.Fatal("a turn that has ended is still taken")
	}
}
