package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/pipeline"
)

func newDemo(g *globals) *cobra.Command {
	var c app.DemoConfig
	var page pageFlags
	cmd := &cobra.Command{
		Use:         "demo",
		Annotations: map[string]string{untilStopped: ""},
		Short:       "The whole pipeline on a generated stream: no file, no broker, no network",
		Long: `Plays a generated Wikimedia stream through server-sent events, contract, an
embedded Kafka, bronze and silver Iceberg tables.

  weir demo                                     until you stop it
  weir demo --data DIR --events 50000 --once    to its end, then count every layer
  weir demo --s3 s3://lake/demo --s3-endpoint http://127.0.0.1:9000 \\
    --catalog postgres://weir:secret@db/lake    tables, checkpoints and catalog elsewhere

Kill it whenever you like (kill -9 too) and run it again on the same folder: it
goes on, and the counts come out the same. The broker stays in the folder; for
a Kafka of your own, with TLS and a log-in, there is examples/cloud.yaml.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.Once { // its answer is the count of every layer
				delete(cmd.Annotations, untilStopped)
			}
			return g.demo(cmd.Context(), c, page)
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.Data, "data", envOr("WEIR_DATA", "weir-data"), "`folder` of tables, checkpoints and broker")
	f.Int64Var(&c.Events, "events", 0, "end the stream after `N` distinct events (0: never)")
	f.Float64Var(&c.Rate, "rate", -1, "events a second (0: as fast as they are taken; default 1000, with --once 0)")
	f.Uint64Var(&c.Seed, "seed", 1, "`seed` of the stream")
	f.BoolVar(&c.Once, "once", false, "end when everything is in silver, and print a summary")
	f.StringVar(&c.Delivery, "delivery", "at-least-once", "ingestion `mode`: at-least-once or exactly-once")
	f.StringVar(&c.S3, "s3", "", "keep tables and checkpoints at `s3://BUCKET/PREFIX` (keys and region by AWS_* or the SDK's other ways)")
	f.StringVar(&c.S3Endpoint, "s3-endpoint", "", "`URL` of the S3 server, where it is not AWS")
	f.StringVar(&c.Catalog, "catalog", "", "`address` of a SQL catalog, as postgres://USER:PASSWORD@HOST/DATABASE (default: a file in the folder)")
	page.add(cmd, "", "`address` of the status page, or none (default: "+pipeline.DefaultListen+", or a free port)")
	return cmd
}

func (g *globals) demo(ctx context.Context, c app.DemoConfig, page pageFlags) error {
	if c.Once && c.Events == 0 {
		return failure.New(failure.Config, "demo --once needs an end").WithHint("add --events N")
	}
	if c.Events < 0 {
		return failure.New(failure.Config, "--events %d: want 0 or more", c.Events)
	}
	if c.Rate < 0 {
		c.Rate = 1000
		if c.Once {
			c.Rate = 0
		}
	}
	c.Audit = func(p *pipeline.Pipeline) (audit.Locator, audit.Store, error) {
		catalog, err := auditCatalog(p.Catalog)
		return catalog, auditStores(p), err
	}
	view := newDemoView(g.stderr, c)
	d, err := app.OpenDemo(ctx, c, app.Options{Logger: g.log, Version: readBuildInfo().Version, OnProgress: view.batch, OnAlert: view.alert})
	if err != nil {
		return err
	}
	defer d.Close()
	if err := g.openPage(d.App, page.options(pipeline.Status{Listen: pipeline.DefaultListen})); err != nil {
		return err
	}
	stop := view.show(d)
	err = d.Run(ctx)
	stop()
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		fmt.Fprintf(g.stderr, "stopped; the same command goes on in %s\n", c.Data)
		if c.Once {
			return ctx.Err()
		}
		return nil
	}
	s, err := d.Summary(ctx)
	if s != nil {
		if perr := g.print(s, func(w io.Writer) error { return writeDemoSummary(w, s, c) }); perr != nil {
			return perr
		}
	}
	return err
}

func writeDemoSummary(w io.Writer, s *app.DemoSummary, c app.DemoConfig) error {
	var b strings.Builder
	row := func(name string, n int64, note string) { fmt.Fprintf(&b, "  %-22s %12d  %s\n", name, n, note) }
	fmt.Fprintf(&b, "\nEvery event accounted for, in %.1f s\n\n", s.ElapsedSeconds)
	row("events", s.Events, "distinct, as generated")
	row("  canaries", s.Canaries, "dropped before the contract")
	row("  contract violations", s.ContractViolations, "in wiki.recentchange.dlq")
	row("  published", s.Published, "distinct, in wiki.recentchange")
	row("Kafka records", s.KafkaRecords, "at-least-once: resent events count again")
	row("bronze rows", s.BronzeRows, "= Kafka records")
	row("silver rows", s.SilverRows, "= distinct event ids")
	row("late", s.Late, "after the watermark: in bronze only")
	row("duplicates", s.Duplicates, "dropped by silver")
	row("dead letters", s.DeadLetters, "in silver.edits_dead_letter")
	for _, m := range s.Gold {
		row(m.Table, m.Rows, "mart, "+m.State)
	}
	if c := s.Checks; c != nil {
		row("checks passed", int64(c.Passed), fmt.Sprintf("%d warned, %d failed: ops.checks", c.Warned, c.Failed))
	}
	row("sessions", s.Sessions, fmt.Sprintf("of editors, complete; %d more are open until the watermark passes their end", s.OpenSessions))
	fmt.Fprintf(&b, "\n%s: %s (SQL catalog \"weir\")\n", c.Data, c.DemoPlaces)
	_, err := io.WriteString(w, b.String())
	return err
}

// demoView shows the demo's progress: bars in a terminal, lines elsewhere.
type demoView struct {
	w        io.Writer
	c        app.DemoConfig
	terminal bool

	mu     sync.Mutex
	rows   map[string]*demoRow
	drawn  int
	alerts []string
}

// demoRow is what is known of one query.
type demoRow struct {
	in, out, late, dup int64
	batches            int64
	freshMs            int64
	last               int64   // rows at the last drawing
	rate               float64 // rows a second, smoothed over some seconds
}

// rateMemory is the time over which shown rates are smoothed.
const rateMemory = 3 * time.Second

func newDemoView(w io.Writer, c app.DemoConfig) *demoView {
	f, ok := w.(*os.File)
	v := &demoView{w: w, c: c, rows: map[string]*demoRow{}}
	if ok {
		if fi, err := f.Stat(); err == nil {
			v.terminal = fi.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
		}
	}
	return v
}

func (v *demoView) batch(p engine.Progress) {
	v.mu.Lock()
	defer v.mu.Unlock()
	r := v.rows[p.QueryName]
	if r == nil {
		r = &demoRow{}
		v.rows[p.QueryName] = r
	}
	r.in += p.InputRows
	r.out += p.OutputRows
	r.late += p.RowsDroppedByWatermark
	r.dup += p.RowsDuplicate
	r.batches++
	r.freshMs = p.FreshnessP95Ms
}

func (v *demoView) alert(query, text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.alerts = append(v.alerts, query+": "+text)
}

// show draws until the returned function is called.
func (v *demoView) show(d *app.Demo) func() {
	every := 2 * time.Second
	if v.terminal {
		every = 200 * time.Millisecond
	}
	done, stopped := make(chan struct{}), make(chan struct{})
	fmt.Fprintf(v.w, "weir demo: %s → SSE → contract → Kafka (%s) → bronze → silver → sessions, in %s\n", v.c, strings.Join(d.Kafka.BootstrapServers, ","), v.c.Data)
	go func() {
		defer close(stopped)
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			select {
			case <-done:
				v.draw(d, every)
				return
			case <-t.C:
				v.draw(d, every)
			}
		}
	}()
	return func() { close(done); <-stopped }
}

func (v *demoView) draw(d *app.Demo, every time.Duration) {
	p := d.Progress()
	v.mu.Lock()
	defer v.mu.Unlock()
	var b strings.Builder
	if v.terminal && v.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\x1b[J", v.drawn)
	}
	for _, a := range v.alerts {
		fmt.Fprintf(&b, "ALERT %s\n", a)
	}
	v.alerts = nil
	lines := []string{v.ingestLine(p)}
	for _, name := range []string{"bronze", "silver", "sessions"} {
		lines = append(lines, v.queryLine(name, p, every))
	}
	if v.terminal {
		for _, l := range lines {
			b.WriteString(l + "\n")
		}
		v.drawn = len(lines)
	} else {
		b.WriteString(strings.Join(lines, " | ") + "\n")
	}
	_, _ = io.WriteString(v.w, b.String())
}

func (v *demoView) ingestLine(p app.DemoProgress) string {
	s := p.Ingest
	seen := s.Published + s.DeadLetters + s.Canaries + s.Dropped
	return fmt.Sprintf("%-8s %s %9d published  %d canaries  %d violations", "ingest", v.bar(seen, p.Frames), s.Published, s.Canaries, s.DeadLetters)
}

func (v *demoView) queryLine(name string, p app.DemoProgress, every time.Duration) string {
	r := v.rows[name]
	if r == nil {
		r = &demoRow{}
	}
	keep := max(0, 1-every.Seconds()/rateMemory.Seconds())
	r.rate = keep*r.rate + (1-keep)*float64(r.in-r.last)/every.Seconds()
	r.last = r.in
	line := fmt.Sprintf("%-8s %s %9d rows %7.0f/s  batch %-5d fresh %4d ms", name, v.bar(r.in, p.Ingest.Published), r.out, r.rate, r.batches, r.freshMs)
	if name == "silver" {
		line += fmt.Sprintf("  late %d  dup %d", r.late, r.dup)
	}
	return line
}

// bar is a bar of part in whole; nothing outside a terminal.
func (v *demoView) bar(part, whole int64) string {
	if !v.terminal {
		return ""
	}
	const width = 24
	if whole == 0 {
		return "[" + strings.Repeat("─", width) + "]" // no end to measure by
	}
	n := 0
	if whole > 0 {
		n = int(min(part*width/whole, width))
	}
	return "[" + strings.Repeat("█", n) + strings.Repeat("·", width-n) + "]"
}
