package lake

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/apache/iceberg-go/table"
)

// fullMetadata has every field that format version 2 knows.
const fullMetadata = `{"format-version":2,"table-uuid":"9c12d441-03fe-4693-9a96-a0705ddf69c1","location":"file:///t","last-sequence-number":34,
"last-updated-ms":1602638573590,"last-column-id":3,"current-schema-id":1,
"schemas":[{"type":"struct","schema-id":0,"fields":[{"id":1,"name":"x","required":true,"type":"long"}]},
{"type":"struct","schema-id":1,"identifier-field-ids":[1,2],"fields":[{"id":1,"name":"x","required":true,"type":"long"},
{"id":2,"name":"y","required":true,"type":"long","doc":"<comment> & more"},{"id":3,"name":"z","required":true,"type":"long"}]}],
"default-spec-id":0,"partition-specs":[{"spec-id":0,"fields":[{"name":"x","transform":"identity","source-id":1,"field-id":1000}]}],"last-partition-id":1000,
"default-sort-order-id":3,"sort-orders":[{"order-id":3,"fields":[{"transform":"identity","source-id":2,"direction":"asc","null-order":"nulls-first"},
{"transform":"bucket[4]","source-id":3,"direction":"desc","null-order":"nulls-last"}]}],
"properties":{"read.split.target.size":"134217728","a \"quoted\" one":"<é>"},"current-snapshot-id":3055729675574597004,
"snapshots":[{"snapshot-id":3051729675574597004,"timestamp-ms":1515100955770,"sequence-number":0,"summary":{"operation":"append"},"manifest-list":"file:///a/b/1.avro"},
{"snapshot-id":3055729675574597004,"parent-snapshot-id":3051729675574597004,"timestamp-ms":1555100955770,"sequence-number":1,
"summary":{"operation":"append","weir.marker":"{\"a\":[1,2]}"},"manifest-list":"file:///a/b/2.avro","schema-id":1}],
"snapshot-log":[{"snapshot-id":3051729675574597004,"timestamp-ms":1515100955770},{"snapshot-id":3055729675574597004,"timestamp-ms":1555100955770}],
"metadata-log":[{"metadata-file":"file:///t/metadata/v1.json","timestamp-ms":1515100}],
"statistics":[{"snapshot-id":3055729675574597004,"statistics-path":"file:///t/s.puffin","file-size-in-bytes":413,"file-footer-size-in-bytes":42,
"blob-metadata":[{"type":"ndv","snapshot-id":3055729675574597004,"sequence-number":1,"fields":[1]}]}],
"partition-statistics":[{"snapshot-id":3055729675574597004,"statistics-path":"file:///t/p.parquet","file-size-in-bytes":43}],
"refs":{"test":{"snapshot-id":3051729675574597004,"type":"tag","max-ref-age-ms":10000000},
"main":{"snapshot-id":3055729675574597004,"type":"branch","min-snapshots-to-keep":3,"max-snapshot-age-ms":7}}}`

// sameText demands that the text says what the library's own says.
func sameText(t *testing.T, texts *metadataTexts, meta table.Metadata) {
	t.Helper()
	ours, err := texts.of(meta)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := json.Marshal(meta)
	if err != nil {
		t.Fatal(err)
	}
	var a, b any
	if err := json.Unmarshal(ours, &a); err != nil {
		t.Fatalf("%v: %s", err, ours)
	}
	if err := json.Unmarshal(theirs, &b); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(a, b) {
		t.Fatalf("the texts differ:\n%s\n%s", ours, theirs)
	}
	if again, err := table.ParseMetadataBytes(ours); err != nil || !again.Equals(meta) {
		t.Fatalf("read again it is another: %v", err)
	}
}

func TestMetadataIsWrittenAsTheLibraryWritesIt(t *testing.T) {
	var texts metadataTexts
	full, err := table.ParseMetadataString(fullMetadata)
	if err != nil {
		t.Fatal(err)
	}
	sameText(t, &texts, full)
	sameText(t, &texts, full) // from what was kept
	// Another snapshot under an id that is known, as of a commit that is tried again.
	other, err := table.ParseMetadataString(strings.Replace(fullMetadata, "file:///a/b/2.avro", "file:///a/b/3.avro", 1))
	if err != nil {
		t.Fatal(err)
	}
	sameText(t, &texts, other)
	// Fewer snapshots.
	b, err := table.MetadataBuilderFromBase(full, "file:///t/metadata/v2.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.RemoveSnapshots([]int64{3051729675574597004}, false); err != nil {
		t.Fatal(err)
	}
	fewer, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	sameText(t, &texts, fewer)
	if n := len(texts.byTable[fewer.TableUUID()]); n != len(fewer.Snapshots()) {
		t.Fatalf("%d texts are kept of %d snapshots", n, len(fewer.Snapshots()))
	}
	empty, err := table.NewMetadata(full.CurrentSchema(), nil, table.UnsortedSortOrder, "file:///e", nil)
	if err != nil {
		t.Fatal(err)
	}
	sameText(t, &texts, empty)
	for n := range 2 * maxParsed {
		m, err := table.NewMetadata(full.CurrentSchema(), nil, table.UnsortedSortOrder, fmt.Sprintf("file:///e%d", n), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := texts.snapshots(m); err != nil {
			t.Fatal(err)
		}
	}
	if len(texts.byTable) > maxParsed {
		t.Fatalf("texts of %d tables are kept", len(texts.byTable))
	}
}

// A newer library may know fields that metadataHead lacks: they would be lost.
func TestTheLibrarysMetadataHasNoFieldThatIsNotWritten(t *testing.T) {
	full, err := table.ParseMetadataString(fullMetadata)
	if err != nil {
		t.Fatal(err)
	}
	known := append(jsonNames(reflect.TypeFor[metadataHead]()), "snapshots", "next-row-id") // the last is of version 3
	for _, name := range jsonNames(reflect.TypeOf(full).Elem()) {
		if !slices.Contains(known, name) {
			t.Errorf("the library's metadata has %q, what is written has not", name)
		}
	}
}

func jsonNames(typ reflect.Type) (out []string) {
	for i := range typ.NumField() {
		f := typ.Field(i)
		if f.Anonymous {
			out = append(out, jsonNames(f.Type)...)
			continue
		}
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			out = append(out, name)
		}
	}
	return out
}
