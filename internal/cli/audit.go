package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/broker"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/pipeline"
)

// auditFlags are the flags of an audit without a pipeline file.
type auditFlags struct {
	table, topic, kafka, catalog, catalogName string
	format                                    string
	partitionColumn, offsetColumn, topicCol   string

	watch         bool
	interval      time.Duration
	listen, alert string
}

func newAudit(g *globals) *cobra.Command {
	var f auditFlags
	cmd := &cobra.Command{
		Use:   "audit [FILE]",
		Short: "Count every table against its Kafka topic, with an implementation of its own",
		Long: `Compares the set of (partition, offset) of each table with what a read_committed
reader of its topic gets: missing and extra ranges, doubled rows, files that are
live twice or missing. For a table that reads another one: distinct event ids,
and whether the counts of all batches add up.

With FILE, every table of the pipeline. Without, any Iceberg or Delta table that
keeps partition and offset, whoever wrote it:

  weir audit --table bronze.events --topic events --kafka localhost:9092 --catalog catalog.db
  weir audit --table /data/events --topic events --kafka localhost:9092

Exit code 0 exact, 4 mismatch, 10 inconclusive. With --watch it goes on until it
is stopped, with metrics and alerts.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var cfg audit.Config
			done := func() {}
			var err error
			switch {
			case len(args) == 1 && f.table == "":
				cfg, done, err = g.auditPipeline(cmd.Context(), args[0])
			case len(args) == 0 && f.table != "":
				cfg, err = f.config()
			default:
				err = failure.New(failure.Config, "audit takes a pipeline FILE, or --table with --topic, --kafka and --catalog")
			}
			if err != nil {
				return err
			}
			defer done()
			if f.watch {
				return g.watchAudit(cmd, cfg, f)
			}
			report, err := audit.Run(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			if err := g.print(report, func(w io.Writer) error { report.WriteText(w); return nil }); err != nil {
				return err
			}
			return auditExit(report)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.table, "table", "", "table `namespace.name`, or its folder or metadata file")
	fl.StringVar(&f.format, "format", "", "`iceberg|delta`; empty looks for a Delta log in the folder that --table names")
	fl.StringVar(&f.topic, "topic", "", "its `topic`")
	fl.StringVar(&f.kafka, "kafka", "", "bootstrap `servers`")
	fl.StringVar(&f.catalog, "catalog", "", "SQLite `file` of the SQL catalog; empty where --table is a path")
	fl.StringVar(&f.catalogName, "catalog-name", "weir", "`name` of the catalog")
	fl.StringVar(&f.topicCol, "topic-column", "", "`column` with the topic (default topic)")
	fl.StringVar(&f.partitionColumn, "partition-column", "", "`column` with the partition (default partition)")
	fl.StringVar(&f.offsetColumn, "offset-column", "", "`column` with the offset (default offset)")
	fl.BoolVar(&f.watch, "watch", false, "audit again and again until stopped; one report a line with --output json")
	fl.DurationVar(&f.interval, "interval", time.Minute, "`time` between the starts of two audits, with --watch")
	fl.StringVar(&f.listen, "listen", "", "`address` for /metrics and /livez, with --watch, for example 127.0.0.1:9464")
	fl.StringVar(&f.alert, "alert-command", "", "shell `command` that is run when a table turns wrong, is exact again, or gets another\nquery id, with --watch; it finds WEIR_ALERT_TABLE and WEIR_ALERT_TEXT in its environment")
	return cmd
}

// watchAudit audits until the process is stopped.
func (g *globals) watchAudit(cmd *cobra.Command, cfg audit.Config, f auditFlags) error {
	if f.interval < watchIntervalMin {
		return failure.New(failure.Config, "--interval %s is below %s", f.interval, watchIntervalMin)
	}
	reg := prometheus.NewRegistry()
	w := newWatcher(g, cfg, f.interval, f.alert, cmd.ErrOrStderr(), reg)
	if f.listen != "" {
		at, stop, err := serveMetrics(f.listen, reg)
		if err != nil {
			return err
		}
		defer stop()
		fmt.Fprintf(cmd.ErrOrStderr(), "weir: metrics at http://%s/metrics\n", at)
	}
	w.watch(cmd.Context())
	return nil
}

func auditExit(r *audit.Report) error {
	switch {
	case r.Mismatched():
		return exitCode(failure.Mismatch)
	case !r.Exact():
		return exitCode(failure.Inconclusive)
	}
	return nil
}

func (f auditFlags) config() (audit.Config, error) {
	if f.topic == "" || f.kafka == "" {
		return audit.Config{}, failure.New(failure.Config, "audit --table needs --topic and --kafka")
	}
	cfg := audit.Config{
		Brokers: strings.Split(f.kafka, ","), Catalog: audit.PathCatalog{}, Store: audit.NewStores(),
		Tables: []audit.TableConfig{{Name: f.table, Topic: f.topic,
			Columns: audit.Columns{Topic: f.topicCol, Partition: f.partitionColumn, Offset: f.offsetColumn}}},
	}
	isDelta := f.format == "delta"
	switch f.format {
	case "", "iceberg", "delta":
	default:
		return audit.Config{}, failure.New(failure.Config, "--format %q: want iceberg or delta", f.format)
	}
	if f.format == "" && f.catalog == "" {
		_, err := os.Stat(filepath.Join(f.table, "_delta_log"))
		isDelta = err == nil
	}
	if isDelta {
		cfg.Tables[0].Delta = f.table
	}
	if f.catalog != "" {
		cfg.Catalog = audit.SQLiteCatalog{Path: f.catalog, Name: f.catalogName}
	}
	return cfg, nil
}

// auditPipeline is the audit of every table of a pipeline. Its embedded broker,
// if it has one, is started where it does not run already.
func (g *globals) auditPipeline(ctx context.Context, file string) (audit.Config, func(), error) {
	p, err := g.load(file)
	if err != nil {
		return audit.Config{}, nil, err
	}
	kafka, stop, err := app.Reach(ctx, p)
	if err != nil {
		return audit.Config{}, nil, err
	}
	cfg, err := auditConfig(p, kafka)
	return cfg, stop, err
}

// auditConfig names every table of the pipeline with what feeds it.
func auditConfig(p *pipeline.Pipeline, kafka broker.Config) (audit.Config, error) {
	opts, err := broker.ClientOptions(kafka)
	if err != nil {
		return audit.Config{}, err
	}
	catalog, err := auditCatalog(p.Catalog)
	if err != nil {
		return audit.Config{}, err
	}
	cfg := audit.Config{
		Catalog: catalog,
		Brokers: kafka.BootstrapServers, KafkaOptions: opts, ProgressTable: p.Ops.ProgressTable,
		Store: auditStores(p),
	}
	for _, q := range p.Queries {
		if _, e := q.To.External(); e != nil {
			continue // not a table that could be counted
		}
		if !app.Auditable(q) {
			slog.Warn("the audit has nothing to compare the table with", "query", q.Name, "table", q.To.Table())
			continue
		}
		t := audit.TableConfig{Name: q.To.Table(), Delta: app.MainLocation(p, q)}
		if q.DeadLetter != nil {
			t.DeadLetterTable, t.DeadLetterDelta = q.DeadLetter.Table, app.DeadLetterLocation(p, q)
		}
		switch {
		case q.From.Table != nil:
			t.Upstream = q.From.Table.Name
			switch {
			case q.Typed():
				t.Groups, t.Columns = app.AuditGroups(q)
			case q.Parse != nil:
				t.Columns = placeColumns(q.Parse)
				if ids := q.DropDuplicatesWithinWatermark; len(ids) == 1 {
					t.Columns.EventID = ids[0]
				} else {
					t.NoEventID = true
				}
			}
			t.StartsLater = q.From.Table.StartingOffsets.Mode == pipeline.Latest
		default:
			k := q.From.Kafka
			t.Topics, t.TopicPattern = k.Topics, k.TopicPattern
			t.StartsLater = k.StartingOffsets.Mode != pipeline.Earliest || k.StartingTimestamp != nil || k.StartingOffsetsByTimestamp != nil
			if q.Parse != nil {
				t.Parsed, t.Columns = true, placeColumns(q.Parse)
			}
		}
		cfg.Tables = append(cfg.Tables, t)
	}
	if len(cfg.Tables) == 0 {
		return audit.Config{}, failure.New(failure.Config, "%s has no queries, so no tables", filepath.Base(p.File))
	}
	return cfg, nil
}

// placeColumns are the columns that say which record a row is, as a query that
// reads Kafka itself names them.
func placeColumns(p *pipeline.Parse) (c audit.Columns) {
	for _, col := range p.Columns {
		switch col.Source {
		case pipeline.SourceTopic:
			c.Topic = col.Name
		case pipeline.SourcePartition:
			c.Partition = col.Name
		case pipeline.SourceOffset:
			c.Offset = col.Name
		}
	}
	return c
}

// auditCatalog is the catalog as the audit asks it, by itself.
func auditCatalog(c pipeline.Catalog) (audit.Locator, error) {
	switch {
	case c.IsSQLite():
		return audit.SQLiteCatalog{Path: c.SQLitePath(), Name: c.Name}, nil
	case c.Type == pipeline.CatalogGlue:
		return auditGlue(c.Glue), nil
	case c.Type != pipeline.CatalogREST:
		return audit.PostgresCatalog{URI: c.URI.Reveal(), Name: c.Name}, nil
	case c.SigV4 != nil:
		return nil, failure.New(failure.Config, "the audit does not sign requests to a REST catalog yet").
			WithHint("audit the tables by their paths: weir audit --table LOCATION --topic TOPIC --kafka BROKERS")
	}
	headers := map[string]string{}
	for k, v := range c.Headers {
		headers[k] = v.Reveal()
	}
	return audit.RESTCatalog{URI: c.URI.Reveal(), Warehouse: c.Warehouse, Credential: c.Credential.Reveal(), Token: c.Token.Reveal(),
		OAuth2ServerURI: c.OAuth2ServerURI, Scope: c.Scope, Headers: headers}, nil
}
