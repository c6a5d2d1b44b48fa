package operator

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// offHeapMin is the size from which on slots lie outside of the collector's heap.
const offHeapMin = 64 << 10

// region is memory that the collector neither scans nor counts. Ten million keys
// take 240 MB of it: on the heap they would make the collector wait until as much
// again is garbage. It goes with free, or when nothing refers to it any more.
type region struct {
	b       []byte
	cleanup runtime.Cleanup
}

// newSlots gives room for at least n vacant slots, all zero, and the region it lies
// in, nil for the heap. The rest of a region's last page is given too.
func newSlots(n, slotBytes int) ([]byte, *region) {
	if n*slotBytes >= offHeapMin {
		page := unix.Getpagesize()
		size := (n*slotBytes + page - 1) / page * page
		if b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE); err == nil {
			r := &region{b: b}
			r.cleanup = runtime.AddCleanup(r, func(b []byte) { _ = unix.Munmap(b) }, b)
			return b[:size/slotBytes*slotBytes], r
		} // else the heap will say what is wrong
	}
	return make([]byte, n*slotBytes), nil
}

// free gives the memory back; the slots must not be used any more.
func (r *region) free() {
	if r == nil {
		return
	}
	r.cleanup.Stop()
	_ = unix.Munmap(r.b)
}
