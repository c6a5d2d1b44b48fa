package replay

// Numbers of specials begin far behind those of base events, so that ids of
// changes and logs stay unique within a site.
const (
	specialOrdinals = int64(700_000_000)
	// usersRotate is after how many events the people at work are others, so
	// that sessions end; bots stay.
	usersRotate = 20_000
	usersAtWork = 1500
	botsAtWork  = 60
)

// classBits keep the ids of the classes apart.
const classBits = 56

// fill sets the values of an event with ordinal n of a class. head is the
// ordinal of the group's first event.
func (c *Cursor) fill(t *template, class Class, n, head, ms, frameNumber int64) {
	g := c.g
	h := hash(g.seeds.detail^uint64(class)<<classBits, head)
	who := hash(g.seeds.user, head)
	// The smaller of two draws: some people are busier than others.
	idx := min(who%usersAtWork, who>>32%usersAtWork)
	user := hash(g.seeds.user^1, int64(idx)|head/usersRotate<<20)
	if t.bot {
		user = hash(g.seeds.user^2, int64(idx%botsAtWork))
	}
	c.v = values{
		idSeed: g.seeds.id, requestSeed: g.seeds.request,
		id: n | int64(class)<<classBits, request: head | int64(class)<<classBits,
		ms: ms, seconds: ms/1000 - behind(t, h), frame: frameNumber, centre: g.centre(frameNumber),
		ordinal: n, h: h, user: user, rev: head,
	}
	if class != Base {
		c.v.ordinal += specialOrdinals
		c.v.rev += specialOrdinals
	}
}

// behind is how many seconds the event's timestamp lies before its meta.dt.
func behind(t *template, h uint64) int64 {
	const fiveYears = 5 * 365 * 86_400
	if t.aged {
		return int64(h >> 8 % fiveYears)
	}
	return [16]int64{0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 3, 4, 6}[h>>4%16]
}

func (c *Cursor) variant(head int64) int64 {
	return int64(hash(c.g.seeds.variant, head) % variants)
}

func (c *Cursor) appendBase(dst []byte, k, frameNumber int64) []byte {
	head := c.g.head(k)
	t := c.g.s.base[c.variant(head)][k%SampleSize]
	c.fill(t, Base, k, head, c.g.baseTime(k), frameNumber)
	return t.append(dst, &c.v)
}

func (c *Cursor) appendLate(dst []byte, n, arrival int64) []byte {
	seats := c.g.s.editSeats
	t := c.g.s.base[c.variant(n)][seats[hash(c.g.seeds.detail, n)%uint64(len(seats))]]
	c.fill(t, Late, n, n, arrival-c.g.lateBy, n)
	return t.append(dst, &c.v)
}

func (c *Cursor) appendOther(dst []byte, class Class, n, arrival int64) []byte {
	list := c.g.s.canaries
	if class == ContractViolation {
		list = c.g.s.violations
	}
	t := list[hash(c.g.seeds.detail, n)%uint64(len(list))]
	c.fill(t, class, n, n, arrival, n)
	return t.append(dst, &c.v)
}

// Loop gives the SampleSize base events of loop l, as they stand in a stream
// without specials.
func (g *Generator) Loop(l int64) [][]byte {
	c := g.Cursor()
	out := make([][]byte, SampleSize)
	for i := range out {
		k := l*SampleSize + int64(i)
		out[i] = c.appendBase(nil, k, k)
	}
	return out
}

// Sample400 is the first loop of a seed: SampleSize events, of which exactly
// SampleEditNew are of type edit or new.
func Sample400(seed uint64) ([][]byte, error) {
	g, err := NewGenerator(GeneratorConfig{Seed: seed})
	if err != nil {
		return nil, err
	}
	return g.Loop(0), nil
}
