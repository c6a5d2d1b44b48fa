package schedule

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/duck"
	_ "github.com/weirlake/weir/internal/duck/link" // counts the rows
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
)

var epoch = time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)

func at(d time.Duration) time.Time { return epoch.Add(d) }

func cronAt(t *testing.T, spec string) cron.Schedule {
	t.Helper()
	s, err := cron.ParseStandard("CRON_TZ=UTC " + spec)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// slots takes everything that is due, ending each run at once.
func slots(p *planner, now time.Time) []string {
	var out []string
	for {
		due := p.due(now)
		if len(due) == 0 {
			return out
		}
		for _, s := range due {
			out = append(out, fmt.Sprintf("%s %s %s", s.job.Name, s.trigger, s.slot.Sub(epoch)))
			p.ended(s.job.Name, true, now)
		}
	}
}

func want(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func TestAnIntervalStartsAtOnceAndThenOnItsGrid(t *testing.T) {
	p := newPlanner([]*Job{{Name: "j", Every: 10 * time.Second, CatchUp: Once}}, nil, nil, epoch)
	want(t, "first", slots(p, at(0)), "j interval 0s")
	want(t, "too early", slots(p, at(9*time.Second)))
	if n := p.next(); !n.Equal(at(10 * time.Second)) {
		t.Errorf("next is %s", n)
	}
	want(t, "a little late", slots(p, at(13*time.Second)), "j interval 10s")
	want(t, "on the grid", slots(p, at(20*time.Second)), "j interval 20s")
}

func TestMissedStartsAreSkippedMadeUpForOnceOrAll(t *testing.T) {
	for rule, c := range map[string]struct{ fresh, away, long []string }{
		Skip: {[]string{"j cron 1h0m0s"}, nil, nil},
		Once: {[]string{"j cron 1h0m0s"}, []string{"j catch-up 4h0m0s"}, []string{"j catch-up 1004h0m0s"}},
		All:  {[]string{"j cron 1h0m0s"}, []string{"j catch-up 2h0m0s", "j catch-up 3h0m0s", "j catch-up 4h0m0s"}, nil},
	} {
		job := []*Job{{Name: "j", Cron: cronAt(t, "@hourly"), CatchUp: rule}}
		p := newPlanner(job, nil, nil, epoch)
		want(t, rule+": on time", slots(p, at(time.Hour+time.Second)), c.fresh...)
		rec := map[string]Record{"j": {Last: Run{StartedAt: at(time.Hour)}, Slot: at(time.Hour)}}
		p = newPlanner(job, rec, nil, at(4*time.Hour+5*time.Minute))
		want(t, rule+": after three missed", slots(p, at(4*time.Hour+5*time.Minute)), c.away...)
		got := slots(newPlanner(job, rec, nil, epoch), at(1004*time.Hour+30*time.Minute))
		if rule == All {
			if len(got) != slotsMax || got[slotsMax-1] != "j catch-up 1004h0m0s" {
				t.Errorf("all: %d starts, the last %v", len(got), got[len(got)-1:])
			}
			continue
		}
		want(t, rule+": after a thousand missed", got, c.long...)
	}
}

func TestOneRunAtATimeAndWhatWasMissedMeanwhileByTheRule(t *testing.T) {
	p := newPlanner([]*Job{{Name: "j", Every: time.Minute, CatchUp: Once}}, nil, nil, epoch)
	if n := len(p.due(at(0))); n != 1 {
		t.Fatalf("%d due", n)
	}
	if got := p.due(at(5 * time.Minute)); len(got) != 0 {
		t.Fatalf("a second run beside the first: %v", got)
	}
	p.ended("j", true, at(5*time.Minute+10*time.Second))
	want(t, "after an overrun", slots(p, at(5*time.Minute+10*time.Second)), "j interval 5m0s")
}

func TestCommitsBecomeOneStartWithinTheLeastInterval(t *testing.T) {
	p := newPlanner([]*Job{{Name: "gold", AfterCommit: []string{"silver"}, MinInterval: 30 * time.Second}, {Name: "other", AfterCommit: []string{"bronze"}}}, nil, nil, epoch)
	want(t, "at the start", slots(p, at(0)), "gold start 0s", "other start 0s")
	p.committed("silver", at(time.Second))
	p.committed("silver", at(2*time.Second))
	want(t, "too soon", slots(p, at(29*time.Second)))
	if n := p.next(); !n.Equal(at(30 * time.Second)) {
		t.Errorf("next is %s", n.Sub(epoch))
	}
	want(t, "once", slots(p, at(30*time.Second)), "gold commit 1s")
	want(t, "no more", slots(p, at(2*time.Hour)))
	p.committed("silver", at(3*time.Hour))
	want(t, "long after the last", slots(p, at(3*time.Hour)), "gold commit 3h0m0s")
}

func TestAJobStartsAfterAnotherThatSucceededAlsoAcrossARestart(t *testing.T) {
	jobs := []*Job{{Name: "a", Every: time.Hour, CatchUp: Once}, {Name: "b", AfterJob: []string{"a"}}}
	p := newPlanner(jobs, nil, nil, epoch)
	want(t, "a, then b", slots(p, at(0)), "a interval 0s", "b job 0s")
	p.due(at(time.Hour))
	p.ended("a", false, at(time.Hour))
	want(t, "not after a failure", slots(p, at(time.Hour)))
	rec := map[string]Record{
		"a": {Last: Run{StartedAt: at(2 * time.Hour)}, Slot: at(2 * time.Hour), SucceededAt: at(2*time.Hour + time.Second)},
		"b": {Last: Run{StartedAt: at(time.Hour)}},
	}
	want(t, "killed between the two", slots(newPlanner(jobs, rec, nil, at(2*time.Hour+time.Minute)), at(2*time.Hour+time.Minute)), "b job 2h1m0s")
}

func TestAnInterruptedRunIsMadeUpForUnlessTheJobSkips(t *testing.T) {
	for rule, n := range map[string]int{Once: 1, All: 1, Skip: 0} {
		open := Run{Job: "j", StartedAt: at(0)}
		p := newPlanner([]*Job{{Name: "j", Cron: cronAt(t, "@daily"), CatchUp: rule, MinInterval: time.Hour}},
			map[string]Record{"j": {Last: open, Slot: at(0)}}, []Run{open}, at(time.Minute))
		if got := slots(p, at(time.Minute)); len(got) != n {
			t.Errorf("%s: %v", rule, got)
		}
	}
}

// fakeClock moves only when everybody sleeps, and then to the next waking.
type fakeClock struct {
	mu    sync.Mutex
	now   time.Time
	sleep []*sleeper
}

type sleeper struct {
	until time.Time
	woken chan struct{}
}

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) Sleep(ctx context.Context, d time.Duration) error {
	c.mu.Lock()
	s := &sleeper{c.now.Add(d), make(chan struct{})}
	c.sleep = append(c.sleep, s)
	c.mu.Unlock()
	select {
	case <-s.woken:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// advance moves the time and wakes who waited for it.
func (c *fakeClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	var left []*sleeper
	for _, s := range c.sleep {
		if s.until.After(c.now) {
			left = append(left, s)
		} else {
			close(s.woken)
		}
	}
	c.sleep = left
}

// memoryBook is a Book without a table.
type memoryBook struct {
	mu   sync.Mutex
	open map[string]Run
	rows []Run
}

func (b *memoryBook) Open(context.Context, []string, time.Time) (map[string]Record, []Run, error) {
	return map[string]Record{}, nil, nil
}

func (b *memoryBook) Begin(_ context.Context, r Run) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.open[r.Job]; ok {
		return errors.New("a run is open")
	}
	if b.open == nil {
		b.open = map[string]Run{}
	}
	b.open[r.Job] = r
	return nil
}

func (b *memoryBook) End(_ context.Context, r Run) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.open, r.Job)
	b.rows = append(b.rows, r)
	return nil
}

func (b *memoryBook) ended() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.rows)
}

// until waits for a condition, moving a clock on while it does not hold.
func until(t *testing.T, c *fakeClock, step time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come", what)
		}
		c.advance(step)
		time.Sleep(time.Millisecond)
	}
}

func scheduler(t *testing.T, c clock.Clock, b Book, jobs ...*Job) *Scheduler {
	t.Helper()
	s, err := New(Options{Jobs: jobs, Book: b, Clock: c, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAFailingRunIsTriedAgainWithGrowingPausesAndKeptAsOneRow(t *testing.T) {
	c, b := &fakeClock{now: epoch}, &memoryBook{}
	var tries []time.Duration
	var mu sync.Mutex
	j := &Job{Name: "j", Every: time.Hour, Retries: 3, BackOff: time.Second, CatchUp: Once, Do: func(context.Context, Run) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		tries = append(tries, c.Now().Sub(epoch))
		if len(tries) < 4 {
			return "", errors.New("not yet")
		}
		return "done", nil
	}}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- scheduler(t, c, b, j).Run(ctx) }()
	until(t, c, 500*time.Millisecond, "the run", func() bool { return b.ended() == 1 })
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	r := b.rows[0]
	if r.Status != Succeeded || r.Tries != 4 || r.Detail != "done" || r.Error != "" {
		t.Errorf("%+v", r)
	}
	for i, least := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		if got := tries[i+1] - tries[i]; got < least {
			t.Errorf("pause %d is %s, want at least %s", i, got, least)
		}
	}
}

func TestAFaultOfConfigurationIsNotTriedAgain(t *testing.T) {
	b := &memoryBook{}
	j := &Job{Name: "j", Retries: 5, Do: func(context.Context, Run) (string, error) {
		return "", failure.New(failure.Config, "misspelt")
	}}
	err := scheduler(t, &fakeClock{now: epoch}, b, j).RunAll(context.Background())
	if err == nil || b.rows[0].Tries != 1 || b.rows[0].Status != Failed || !strings.Contains(b.rows[0].Error, "misspelt") {
		t.Errorf("%v %+v", err, b.rows)
	}
}

func TestAJobWithNothingToWorkOnYetWaitsAndStartsNoOther(t *testing.T) {
	b := &memoryBook{}
	ran := false
	jobs := []*Job{
		{Name: "gold", Retries: 5, Do: func(context.Context, Run) (string, error) { return "", fmt.Errorf("%w: no table", ErrNotYet) }},
		{Name: "checks", AfterJob: []string{"gold"}, Do: func(context.Context, Run) (string, error) { ran = true; return "", nil }},
	}
	err := scheduler(t, &fakeClock{now: epoch}, b, jobs...).RunAll(context.Background())
	if !errors.Is(err, ErrNotYet) || ran || len(b.rows) != 1 || b.rows[0].Tries != 1 || b.rows[0].Status != Waiting {
		t.Errorf("%v, ran %v, %+v", err, ran, b.rows)
	}
}

func TestATryThatTakesTooLongIsGivenUp(t *testing.T) {
	c, b := &fakeClock{now: epoch}, &memoryBook{}
	j := &Job{Name: "j", Timeout: 10 * time.Second, Do: func(ctx context.Context, _ Run) (string, error) {
		<-ctx.Done()
		return "", ctx.Err()
	}}
	done := make(chan error, 1)
	go func() { done <- scheduler(t, c, b, j).RunAll(context.Background()) }()
	until(t, c, time.Second, "the end", func() bool { return b.ended() == 1 })
	if err := <-done; err == nil || !strings.Contains(b.rows[0].Error, "longer than 10s") || b.rows[0].Status != Failed {
		t.Errorf("%v %+v", err, b.rows[0])
	}
}

func TestAStopInterruptsTheRunAndSaysSo(t *testing.T) {
	c, b := &fakeClock{now: epoch}, &memoryBook{}
	began := make(chan struct{})
	j := &Job{Name: "j", Every: time.Hour, Do: func(ctx context.Context, _ Run) (string, error) {
		close(began)
		<-ctx.Done()
		return "", ctx.Err()
	}}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- scheduler(t, c, b, j).Run(ctx) }()
	<-began
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if len(b.rows) != 1 || b.rows[0].Status != Interrupted {
		t.Errorf("%+v", b.rows)
	}
}

func TestRunningAllOnceKeepsTheOrderAndLeavesOutWhatWaitsForAFailure(t *testing.T) {
	var order []string
	job := func(name string, fails bool, after ...string) *Job {
		return &Job{Name: name, AfterJob: after, Do: func(context.Context, Run) (string, error) {
			order = append(order, name)
			if fails {
				return "", errors.New("no")
			}
			return "", nil
		}}
	}
	b := &memoryBook{}
	err := scheduler(t, &fakeClock{now: epoch}, b, job("c", false, "b"), job("b", true, "a"), job("a", false), job("d", false)).RunAll(context.Background())
	if err == nil || !slices.Equal(order, []string{"a", "d", "b"}) {
		t.Errorf("%v, order %v", err, order)
	}
}

func openCatalog(t *testing.T, dir string) *lake.Catalog {
	t.Helper()
	c, err := lake.Open(context.Background(), lake.Config{URI: filepath.Join(dir, "catalog.db"), Warehouse: filepath.Join(dir, "warehouse")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestARunIsInTheTableOnceHoweverItEnded(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	c := openCatalog(t, dir)
	clk := &fakeClock{now: epoch}
	book := NewTableBook(c, []string{"ops", "runs"}, clk)
	if rec, open, err := book.Open(ctx, []string{"j"}, epoch); err != nil || len(rec) != 0 || len(open) != 0 {
		t.Fatalf("%v %v %v", rec, open, err)
	}
	end := at(time.Second)
	first := Run{ID: "1", Job: "j", Trigger: TriggerCron, ScheduledFor: epoch, StartedAt: epoch, Status: Running, Tries: 1}
	second := Run{ID: "2", Job: "j", StartedAt: at(time.Minute), ScheduledFor: at(time.Minute), Status: Running}
	for range 2 { // again: the answer of the first was lost
		if err := book.Begin(ctx, first); err != nil {
			t.Fatal(err)
		}
	}
	if err := book.Begin(ctx, second); !failure.Is(err, failure.Fenced) {
		t.Errorf("a second run beside an open one: %v", err)
	}
	done := first
	done.Status, done.EndedAt, done.Detail = Succeeded, &end, `{"rows":1}`
	for range 2 {
		if err := book.End(ctx, done); err != nil {
			t.Fatal(err)
		}
	}
	if err := book.Begin(ctx, second); err != nil {
		t.Fatal(err)
	}
	// The process is killed here; the next one opens the book.
	rec, open, err := NewTableBook(c, []string{"ops", "runs"}, clk).Open(ctx, []string{"j", "k"}, at(time.Hour))
	if err != nil || len(open) != 1 || open[0].ID != "2" || open[0].Status != Interrupted {
		t.Fatalf("%v, %v", open, err)
	}
	if r := rec["j"]; r.Last.Status != Interrupted || r.Failures != 1 || !r.SucceededAt.Equal(end) || !r.Slot.Equal(at(time.Minute)) {
		t.Errorf("%+v", r)
	}
	if err := book.End(ctx, second); err != nil { // the zombie: closed already
		t.Errorf("the end of a run that was closed: %v", err)
	}
	s, err := duck.Open(ctx, duck.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	tbl, err := c.LoadTable(ctx, []string{"ops", "runs"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Mount(ctx, "ops", "runs", duck.Head(tbl)); err != nil {
		t.Fatal(err)
	}
	rows, err := s.Query(ctx, "SELECT string_agg(run_id || ' ' || status, ', ' ORDER BY run_id) FROM ops.runs", duck.Text)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	if row, err := rows.Next(); err != nil || row[0].String != "1 succeeded, 2 interrupted" {
		t.Errorf("%v, %v", row, err)
	}
}
