package state

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
)

// rowsOf lists the keys of an encoded snapshot of dedup, sorted: a second
// reading of the format, so that the comparison does not lean on the first.
func rowsOf(t testing.TB, b []byte) []string {
	t.Helper()
	var out []string
	if format := binary.LittleEndian.Uint16(b[8:]); format == 1 {
		b = b[40:]
	} else {
		b = b[56:]
	}
	for len(b) > 0 {
		kind, rows, size := b[0], int(binary.LittleEndian.Uint32(b[1:])), int(binary.LittleEndian.Uint32(b[5:]))
		p := b[13 : 13+size]
		b = b[13+size:]
		var last int64
		switch kind {
		case 1:
			times := p[16*rows:]
			for i := range rows {
				v, n := binary.Varint(times)
				times = times[n:]
				last += v
				out = append(out, fmt.Sprintf("%x %d", p[16*i:16*i+16], last))
			}
		case 3:
			first, size := binary.LittleEndian.Uint64(p), int(p[8])
			for p = p[9:]; len(p) > 0; p = p[size+16:] {
				at := int64(first)
				for i, b := range p[:size] {
					at += int64(b) << (8 * i)
				}
				out = append(out, fmt.Sprintf("%016x%016x %d", binary.LittleEndian.Uint64(p[size:]), binary.LittleEndian.Uint64(p[size+8:]), at))
			}
		case 2:
			for range rows {
				l, n := binary.Uvarint(p)
				id := p[n : n+int(l)]
				p = p[n+int(l):]
				v, n := binary.Varint(p)
				p = p[n:]
				last += v
				out = append(out, fmt.Sprintf("%q %d", id, last))
			}
		}
	}
	slices.Sort(out)
	return out
}
