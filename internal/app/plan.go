package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/broker"
	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/pipeline"
)

// PipelinePlan is what a start of a pipeline would do.
type PipelinePlan struct {
	Name string `json:"name"`
	// Topics are those that the start makes.
	Topics  []string     `json:"topics,omitempty"`
	Queries []*QueryPlan `json:"queries"`
}

// QueryPlan is a query's, with its main table.
type QueryPlan struct {
	*engine.Plan
	Table      string `json:"table"`
	Checkpoint string `json:"checkpoint"`
}

// Refusal is the first of the queries', upstream first, nil where none refuses.
func (p *PipelinePlan) Refusal() *engine.Refusal {
	for _, q := range p.Queries {
		if q.Refusal != nil {
			return q.Refusal
		}
	}
	return nil
}

// Changes reports whether a start would change more than epochs.
func (p *PipelinePlan) Changes() bool {
	return len(p.Topics) > 0 || slices.ContainsFunc(p.Queries, func(q *QueryPlan) bool { return q.Status != engine.PlanUnchanged })
}

// Plan finds out what a start of the pipeline would do, and does nothing of it.
// An embedded broker that does not run is started for the answer.
func Plan(ctx context.Context, p *pipeline.Pipeline, o Options) (_ *PipelinePlan, err error) {
	a := &App{P: p, opts: o, notify: map[string]*notifier{}, planning: true}
	a.fillOptions()
	defer func() { err = errors.Join(err, a.Close()) }()
	missing, err := a.openToPlan(ctx)
	if err != nil {
		return nil, err
	}
	if err := a.buildQueries(ctx); err != nil {
		return nil, err
	}
	out := &PipelinePlan{Name: p.Name, Topics: missing}
	made := map[string]string{} // table that a start makes or begins, by the query
	for _, q := range a.Queries() {
		def, err := QueryByName(p, q.Name)
		if err != nil {
			return nil, err
		}
		plan, err := q.Plan(ctx, a.noSource(def, missing, made))
		if err != nil {
			return nil, err
		}
		if plan.Status == engine.PlanNew {
			made[def.To.Table()] = def.Name
		}
		out.Queries = append(out.Queries, &QueryPlan{Plan: plan, Table: def.To.Table(), Checkpoint: CheckpointDir(p, def)})
	}
	return out, nil
}

// openToPlan opens broker and catalog as far as they are there. It returns the
// topics that a start would make.
func (a *App) openToPlan(ctx context.Context) (missing []string, err error) {
	if a.P.Kafka != nil {
		if missing, err = a.kafkaToPlan(ctx); err != nil {
			return nil, err
		}
	}
	if err := a.openCatalogToRead(ctx); err != nil {
		return nil, err
	}
	if a.Catalog == nil {
		a.Catalog = lake.Over(noTables{}, iceberg.Properties{"warehouse": a.P.Warehouse})
	}
	return missing, nil
}

// nowhere stands for the address of a broker that is not there yet; nobody asks it.
const nowhere = "127.0.0.1:9"

// kafkaToPlan reaches the broker. The embedded one of a pipeline that has never
// run is not made.
func (a *App) kafkaToPlan(ctx context.Context) (missing []string, err error) {
	declared := func() (names []string) {
		for _, t := range a.P.Kafka.Topics {
			names = append(names, t.Name)
		}
		return names
	}()
	if e := a.P.Kafka.Embedded; e == nil {
		a.Kafka = KafkaConfig(a.P.Kafka, "")
	} else if bootstrap, ok := broker.Running(e.DataDir); ok {
		a.Kafka = KafkaConfig(a.P.Kafka, bootstrap)
	} else if _, err := os.Stat(e.DataDir); errors.Is(err, fs.ErrNotExist) {
		a.noBroker = true
		a.Kafka = KafkaConfig(a.P.Kafka, nowhere)
		return declared, nil
	} else if err := a.spawnBroker(ctx); err != nil {
		return nil, err
	}
	if len(declared) == 0 {
		return nil, nil
	}
	opts, err := a.KafkaOptions()
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "kafka client")
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, topicDeadline)
	defer cancel()
	there, err := kadm.NewClient(client).ListTopics(ctx, declared...)
	if err != nil {
		err = broker.Explain(ctx, a.Kafka, err)
		var classified *failure.Error
		if errors.As(err, &classified) {
			return nil, err
		}
		return nil, failure.Wrap(failure.Unreachable, err, "ask Kafka at %v for the pipeline's topics", a.Kafka.BootstrapServers)
	}
	for _, name := range declared {
		if d, ok := there[name]; !ok || d.Err != nil {
			missing = append(missing, name)
		}
	}
	return missing, nil
}

// noSource says why a query has nothing to read from before the pipeline is
// started, empty where it has.
func (a *App) noSource(q pipeline.Query, topics []string, tables map[string]string) string {
	if t := q.From.Table; t != nil {
		if by, ok := tables[t.Name]; ok {
			return fmt.Sprintf("its source %s is made by query %s", t.Name, by)
		}
		return ""
	}
	if a.noBroker {
		return "its source is the embedded broker, which the first start makes"
	}
	for _, name := range q.From.Kafka.Topics {
		if slices.Contains(topics, name) {
			return "its source, topic " + name + ", is made by the start"
		}
	}
	return ""
}

// noTables is the catalog of a pipeline that has none yet.
type noTables struct{}

// Location implements lake.Pointers.
func (noTables) Location(_ context.Context, ident table.Identifier) (string, error) {
	return "", fmt.Errorf("%w: %s", lake.ErrNoTable, strings.Join(ident, "."))
}

// Swap implements lake.Pointers.
func (noTables) Swap(context.Context, table.Identifier, string, string) error {
	return errors.New("a plan changes nothing")
}
