// Package cli is the command line: one file per subcommand, no logic of its
// own beyond reading flags, printing results and choosing the exit code.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/weirlake/weir/internal/broker"
	"github.com/weirlake/weir/internal/failure"
)

// globals are the flags that every command takes, and the streams.
type globals struct {
	output    string
	logLevel  string
	logFormat string
	stdout    io.Writer
	stderr    io.Writer
	log       *slog.Logger
}

// json reports whether results go out as JSON.
func (g *globals) json() bool { return g.output == "json" }

// print writes one result document: as JSON, or by text.
func (g *globals) print(v any, text func(w io.Writer) error) error {
	if g.json() {
		enc := json.NewEncoder(g.stdout)
		enc.SetEscapeHTML(false)
		return enc.Encode(v)
	}
	return text(g.stdout)
}

// Main runs the command line and returns the process's exit code.
func Main(args []string, stdout, stderr io.Writer) int {
	// The first signal asks for a clean stop; a second one ends at once.
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	go func() {
		for n := 0; ; n++ {
			s, ok := (<-signals).(syscall.Signal)
			if !ok {
				return
			}
			if n > 0 {
				os.Exit(128 + int(s))
			}
			fmt.Fprintf(stderr, "weir: %s: stopping cleanly; once more ends at once\n", s)
			cancel(signalled(s))
		}
	}()
	if len(args) == 0 || args[0] != broker.Subcommand { // a child of ours would write to the same file
		defer profile(stderr)()
	}
	return run(ctx, args, stdout, stderr)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	g := &globals{stdout: stdout, stderr: stderr}
	root := newRoot(g)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	refuseUnknownSubcommands(root)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	var silent exitCode
	if errors.As(err, &silent) {
		return int(silent)
	}
	var by signalled
	if errors.Is(err, context.Canceled) && errors.As(context.Cause(ctx), &by) {
		return by.exitCode(cmd)
	}
	class := failure.ClassOf(err)
	var f *failure.Error
	if !errors.As(err, &f) && isUsage(err) {
		class = failure.Config
	}
	fmt.Fprintln(stderr, "weir:", strings.TrimSpace(err.Error()))
	if isUsage(err) {
		usage := cmd.UseLine()
		if cmd.HasSubCommands() {
			usage = cmd.CommandPath() + " COMMAND"
		}
		fmt.Fprintf(stderr, "  usage: %s\n  hint: %s --help says more\n", usage, cmd.CommandPath())
	}
	return int(class)
}

// signalled is the cause of a stop that a signal asked for.
type signalled syscall.Signal

func (s signalled) Error() string { return syscall.Signal(s).String() }

// untilStopped marks the commands that go on until somebody stops them: for
// those, a signal that came before they had begun is a clean stop as well.
const untilStopped = "untilStopped"

// exitCode is 0 for what a signal is the ordinary end of. Any other command has
// not given its answer.
func (s signalled) exitCode(cmd *cobra.Command) int {
	if _, ok := cmd.Annotations[untilStopped]; ok {
		return 0
	}
	return 128 + int(s)
}

// refuseUnknownSubcommands gives every command that only groups others a run of
// its own: cobra would print the help and report success for a misspelt one.
func refuseUnknownSubcommands(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if !c.HasSubCommands() || c.Runnable() {
			continue
		}
		c.Args, c.SuggestionsMinimumDistance = cobra.ArbitraryArgs, 2
		c.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
			if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
				text += "; did you mean " + strings.Join(like, " or ") + "?"
			}
			return errors.New(text)
		}
	}
}

// exitCode ends the process with a code when everything has been said already.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// isUsage tells cobra's own complaints about flags and arguments.
func isUsage(err error) bool {
	for _, s := range []string{"unknown command", "unknown flag", "unknown shorthand", "flag needs an argument",
		"invalid argument", "accepts ", "requires ", "required flag", "if any flags in the group"} {
		if strings.HasPrefix(err.Error(), s) {
			return true
		}
	}
	return false
}

func newRoot(g *globals) *cobra.Command {
	root := &cobra.Command{
		Use:   "weir",
		Short: "A streaming lakehouse in one binary: exactly-once that anyone can try to break",
		Long: `Weir lands server-sent events and Kafka topics in Iceberg tables, exactly once.

  weir demo                  the whole pipeline on a generated stream: no file, no broker, no network
  weir init pipeline.yaml    write a commented pipeline file
  weir run pipeline.yaml     run it
  weir audit pipeline.yaml   count every table against Kafka
  weir prove reference       kill it in mid-stream, start it again, count`,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := g.setUp(); err != nil {
				return err
			}
			// Not the arguments: they may hold what nobody should read.
			g.log.Debug("weir", "version", Version, "command", cmd.CommandPath(), "pid", os.Getpid())
			return nil
		},
	}
	f := root.PersistentFlags()
	f.StringVar(&g.output, "output", "text", "results as `text|json`")
	f.StringVar(&g.logLevel, "log-level", envOr("WEIR_LOG_LEVEL", "warn"), "log `level`: debug, info, warn, error")
	f.StringVar(&g.logFormat, "log-format", "text", "logs as `text|json`, on standard error")
	root.AddCommand(
		newDemo(g), newRun(g), newIngest(g), newReplay(g),
		newInit(g), newValidate(g), newPlan(g),
		newStatus(g), newGold(g), newSQL(g), newChecks(g), newLate(g), newDeadLetters(g), newErase(g), newRebuild(g), newCheckpoint(g), newContract(g), newCatalog(g), newDelta(g), newCompact(g), newExpire(g), newOrphans(g), newAudit(g), newProve(g), newBench(g),
		newVersion(g), newHealth(g), newMan(), newBroker(), newForeachBatch(g),
	)
	root.CompletionOptions.HiddenDefaultCmd = false
	return root
}

func envOr(key, fallback string) string {
	if v := os.Getenv(key); v != "" {
		return v
	}
	return fallback
}

// setUp checks the global flags and makes the logger.
func (g *globals) setUp() error {
	if g.output != "text" && g.output != "json" && g.output != "junit" {
		return failure.New(failure.Config, "--output %q: want text or json", g.output)
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(g.logLevel)); err != nil {
		return failure.New(failure.Config, "--log-level %q: want debug, info, warn or error", g.logLevel)
	}
	opts := &slog.HandlerOptions{Level: level}
	switch g.logFormat {
	case "text":
		g.log = slog.New(slog.NewTextHandler(g.stderr, opts))
	case "json":
		g.log = slog.New(slog.NewJSONHandler(g.stderr, opts))
	default:
		return failure.New(failure.Config, "--log-format %q: want text or json", g.logFormat)
	}
	slog.SetDefault(g.log)
	return nil
}
