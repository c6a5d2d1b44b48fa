package iceberg

import (
	"encoding/json"
	"testing"

	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/marker"
)

// chain makes a loaded table out of snapshots {id, parent, sequence number,
// attempt}; the last one is the head. Parent 0 is none.
func chain(t *testing.T, snapshots ...[]any) *table.Table {
	t.Helper()
	var list []map[string]any
	var head any
	seq := 0
	for _, s := range snapshots {
		e := map[string]any{"snapshot-id": s[0], "sequence-number": s[2], "timestamp-ms": 1_700_000_000_000, "schema-id": 0,
			"manifest-list": "file:///x", "summary": map[string]any{"operation": "append", marker.KeyAttempt: s[3]}}
		if s[1] != 0 {
			e["parent-snapshot-id"] = s[1]
		}
		list = append(list, e)
		head, seq = s[0], max(seq, s[2].(int))
	}
	doc := map[string]any{"format-version": 2, "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1", "location": "file:///x",
		"last-sequence-number": seq, "last-updated-ms": 1_700_000_000_000, "last-column-id": 1, "current-schema-id": 0,
		"schemas":         []any{map[string]any{"type": "struct", "schema-id": 0, "fields": []any{map[string]any{"id": 1, "name": "id", "required": true, "type": "long"}}}},
		"default-spec-id": 0, "partition-specs": []any{map[string]any{"spec-id": 0, "fields": []any{}}}, "last-partition-id": 999,
		"default-sort-order-id": 0, "sort-orders": []any{map[string]any{"order-id": 0, "fields": []any{}}}, "snapshots": list,
	}
	if head != nil {
		doc["current-snapshot-id"] = head
	}
	b, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	meta, err := table.ParseMetadataBytes(b)
	if err != nil {
		t.Fatal(err)
	}
	return table.New([]string{"a", "b"}, meta, "file:///x", nil, nil)
}

func TestOnlyAHeadThatContradictsTheMarkerIsRewound(t *testing.T) {
	ours := &marker.Marker{BatchID: 4, Attempt: "ours", BaseSequence: 5}
	first := &marker.Marker{BatchID: -1, Attempt: "ours", BaseSequence: 0}
	for _, c := range []struct {
		name    string
		m       *marker.Marker
		rewound bool
		table   [][]any
	}{
		{"ours is the head", ours, false, [][]any{{15, 0, 5, ""}, {16, 15, 6, "ours"}}},
		{"others wrote after ours", ours, false, [][]any{{16, 15, 6, "ours"}, {17, 16, 7, ""}}},
		{"ours was expired", ours, false, [][]any{{17, 16, 7, ""}, {18, 17, 8, ""}}},
		{"ours was expired by an engine that clears parents", ours, false, [][]any{{17, 0, 7, ""}, {18, 17, 8, ""}}},
		{"rolled back to the head before ours", ours, true, [][]any{{16, 15, 6, "ours"}, {15, 14, 5, ""}}},
		{"rolled back further", ours, true, [][]any{{14, 13, 4, ""}}},
		{"rolled back and written by others", ours, true, [][]any{{15, 14, 5, ""}, {16, 15, 6, "ours"}, {17, 15, 7, ""}, {18, 17, 8, ""}}},
		{"replaced", ours, true, [][]any{{16, 15, 6, "ours"}, {17, 0, 7, ""}}},
		{"emptied", ours, true, nil},
		{"emptied after the first claim", first, true, nil},
		{"another first snapshot than the claim", first, true, [][]any{{11, 0, 1, "theirs"}}},
		{"the claim is the first snapshot", first, false, [][]any{{11, 0, 1, "ours"}, {12, 11, 2, ""}}},
	} {
		got := rewound(chain(t, c.table...), c.m)
		if (got != "") != c.rewound {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}
