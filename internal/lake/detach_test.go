package lake

import (
	"runtime"
	"strconv"
	"testing"
)

func TestMetadataThatWasReplacedIsLetGoOf(t *testing.T) {
	c := openTest(t, t.TempDir())
	ident := ensure(t, c, "bronze.events").Identifier()
	filler := make([]byte, 2000)
	for i := range filler {
		filler[i] = 'x'
	}
	heapAfter := func(commits int) uint64 {
		for i := range commits {
			tbl, err := c.LoadTable(t.Context(), ident)
			if err != nil {
				t.Fatal(err)
			}
			ch := Change{Properties: map[string]string{"n": strconv.Itoa(i)}, Summary: map[string]string{"weir.filler": string(filler)}}
			if _, err := c.Commit(t.Context(), tbl, ch); err != nil {
				t.Fatal(err)
			}
		}
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heapAfter(40)
	after := heapAfter(60)
	// Held versions would be 60 of 40 to 100 snapshots each, and their builders.
	if after > before+4<<20 {
		t.Errorf("60 commits left %.1f MB behind: replaced metadata is still held", float64(after-before)/(1<<20))
	}
}
