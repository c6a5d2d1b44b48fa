package weir_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir"
)

// A query in ten lines: a topic lands in a Delta table, each record once.
func Example() {
	dir, servers, stop := ordersOnABroker(`{"id":1,"amount":20}`, `{"id":2,"amount":35}`, `{"id":3,"amount":5}`)
	defer stop()
	ctx := context.Background()

	err := weir.NewQuery("orders").
		From(weir.Kafka{BootstrapServers: servers, Topics: []string{"orders"}}).
		Parse(weir.Parse{Columns: []weir.Column{
			{Name: "id", Path: "$.id", Type: "long", Required: true},
			{Name: "amount", Path: "$.amount", Type: "long"},
		}}).
		Trigger(weir.AvailableNow()).
		Checkpoint(filepath.Join(dir, "checkpoints", "orders")).
		To(weir.Delta{Path: filepath.Join(dir, "lake", "orders")}).
		Run(ctx)
	if err != nil {
		log.Fatal(err)
	}

	table, err := weir.OpenDelta(ctx, filepath.Join(dir, "lake", "orders"))
	if err != nil {
		log.Fatal(err)
	}
	rows, err := table.Rows(ctx)
	fmt.Println(rows, "rows", err)
	// Output: 3 rows <nil>
}

// A handler writes under the batch's key, so that the second time changes
// nothing: here a map stands for a store that knows keys.
func ExampleQuery_ForeachBatch() {
	dir, servers, stop := ordersOnABroker(`{"id":1}`, `{"id":2}`, `{"id":3}`)
	defer stop()

	var rows []int64
	known := map[string]bool{}
	calls := 0
	err := weir.NewQuery("to-billing").
		From(weir.Kafka{BootstrapServers: servers, Topics: []string{"orders"}}).
		Parse(weir.Parse{Columns: []weir.Column{{Name: "id", Path: "$.id", Type: "long", Required: true}}}).
		Trigger(weir.AvailableNow()).
		Checkpoint(filepath.Join(dir, "checkpoints", "to-billing")).
		ForeachBatch(func(ctx context.Context, b weir.Batch) (int64, error) {
			calls++
			if !known[b.Key()] {
				known[b.Key()] = true
				for _, rec := range b.Records {
					rows = append(rows, rec.Column(0).(*array.Int64).Int64Values()...)
				}
			}
			if !b.Redelivered { // the store has the rows, and its answer gets lost
				return 0, weir.Transient(errors.New("connection reset"))
			}
			return b.NumRows(), nil
		}).
		Run(context.Background())
	fmt.Println(rows, "after", calls, "calls", err)
	// Output: [1 2 3] after 2 calls <nil>
}

// Append remembers (app id, batch id) in the commit itself. A batch that comes
// again is known.
func ExampleDeltaTable_Append() {
	dir, servers, stop := ordersOnABroker(`{"id":1}`, `{"id":2}`, `{"id":3}`)
	defer stop()
	ctx := context.Background()
	table, err := weir.OpenDelta(ctx, filepath.Join(dir, "lake", "orders"))
	if err != nil {
		log.Fatal(err)
	}

	err = weir.NewQuery("orders").
		From(weir.Kafka{BootstrapServers: servers, Topics: []string{"orders"}}).
		Parse(weir.Parse{Columns: []weir.Column{{Name: "id", Path: "$.id", Type: "long", Required: true}}}).
		Trigger(weir.AvailableNow()).
		Checkpoint(filepath.Join(dir, "checkpoints", "orders")).
		ForeachBatch(func(ctx context.Context, b weir.Batch) (int64, error) {
			rows, err := table.Append(ctx, b, weir.DeltaWrite{})
			if err == nil && b.Try == 1 {
				err = weir.Transient(errors.New("the answer was lost"))
			}
			return rows, err
		}).
		Run(ctx)
	rows, _ := table.Rows(ctx)
	fmt.Println(rows, "rows", err)
	// Output: 3 rows <nil>
}

// Merge brings a table up to date by key. The last row of a key in a batch
// counts.
func ExampleDeltaTable_Merge() {
	dir, servers, stop := ordersOnABroker(`{"id":1,"amount":20}`, `{"id":2,"amount":35}`, `{"id":1,"amount":25}`)
	defer stop()
	ctx := context.Background()
	table, err := weir.OpenDelta(ctx, filepath.Join(dir, "lake", "orders"))
	if err != nil {
		log.Fatal(err)
	}

	err = weir.NewQuery("orders").
		From(weir.Kafka{BootstrapServers: servers, Topics: []string{"orders"}}).
		Parse(weir.Parse{Columns: []weir.Column{
			{Name: "id", Path: "$.id", Type: "long", Required: true},
			{Name: "amount", Path: "$.amount", Type: "long"},
		}}).
		Trigger(weir.AvailableNow()).
		Checkpoint(filepath.Join(dir, "checkpoints", "orders")).
		ForeachBatch(func(ctx context.Context, b weir.Batch) (int64, error) {
			return table.Merge(ctx, b, weir.DeltaMerge{Keys: []string{"id"}})
		}).
		Run(ctx)
	rows, _ := table.Rows(ctx)
	fmt.Println(rows, "rows", err)
	// Output: 2 rows <nil>
}

// A program for cron or an orchestrator: it works off what is there, and its exit
// code says whether to try again.
func ExampleUpsert() {
	dir, servers, stop := ordersOnABroker(
		`{"op":"c","after":{"id":1,"amount":20},"source":{"lsn":10}}`,
		`{"op":"c","after":{"id":2,"amount":35},"source":{"lsn":11}}`,
		`{"op":"u","after":{"id":1,"amount":25},"source":{"lsn":12}}`,
		`{"op":"d","before":{"id":2},"source":{"lsn":13}}`,
		`{"op":"u","after":{"id":2,"amount":1},"source":{"lsn":11}}`, // late: it stays deleted
	)
	defer stop()
	ctx := context.Background()
	path := filepath.Join(dir, "lake", "orders")

	err := weir.NewQuery("orders").
		From(weir.Kafka{BootstrapServers: servers, Topics: []string{"orders"}}).
		Parse(weir.Parse{Columns: []weir.Column{
			{Name: "id", Path: "$.id", Type: "long", Required: true},
			{Name: "amount", Path: "$.amount", Type: "long"},
			{Name: "lsn", Path: "$.__source.lsn", Type: "long", Required: true},
		}}).
		Trigger(weir.AvailableNow()).
		Checkpoint(filepath.Join(dir, "checkpoints", "orders")).
		To(weir.Delta{Path: path, Upsert: &weir.Upsert{Keys: []string{"id"}, OrderBy: []string{"lsn"}, Debezium: true}}).
		Run(ctx)
	if err != nil {
		log.Fatal(err)
	}
	table, err := weir.OpenDelta(ctx, path)
	if err != nil {
		log.Fatal(err)
	}
	rows, err := table.Rows(ctx)
	fmt.Println(rows, "row", err)
	// Output: 1 row <nil>
}

func ExampleExitCode() {
	dir, servers, stop := ordersOnABroker(`{"id":1}`)
	defer stop()

	err := weir.NewQuery("orders").
		From(weir.Kafka{BootstrapServers: servers, Topics: []string{"orders"}}).
		Trigger(weir.AvailableNow()).
		Checkpoint(filepath.Join(dir, "checkpoints", "orders")).
		ForeachBatch(func(ctx context.Context, b weir.Batch) (int64, error) {
			return 0, nil // it was to insert one row, and swallowed the error
		}).
		Run(context.Background())
	fmt.Println("exit code", weir.ExitCode(err), "try again:", weir.CanRetry(err))
	// Output: exit code 4 try again: false
}

// Continuous mode has no batches to redeliver, so foreachBatch refuses it.
func ExampleContinuous() {
	err := weir.NewQuery("orders").
		From(weir.Kafka{BootstrapServers: "localhost:9092", Topics: []string{"orders"}}).
		Trigger(weir.Continuous(0)).
		Checkpoint("checkpoints/orders").
		ForeachBatch(func(ctx context.Context, b weir.Batch) (int64, error) { return b.NumRows(), nil }).
		Validate()
	reason, _, _ := strings.Cut(err.Error(), ";")
	fmt.Println(reason)
	// Output: query orders: continuous mode with ForeachBatch: continuous processing has no batches, so there is no batch id that a redelivery could be known by
}

// Several sinks are several queries: each advances, fails and is retried by
// itself.
func ExampleQuery_Start() {
	dir, servers, stop := ordersOnABroker(`{"id":1}`, `{"id":2}`)
	defer stop()
	ctx := context.Background()

	sinks := map[string]weir.Handler{
		"warehouse": func(ctx context.Context, b weir.Batch) (int64, error) { return b.NumRows(), nil },
		"mail": func(ctx context.Context, b weir.Batch) (int64, error) {
			return 0, errors.New("the mail server is down")
		},
	}
	var results []string
	for name, handler := range sinks {
		running, err := weir.NewQuery(name).
			From(weir.Kafka{BootstrapServers: servers, Topics: []string{"orders"}}).
			Trigger(weir.AvailableNow()).
			Checkpoint(filepath.Join(dir, "checkpoints", name)).
			ForeachBatch(handler).
			Start(ctx)
		if err != nil {
			log.Fatal(err)
		}
		err = running.Wait()
		results = append(results, fmt.Sprintf("%s: %d batches, exit code %d", name, len(running.Progress()), weir.ExitCode(err)))
	}
	sort.Strings(results)
	fmt.Println(strings.Join(results, "\n"))
	// Output:
	// mail: 0 batches, exit code 1
	// warehouse: 1 batches, exit code 0
}

// ordersOnABroker starts a broker in this process with a topic "orders" of one
// partition, and a work folder.
func ordersOnABroker(values ...string) (dir, servers string, stop func()) {
	slog.SetLogLoggerLevel(slog.LevelError)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"))
	if err != nil {
		log.Fatal(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	for _, v := range values {
		if err := client.ProduceSync(context.Background(), &kgo.Record{Topic: "orders", Value: []byte(v)}).FirstErr(); err != nil {
			log.Fatal(err)
		}
	}
	if dir, err = os.MkdirTemp("", "weir-example-"); err != nil {
		log.Fatal(err)
	}
	return dir, strings.Join(cluster.ListenAddrs(), ","), func() {
		cluster.Close()
		_ = os.RemoveAll(dir)
	}
}
