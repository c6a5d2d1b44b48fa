package schedule

import (
	"slices"
	"time"
)

const (
	// missGrace is how late a scheduled start may be and still not be missed.
	missGrace = time.Minute
	// slotsMax bounds the missed starts that are made up for one by one.
	slotsMax = 100
	// slotsScanned bounds how many times of a schedule are looked at; a process
	// that was away for longer goes on from now.
	slotsScanned = 100_000
)

// planner decides what is due. It has no clock: everything is told to it.
type planner struct {
	jobs []*planned
}

// planned is one job's place in the plan.
type planned struct {
	*Job
	// slot is the last scheduled time that was taken; missed are earlier ones
	// that are still to be made up for.
	slot   time.Time
	missed []time.Time
	// asked is the trigger of a start that a commit or a job asked for.
	asked   string
	askedAt time.Time
	began   time.Time // of the last run
	running bool
}

// start is a run that is due.
type start struct {
	job     *planned
	trigger string
	slot    time.Time
}

// newPlanner lays the schedule over what is remembered. Jobs that commits start
// are due at once: a commit may have come when nobody listened. So are those
// whose upstream job succeeded after they last began.
func newPlanner(jobs []*Job, records map[string]Record, interrupted []Run, now time.Time) *planner {
	p := &planner{}
	for _, j := range jobs {
		r, known := records[j.Name]
		s := &planned{Job: j, slot: r.Slot, began: r.Last.StartedAt}
		switch {
		case !known || r.Slot.IsZero():
			s.slot = now
			if j.Every > 0 {
				s.slot = now.Add(-j.Every) // the first one is due
			}
		}
		if len(j.AfterCommit) > 0 {
			s.ask(TriggerStart, now)
		}
		for _, up := range j.AfterJob {
			if records[up].SucceededAt.After(r.Last.StartedAt) {
				s.ask(TriggerJob, now)
			}
		}
		if j.CatchUp != Skip && slices.ContainsFunc(interrupted, func(r Run) bool { return r.Job == j.Name }) {
			s.ask(TriggerCatchUp, now)
		}
		p.jobs = append(p.jobs, s)
	}
	return p
}

func (s *planned) ask(trigger string, now time.Time) {
	if s.asked == "" {
		s.asked, s.askedAt = trigger, now
	}
}

// committed says that a query wrote rows.
func (p *planner) committed(query string, now time.Time) {
	for _, s := range p.jobs {
		if slices.Contains(s.AfterCommit, query) {
			s.ask(TriggerCommit, now)
		}
	}
}

// ended says that a run is over.
func (p *planner) ended(job string, succeeded bool, now time.Time) {
	for _, s := range p.jobs {
		if s.Name == job {
			s.running = false
		}
		if succeeded && slices.Contains(s.AfterJob, job) {
			s.ask(TriggerJob, now)
		}
	}
}

// due takes the starts that are due; each job is then running.
func (p *planner) due(now time.Time) []start {
	var out []start
	for _, s := range p.jobs {
		if s.running {
			continue
		}
		st, ok := s.take(now)
		if !ok {
			continue
		}
		s.running, s.began = true, now
		out = append(out, st)
	}
	return out
}

// take is the next start of an idle job, if one is due.
func (s *planned) take(now time.Time) (start, bool) {
	s.collect(now)
	if len(s.missed) > 0 {
		slot := s.missed[0]
		s.missed = s.missed[1:]
		trigger := TriggerInterval
		switch {
		case now.Sub(slot) > missGrace:
			trigger = TriggerCatchUp
		case s.Cron != nil:
			trigger = TriggerCron
		}
		return start{s, trigger, slot}, true
	}
	if s.asked != "" && !s.earliest().After(now) {
		st := start{s, s.asked, s.askedAt}
		s.asked = ""
		return st, true
	}
	return start{}, false
}

// earliest is when a start that was asked for may be.
func (s *planned) earliest() time.Time {
	if e := s.began.Add(s.MinInterval); !s.began.IsZero() && e.After(s.askedAt) && s.asked != TriggerCatchUp {
		return e
	}
	return s.askedAt
}

// collect moves the times of the schedule that have passed to missed, by the
// job's rule.
func (s *planned) collect(now time.Time) {
	var passed []time.Time
	n := 0
	for t := s.nextSlot(); !t.IsZero() && !t.After(now); t = s.nextSlot() {
		s.slot = t
		passed = append(passed, t)
		if len(passed) > slotsMax {
			passed = passed[1:]
		}
		if n++; n >= slotsScanned {
			s.slot = now
			break
		}
	}
	if len(passed) == 0 {
		return
	}
	newest := passed[len(passed)-1]
	switch s.CatchUp {
	case All:
		s.missed = append(s.missed, passed...)
		if n := len(s.missed) - slotsMax; n > 0 {
			s.missed = s.missed[n:]
		}
	case Skip:
		s.missed = nil
		if now.Sub(newest) <= missGrace {
			s.missed = []time.Time{newest}
		}
	default:
		s.missed = []time.Time{newest}
	}
}

// nextSlot is the next time of the job's schedule, zero where it has none.
func (s *planned) nextSlot() time.Time {
	switch {
	case s.Cron != nil:
		return s.Cron.Next(s.slot).UTC()
	case s.Every > 0:
		return s.slot.Add(s.Every)
	}
	return time.Time{}
}

// next is when something may be due, zero where only an event can make it so.
func (p *planner) next() time.Time {
	var out time.Time
	for _, s := range p.jobs {
		if s.running {
			continue
		}
		var at time.Time
		switch {
		case len(s.missed) > 0:
			at = s.missed[0]
		default:
			at = s.nextSlot()
			if s.asked != "" && (at.IsZero() || s.earliest().Before(at)) {
				at = s.earliest()
			}
		}
		if !at.IsZero() && (out.IsZero() || at.Before(out)) {
			out = at
		}
	}
	return out
}
