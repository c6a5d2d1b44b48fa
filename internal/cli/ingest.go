package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/ingest"
	"github.com/weirlake/weir/internal/replay"
)

func newIngest(g *globals) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:         "ingest FILE",
		Annotations: map[string]string{untilStopped: ""},
		Short:       "Read a server-sent event stream into Kafka, contract checked",
		Long: `Runs one ingest section of a pipeline file: each event is checked against its
contract and published; violations go to the dead-letter topic with a reason,
canaries are dropped and counted. The resume position is saved only after Kafka
has acknowledged everything before it. Ends when the server answers 204.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := g.load(args[0])
			if err != nil {
				return err
			}
			// Ingestion needs the broker and nothing else of the pipeline.
			kafka, stop, err := app.Reach(cmd.Context(), p)
			if err != nil {
				return err
			}
			defer stop()
			in, err := app.NewIngester(p, name, kafka, app.Options{Logger: g.log}, http.DefaultClient)
			if err != nil {
				return err
			}
			quiet := g.tellIngest(in)
			err = in.Run(cmd.Context())
			quiet()
			if perr := g.printIngest(in.Stats()); err == nil {
				err = perr
			}
			if cmd.Context().Err() == context.Canceled && err == nil {
				return nil
			}
			return err
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "the ingest `section`, where the file has several")
	return cmd
}

// ingestEvery is how often ingestion says how far it is, where that has changed.
const ingestEvery = 10 * time.Second

// tellIngest says on standard error that ingestion has begun and, until the
// returned function is called, how far it is.
func (g *globals) tellIngest(in *ingest.Ingester) (quiet func()) {
	if g.json() {
		return func() {}
	}
	fmt.Fprintln(g.stderr, "weir: reading the stream; an interrupt stops cleanly, the next start goes on where this one ends")
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		t := time.NewTicker(ingestEvery)
		defer t.Stop()
		var last int64
		for {
			select {
			case <-done:
				return
			case <-t.C:
			}
			if s := in.Stats(); s.Received != last {
				last = s.Received
				_ = writeIngest(g.stderr, s)
			}
		}
	}()
	return func() { close(done); <-stopped }
}

func writeIngest(w io.Writer, s ingest.Stats) error {
	_, err := fmt.Fprintf(w, "received %d, published %d, dead letters %d, canaries %d, dropped %d, reconnects %d\n",
		s.Received, s.Published, s.DeadLetters, s.Canaries, s.Dropped, s.Reconnects())
	return err
}

func (g *globals) printIngest(s ingest.Stats) error {
	return g.print(s, func(w io.Writer) error { return writeIngest(w, s) })
}

func newReplay(g *globals) *cobra.Command {
	var c replay.Config
	var addr string
	c.Generator.Plan = replay.DefaultPlan()
	cmd := &cobra.Command{
		Use:         "replay-sse",
		Annotations: map[string]string{untilStopped: ""},
		Short:       "Serve an event stream like Wikimedia's: a file, or a seeded generator",
		Long: `A local server that behaves like EventStreams: Last-Event-ID as an array of
positions, overlap on resume, ids that repeat, times that go backwards, canaries,
cuts and stalls. It plays a JSONL file, or generates events from a seed. With an
end, a client that has everything is answered 204.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := replay.Listen(cmd.Context(), c, addr)
			if err != nil {
				return err
			}
			if err := g.print(map[string]string{"url": r.URL}, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "serving %s\n", r.URL)
				return err
			}); err != nil {
				return err
			}
			if err := r.Wait(); err != nil && cmd.Context().Err() == nil {
				return err
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&addr, "listen", "127.0.0.1:8099", "`address` to serve at (port 0: a free one)")
	f.StringVar(&c.File, "file", "", "play this JSONL `file` instead of the generator")
	f.Int64Var(&c.Total, "events", 0, "end after `N` distinct events (0: never)")
	f.Float64Var(&c.Rate, "rate", 0, "frames a second (0: as fast as they are read)")
	f.Uint64Var(&c.Generator.Seed, "seed", 1, "`seed` of the generator")
	f.Float64Var(&c.Generator.Rate, "event-rate", 0, "events per second of event time (default 1000)")
	f.IntVar(&c.Generator.Plan.Canaries, "canaries", c.Generator.Plan.Canaries, "canaries per 4,000 events")
	f.IntVar(&c.Generator.Plan.Violations, "violations", c.Generator.Plan.Violations, "contract violations per 4,000 events")
	f.IntVar(&c.Generator.Plan.Duplicates, "duplicates", c.Generator.Plan.Duplicates, "events sent again per 4,000 events")
	f.IntVar(&c.Generator.Plan.Late, "late", c.Generator.Plan.Late, "late events per 4,000 events")
	f.DurationVar(&c.Overlap, "overlap", 0, "how much `earlier` than asked a client resumes (default 10s)")
	f.DurationVar(&c.CutAfter, "cut-after", 0, "close each connection after this `time` (default 15m)")
	f.Int64Var(&c.Faults.CutEvery, "cut-every", 0, "break the connection off after about `N` frames")
	f.IntVar(&c.Faults.Unavailable, "unavailable", 0, "answer so many connections after a cut with 503")
	f.Int64Var(&c.Faults.StallEvery, "stall-every", 0, "stall after `N` frames")
	f.DurationVar(&c.Faults.StallFor, "stall-for", 0, "`time` of a stall")
	return cmd
}
