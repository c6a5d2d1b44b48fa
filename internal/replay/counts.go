package replay

// Counts says what a stretch of a stream holds: what a pipeline that loses and
// doubles nothing must end with.
type Counts struct {
	// Frames are all messages; Events those that are not duplicates.
	Frames int64 `json:"frames"`
	Events int64 `json:"events"`
	// Events = Canaries + Violations + Published.
	Canaries   int64 `json:"canaries"`
	Violations int64 `json:"violations"`
	// Published are the distinct events that meet the contract, late ones
	// included: what the topic must hold, without what is sent twice.
	Published  int64 `json:"published"`
	Duplicates int64 `json:"duplicates"`
	Late       int64 `json:"late"`
	// EditNew are the distinct published events of type edit or new: silver's
	// rows plus the late rows that it dropped. Every late event is one, so
	// silver holds between EditNew - Late and EditNew.
	EditNew int64 `json:"edit_new"`
}

// add counts one frame.
func (c *Counts) add(class Class, editNew bool) {
	c.Frames++
	if class == Duplicate {
		c.Duplicates++
		return
	}
	c.Events++
	switch class {
	case Canary:
		c.Canaries++
		return
	case ContractViolation:
		c.Violations++
		return
	case Late:
		c.Late++
	}
	c.Published++
	if editNew {
		c.EditNew++
	}
}

// Counts says what the first frames of the stream hold, without making them.
func (g *Generator) Counts(frames int64) Counts {
	if g.script != nil {
		return g.countScript(frames)
	}
	c := g.Cursor()
	blocks, rest := frames/g.block, int32(frames%g.block)
	p := g.cfg.Plan
	out := Counts{
		Frames:     frames,
		Canaries:   blocks * int64(p.Canaries),
		Violations: blocks * int64(p.Violations),
		Duplicates: blocks * int64(p.Duplicates),
		Late:       blocks * int64(p.Late),
	}
	base := blocks * BlockSize
	if rest > 0 {
		c.load(blocks)
		j := c.before(rest)
		base += int64(rest) - int64(j)
		for _, k := range c.kinds[:j] {
			switch k {
			case Canary:
				out.Canaries++
			case ContractViolation:
				out.Violations++
			case Duplicate:
				out.Duplicates++
			case Late:
				out.Late++
			}
		}
	}
	out.Events = frames - out.Duplicates
	out.Published = base + out.Late
	out.EditNew = base/SampleSize*SampleEditNew + int64(g.s.editsBefore[base%SampleSize]) + out.Late
	return out
}

// countScript counts the frames of a script one by one.
func (g *Generator) countScript(frames int64) Counts {
	var out Counts
	for _, f := range g.script[:min(frames, g.Length())] {
		out.add(f.class, f.class == Late || f.class == Base && g.s.seats[f.n%SampleSize].editNew())
	}
	return out
}

// FramesFor is the least number of frames that hold so many events; a script's
// length where it has fewer.
func (g *Generator) FramesFor(events int64) int64 {
	if g.script != nil && events >= g.Counts(g.Length()).Events {
		return g.Length()
	}
	lo, hi := events, events+events/BlockSize*int64(g.cfg.Plan.Duplicates)+g.block
	for lo < hi {
		if m := (lo + hi) / 2; g.Counts(m).Events < events {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo
}
