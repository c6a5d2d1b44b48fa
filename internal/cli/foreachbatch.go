package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/spf13/cobra"

	"github.com/weirlake/weir"
	"github.com/weirlake/weir/internal/failure"
)

// demonstration is the small program that `weir prove foreachbatch` starts and
// kills: a user's program over the public package, in one hidden command.
type demonstration struct {
	handler, kafka, topic, checkpoint, table, starting, appID string
	maxOffsets                                                int64
	rebind                                                    bool
}

// demoQuery is the query's name, and so the scope of its crash points.
const demoQuery = "orders"

func newForeachBatch(g *globals) *cobra.Command {
	var d demonstration
	cmd := &cobra.Command{
		Use: "__foreachbatch", Short: "The program that prove foreachbatch demonstrates with", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return d.run(cmd.Context(), g) },
	}
	f := cmd.Flags()
	f.StringVar(&d.handler, "handler", "", "append, append-idempotent, append-naive, files, files-swallowing")
	f.StringVar(&d.kafka, "kafka", "", "bootstrap servers")
	f.StringVar(&d.topic, "topic", "", "topic of {\"id\": …} records")
	f.StringVar(&d.checkpoint, "checkpoint", "", "checkpoint folder")
	f.StringVar(&d.table, "table", "", "folder of the Delta table, or of the files")
	f.StringVar(&d.starting, "starting-offsets", "earliest", "startingOffsets")
	f.StringVar(&d.appID, "app-id", "", "txnAppId of the user's own")
	f.Int64Var(&d.maxOffsets, "max-offsets", 0, "maxOffsetsPerTrigger")
	f.BoolVar(&d.rebind, "rebind", false, "take the app id over")
	return cmd
}

func (d *demonstration) run(ctx context.Context, g *globals) error {
	handler, err := d.make(ctx)
	if err != nil {
		return err
	}
	return weir.NewQuery(demoQuery).
		From(weir.Kafka{BootstrapServers: d.kafka, Topics: []string{d.topic}, StartingOffsets: d.starting, MaxOffsetsPerTrigger: d.maxOffsets}).
		Parse(weir.Parse{Columns: []weir.Column{{Name: "id", Path: "$.id", Type: "string", Required: true}}}).
		Trigger(weir.AvailableNow()).
		Checkpoint(d.checkpoint).
		ForeachBatch(handler).
		With(weir.Settings{Logger: g.log}).
		Run(ctx)
}

// make is the handler that the demonstration asks for.
func (d *demonstration) make(ctx context.Context) (weir.Handler, error) {
	switch d.handler {
	case "files":
		return d.files(false), nil
	case "files-swallowing":
		return d.files(true), nil
	}
	table, err := weir.OpenDelta(ctx, d.table)
	if err != nil {
		return nil, err
	}
	switch d.handler {
	case "append":
		// The broken way: nothing in the table says that the batch is there.
		return func(ctx context.Context, b weir.Batch) (int64, error) {
			a, err := table.AppendRecords(ctx, b.Records, weir.Txn{})
			return a.Rows, err
		}, nil
	case "append-naive":
		// The way of the manuals: an app id of one's own, and the batch id. It is
		// idempotent, until the ids start again.
		return func(ctx context.Context, b weir.Batch) (int64, error) {
			_, err := table.AppendRecords(ctx, b.Records, weir.Txn{AppID: d.appID, Version: b.BatchID})
			return b.NumRows(), err
		}, nil
	case "append-idempotent":
		return func(ctx context.Context, b weir.Batch) (int64, error) {
			return table.Append(ctx, b, weir.DeltaWrite{AppID: d.appID, RebindAppID: d.rebind})
		}, nil
	}
	return nil, failure.New(failure.Config, "no handler %q", d.handler)
}

// files drops each row as a file named by the batch and the row's place in it: a
// second time finds it there. The swallowing one loses a row to an error that it
// keeps to itself, and counts what it wrote.
func (d *demonstration) files(swallow bool) weir.Handler {
	return func(_ context.Context, b weir.Batch) (rows int64, err error) {
		if err := os.MkdirAll(d.table, 0o755); err != nil {
			return 0, err
		}
		place := 0
		for _, rec := range b.Records {
			ids, ok := rec.Column(0).(*array.String)
			if !ok {
				return rows, errors.New("the id is no text")
			}
			for i := range ids.Len() {
				err := errors.New("disk full")
				if !swallow || place != 1 {
					err = writeOnce(filepath.Join(d.table, fmt.Sprintf("%s-%d-%d", b.QueryID, b.BatchID, place)), ids.Value(i))
				}
				place++
				switch {
				case err == nil:
					rows++
				case !swallow:
					return rows, err
				}
			}
		}
		return rows, nil
	}
}

// writeOnce makes a file; one of that name that is there is the same.
func writeOnce(name, text string) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
