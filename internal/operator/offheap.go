package operator

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// offHeapMin is the size from which on slots lie outside of the collector's heap.
const offHeapMin = 64 << 10

// region is memory that the collector neither scans nor counts. Ten million keys
// take 340 MB of it: on the heap they would make the collector wait until as much
// again is garbage. It goes with free, or when nothing refers to it any more.
type region struct {
	b       []byte
	cleanup runtime.Cleanup
}

// newSlots gives n vacant slots, and the region they lie in, nil for the heap.
func newSlots(n int) ([]slot, *region) {
	slots, r := offHeap(n)
	if r == nil {
		slots = make([]slot, n)
	}
	for i := range slots {
		slots[i].at = vacant
	}
	return slots, r
}

func offHeap(n int) ([]slot, *region) {
	size := n * int(unsafe.Sizeof(slot{}))
	if size < offHeapMin {
		return nil, nil
	}
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, nil // the heap will say what is wrong
	}
	r := &region{b: b}
	r.cleanup = runtime.AddCleanup(r, func(b []byte) { _ = unix.Munmap(b) }, b)
	return unsafe.Slice((*slot)(unsafe.Pointer(unsafe.SliceData(b))), n), r
}

// free gives the memory back; the slots must not be used any more.
func (r *region) free() {
	if r == nil {
		return
	}
	r.cleanup.Stop()
	_ = unix.Munmap(r.b)
}
