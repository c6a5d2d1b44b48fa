package audit

import (
	"bytes"
	"crypto/sha256"
	"slices"
)

// maxIDsPerPass bounds the digests that are held at once: 128 MB.
const maxIDsPerPass = 8 << 20

// examplesMax bounds the doubled ids that a report names.
const examplesMax = 10

// digest is 128 bits of an id's SHA-256: equal digests are equal ids for every
// practical purpose (a chance of 10^-23 at 50 million ids).
type digest [16]byte

// idPass collects the digests of one slice of the id space.
type idPass struct {
	pass, passes int
	digests      []digest
	nulls        int64
}

// passesFor is how many passes keep each below the bound.
func passesFor(rows int64) int { return int((rows + maxIDsPerPass - 1) / maxIDsPerPass) }

func (p *idPass) add(id *column, row int) {
	if id.Null[row] {
		if p.pass == 0 {
			p.nulls++
		}
		return
	}
	var sum [32]byte
	if len(id.Bytes) > 0 {
		sum = sha256.Sum256(id.Bytes[row])
	} else {
		var b [8]byte
		for i := range b {
			b[i] = byte(id.Int[row] >> (8 * i))
		}
		sum = sha256.Sum256(b[:])
	}
	if p.passes > 1 && int(sum[31])%p.passes != p.pass {
		return
	}
	p.digests = append(p.digests, digest(sum[:16]))
}

// finish counts distinct ids and returns the digests that came twice.
func (p *idPass) finish() (distinct int64, doubled map[digest]bool) {
	slices.SortFunc(p.digests, func(a, b digest) int { return bytes.Compare(a[:], b[:]) })
	doubled = map[digest]bool{}
	for i, d := range p.digests {
		if i > 0 && d == p.digests[i-1] {
			if len(doubled) < examplesMax {
				doubled[d] = true
			}
			continue
		}
		distinct++
	}
	return distinct, doubled
}
