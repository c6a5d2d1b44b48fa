package upsert

import (
	"bytes"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/failure"
)

func numbers(values ...int64) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64, Nullable: true}}, nil))
	defer b.Release()
	for _, v := range values {
		if v < 0 {
			b.Field(0).AppendNull()
		} else {
			b.Field(0).(*array.Int64Builder).Append(v)
		}
	}
	return b.NewRecordBatch()
}

func TestStagedChangesAreReadBackAndHeldAgainstTheirChecksum(t *testing.T) {
	var file bytes.Buffer
	w := NewStageWriter(&file, numbers().Schema())
	for _, rec := range []arrow.RecordBatch{numbers(1, 2), numbers(3)} {
		if err := w.Add(rec); err != nil {
			t.Fatal(err)
		}
	}
	rows, size, sha, err := w.Finish()
	if err != nil || rows != 3 || size != int64(file.Len()) || len(w.Records()) != 2 {
		t.Fatalf("%d rows, %d bytes, %v", rows, size, err)
	}
	got, err := ReadStage(bytes.NewReader(file.Bytes()), sha)
	if err != nil || len(got) != 2 || got[0].Column(0).(*array.Int64).Value(1) != 2 {
		t.Fatalf("%v %v", got, err)
	}
	for name, bad := range map[string][]byte{"changed": append(bytes.Clone(file.Bytes()), 0), "cut": file.Bytes()[:file.Len()/2], "empty": nil} {
		if _, err := ReadStage(bytes.NewReader(bad), sha); !failure.Is(err, failure.Checkpoint) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestARowWithoutAKeyIsRefused(t *testing.T) {
	_, err := Reduce([]arrow.RecordBatch{numbers(1, -1)}, Spec{Keys: []string{"id"}})
	if !failure.Is(err, failure.SchemaConflict) {
		t.Fatalf("%v", err)
	}
}
