package replay

// The generator's randomness is a hash of (seed, what, number), so that any
// frame can be computed by itself and no version of a library changes it.

// mix is the finalizer of splitmix64: a bijection of 64 bits.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	x ^= x >> 31
	return x
}

// golden is the odd constant of splitmix64: multiplying by it is a bijection.
const golden = 0x9e3779b97f4a7c15

// hash of a number under a seed.
func hash(seed uint64, n int64) uint64 { return mix(seed + uint64(n)*golden) }

// rng is a small sequential generator for building templates.
type rng struct{ s uint64 }

func newRNG(seed uint64) *rng { return &rng{seed} }

func (r *rng) next() uint64 {
	r.s += golden
	return mix(r.s)
}

// n is a number below limit.
func (r *rng) n(limit int) int { return int(r.next() % uint64(limit)) }

// chance is true in about percent of 100 calls.
func (r *rng) chance(percent int) bool { return r.n(100) < percent }

// pick is one of the words.
func (r *rng) pick(words []string) string { return words[r.n(len(words))] }

// shuffle permutes n things.
func (r *rng) shuffle(n int, swap func(i, j int)) {
	for i := n - 1; i > 0; i-- {
		swap(i, r.n(i+1))
	}
}

const hexDigits = "0123456789abcdef"

// appendHex appends the lowest digits hexadecimal digits of x.
func appendHex(dst []byte, x uint64, digits int) []byte {
	for i := digits - 1; i >= 0; i-- {
		dst = append(dst, hexDigits[x>>(4*i)&15])
	}
	return dst
}

// AppendUUID appends a version-4 UUID that is a bijection of n under the seed:
// two numbers never share one. 60 bits of the bijection fill the first half
// around the version, the other 4 go to the second half.
func AppendUUID(dst []byte, seed uint64, n int64) []byte {
	x := hash(seed, n)
	y := mix(x^0x5851f42d4c957f2d)&(1<<58-1) | (x&15)<<58 | 1<<63
	y &^= 1 << 62
	hi := x >> 4
	dst = appendHex(dst, hi>>28, 8)
	dst = append(dst, '-')
	dst = appendHex(dst, hi>>12, 4)
	dst = append(dst, '-', '4')
	dst = appendHex(dst, hi, 3)
	dst = append(dst, '-')
	dst = appendHex(dst, y>>48, 4)
	dst = append(dst, '-')
	return appendHex(dst, y, 12)
}

// appendTime appends t (milliseconds since 1970) as 2006-01-02T15:04:05.000Z.
func appendTime(dst []byte, ms int64) []byte {
	day, rest := ms/86_400_000, ms%86_400_000
	if rest < 0 {
		day, rest = day-1, rest+86_400_000
	}
	y, m, d := civil(day)
	dst = digits(dst, y, 4)
	dst = append(dst, '-')
	dst = digits(dst, m, 2)
	dst = append(dst, '-')
	dst = digits(dst, d, 2)
	dst = append(dst, 'T')
	dst = digits(dst, rest/3_600_000, 2)
	dst = append(dst, ':')
	dst = digits(dst, rest/60_000%60, 2)
	dst = append(dst, ':')
	dst = digits(dst, rest/1000%60, 2)
	dst = append(dst, '.')
	dst = digits(dst, rest%1000, 3)
	return append(dst, 'Z')
}

// civil turns days since 1970 into a date of the Gregorian calendar.
func civil(day int64) (y, m, d int64) {
	day += 719_468
	era := day / 146_097
	if day < 0 {
		era = (day - 146_096) / 146_097
	}
	doe := day - era*146_097
	yoe := (doe - doe/1460 + doe/36_524 - doe/146_096) / 365
	doy := doe - (365*yoe + yoe/4 - yoe/100)
	mp := (5*doy + 2) / 153
	d = doy - (153*mp+2)/5 + 1
	m = mp + 3
	if m > 12 {
		m -= 12
	}
	y = yoe + era*400
	if m <= 2 {
		y++
	}
	return y, m, d
}

// digits appends v with leading zeros.
func digits(dst []byte, v int64, width int) []byte {
	var b [20]byte
	for i := width - 1; i >= 0; i-- {
		b[i] = byte('0' + v%10)
		v /= 10
	}
	return append(dst, b[:width]...)
}
