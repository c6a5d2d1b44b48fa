package audit

import (
	"maps"
	"math/bits"
	"slices"
)

// offsetChunk is the number of offsets in one bitmap: small enough that a
// topic with wide holes stays cheap, large enough that 50 million contiguous
// offsets need only some twelve thousand map entries.
const offsetChunk = 4096

type bitmap [offsetChunk / 64]uint64

// OffsetSet is a set of offsets of one partition that also knows which of them
// were added more than once.
type OffsetSet struct {
	once  map[int64]*bitmap
	twice map[int64]*bitmap
	// doubled is the number of additions beyond the first of each offset.
	doubled int64
	n       int64
}

// NewOffsetSet is an empty set.
func NewOffsetSet() *OffsetSet {
	return &OffsetSet{once: map[int64]*bitmap{}, twice: map[int64]*bitmap{}}
}

// Add adds one offset. Negative offsets do not exist in Kafka; they are kept
// all the same, so that a table that holds one is seen to differ.
func (s *OffsetSet) Add(offset int64) {
	key, word, bit := place(offset)
	b := s.once[key]
	if b == nil {
		b = &bitmap{}
		s.once[key] = b
	}
	if b[word]&bit == 0 {
		b[word] |= bit
		s.n++
		return
	}
	s.doubled++
	d := s.twice[key]
	if d == nil {
		d = &bitmap{}
		s.twice[key] = d
	}
	d[word] |= bit
}

func place(offset int64) (key int64, word int, bit uint64) {
	key = offset / offsetChunk
	rest := offset % offsetChunk
	if rest < 0 {
		key, rest = key-1, rest+offsetChunk
	}
	return key, int(rest / 64), 1 << (uint(rest) % 64)
}

// Has reports whether the offset is in the set.
func (s *OffsetSet) Has(offset int64) bool {
	key, word, bit := place(offset)
	b := s.once[key]
	return b != nil && b[word]&bit != 0
}

// Len is the number of distinct offsets.
func (s *OffsetSet) Len() int64 { return s.n }

// Doubled is the number of additions beyond the first of each offset.
func (s *OffsetSet) Doubled() int64 { return s.doubled }

// Ranges are the offsets in [from, to) as sorted half-open ranges. Two
// neighbours with a hole between them are two ranges.
func (s *OffsetSet) Ranges(from, to int64) [][2]int64 { return ranges(s.once, nil, from, to) }

// DoubledRanges are the offsets that were added more than once.
func (s *OffsetSet) DoubledRanges() [][2]int64 { return ranges(s.twice, nil, minOffset, maxOffset) }

// Minus are the offsets of s in [from, to) that none of others has.
func (s *OffsetSet) Minus(from, to int64, others ...*OffsetSet) [][2]int64 {
	var minus []map[int64]*bitmap
	for _, o := range others {
		if o != nil {
			minus = append(minus, o.once)
		}
	}
	return ranges(s.once, minus, from, to)
}

// CountIn is the number of distinct offsets in [from, to).
func (s *OffsetSet) CountIn(from, to int64) int64 {
	var n int64
	for _, r := range s.Ranges(from, to) {
		n += r[1] - r[0]
	}
	return n
}

const (
	minOffset = int64(-1) << 62
	maxOffset = int64(1)<<62 - 1
)

// ranges lists plus without minus in [from, to).
func ranges(plus map[int64]*bitmap, minus []map[int64]*bitmap, from, to int64) [][2]int64 {
	var out [][2]int64
	for _, key := range slices.Sorted(maps.Keys(plus)) {
		base := key * offsetChunk
		if base+offsetChunk <= from || base >= to {
			continue
		}
		for word, v := range plus[key] {
			for _, m := range minus {
				if not := m[key]; not != nil {
					v &^= not[word]
				}
			}
			for v != 0 {
				first := bits.TrailingZeros64(v)
				run := bits.TrailingZeros64(^(v >> first))
				lo := base + int64(word)*64 + int64(first)
				hi := lo + int64(run)
				if first+run >= 64 {
					v = 0
				} else {
					v &^= (1<<run - 1) << first
				}
				out = appendRange(out, max(lo, from), min(hi, to))
			}
		}
	}
	return out
}

// appendRange adds [lo, hi), joined to the last range where they touch.
func appendRange(out [][2]int64, lo, hi int64) [][2]int64 {
	if lo >= hi {
		return out
	}
	if n := len(out); n > 0 && out[n-1][1] == lo {
		out[n-1][1] = hi
		return out
	}
	return append(out, [2]int64{lo, hi})
}
