package exec

import (
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/sink/foreachbatch"
	"github.com/weirlake/weir/internal/sink/rowjson"
)

// Formats of the rows on standard input.
const (
	NDJSON = "ndjson"
	// Arrow is an Arrow IPC stream.
	Arrow = "arrow"
)

// TempFail is the exit code that asks for another try (EX_TEMPFAIL).
const TempFail = 75

// Defaults and bounds.
const (
	DefaultTimeout  = time.Minute
	DefaultDeadline = 2 * time.Minute
	DefaultGrace    = 5 * time.Second

	backoffMin = 500 * time.Millisecond
	backoffMax = 15 * time.Second
	// stdoutMax is what is kept of standard output, its end.
	stdoutMax = 64 << 10
	// lineMax and linesMax bound what of standard error goes to the log.
	lineMax  = 2000
	linesMax = 200
	// tailMax is how much of standard error an error message shows.
	tailMax = 500
	// positionMax bounds WEIR_POSITION: a variable of more than 128 KiB cannot be
	// passed on Linux. Beyond it the variable is left out.
	positionMax = 100 << 10
)

// Options make a sink.
type Options struct {
	Name, Query string
	// Shape is the rows'.
	Shape *arrow.Schema
	// Command is the program and its arguments; with Shell it is one text that
	// /bin/sh runs.
	Command []string
	Shell   bool
	Dir     string
	// Env is added to weir's own environment.
	Env    map[string]string
	Format string
	// AckRows: the program's last line of standard output is the number of rows
	// that it has dealt with, and has to match.
	AckRows bool
	// Timeout bounds one run of the program, Deadline the tries of a batch, and
	// Grace is the time between the signal to end and the one that kills.
	Timeout, Deadline, Grace time.Duration
	// Key, if set, adds each row's place in Kafka to NDJSON rows.
	Key *rowjson.Key

	Record   objstore.Store
	Clock    clock.Clock
	Logger   *slog.Logger
	Stopping <-chan struct{}
	// BatchBytes is how large a batch may be in memory; 0 for the default.
	BatchBytes int64
}

// New makes the sink: a sink with a record of deliveries whose function runs the
// program.
func New(o Options) (*foreachbatch.Sink, error) {
	o.defaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	r := &runner{o: o}
	return foreachbatch.New(foreachbatch.Options{
		Name: o.Name, Query: o.Query, Handler: r.deliver, Record: o.Record, Clock: o.Clock, Stopping: o.Stopping,
		Limits: foreachbatch.Limits{BatchBytes: o.BatchBytes}, Probe: r.probe,
	})
}

func (o *Options) defaults() {
	if o.Name == "" {
		o.Name = "exec"
	}
	if o.Format == "" {
		o.Format = NDJSON
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Deadline == 0 {
		o.Deadline = DefaultDeadline
	}
	if o.Grace == 0 {
		o.Grace = DefaultGrace
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// validate names every conflict at once.
func (o *Options) validate() error {
	if o.Shape == nil || o.Clock == nil {
		return errors.New("an exec sink needs the rows' shape and a clock")
	}
	var faults []string
	add := func(bad bool, text string) {
		if bad {
			faults = append(faults, text)
		}
	}
	add(len(o.Command) == 0 || strings.TrimSpace(o.Command[0]) == "", "command is missing")
	add(o.Shell && len(o.Command) != 1, "with shell the command is one text")
	add(o.Format != NDJSON && o.Format != Arrow, "format is ndjson or arrow")
	add(o.Key != nil && o.Format != NDJSON, "a record key is for ndjson; Arrow rows have their columns")
	add(o.Timeout < 0 || o.Deadline < 0 || o.Grace < 0, "times must be positive")
	for k := range o.Env {
		add(strings.HasPrefix(k, "WEIR_"), "variable "+k+" is set by weir")
		add(k == "" || strings.ContainsAny(k, "=\x00"), "variable "+k+" has no usable name")
	}
	if o.Dir != "" {
		fi, err := os.Stat(o.Dir)
		add(err != nil || !fi.IsDir(), "dir "+o.Dir+" is not a directory")
	}
	if len(faults) > 0 {
		slices.Sort(faults)
		return failure.New(failure.Config, "query %s, exec sink: %s", o.Query, strings.Join(faults, "; "))
	}
	if _, err := rowjson.New(o.Shape, nil, nil); err != nil && o.Format == NDJSON {
		return err
	}
	return o.Key.Check(o.Shape)
}
