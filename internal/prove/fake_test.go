package prove

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	icebergsql "github.com/apache/iceberg-go/catalog/sql"
	"github.com/apache/iceberg-go/table"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/pipeline"
)

// The test binary, started again with fakeEnv set, plays the binary under
// test: an engine of a few lines whose mode says where it keeps its offsets.
const fakeEnv = "WEIR_PROVE_FAKE"

const (
	fakeExact  = "exact"         // in the commit itself
	fakeAfter  = "file-after"    // in a file written after the commit: doubles
	fakeBefore = "file-before"   // in a file written before the commit: loses
	fakeRefuse = "refuses-twice" // does not start a second time
)

func TestMain(m *testing.M) {
	mode := os.Getenv(fakeEnv)
	if mode == "" {
		os.Exit(m.Run())
	}
	if err := fakeMain(mode, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "fake:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func fakeMain(mode string, args []string) error {
	switch args[0] {
	case "__broker":
		return fakeBroker(args)
	case "run":
		return fakeRun(mode, args[1], len(args) > 2 && args[2] == "--once")
	}
	return fmt.Errorf("no fake of %q", args)
}

// fakeBroker serves an in-memory cluster until its standard input ends.
func fakeBroker(args []string) error {
	port, err := strconv.Atoi(args[4])
	if err != nil {
		return err
	}
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(port))
	if err != nil {
		return err
	}
	defer c.Close()
	fmt.Printf("{\"bootstrap\":%q}\n", c.ListenAddrs()[0])
	var b [1]byte
	_, _ = os.Stdin.Read(b[:])
	return nil
}

type fakeEngine struct {
	mode    string
	p       *pipeline.Pipeline
	cat     *icebergsql.Catalog
	kafka   *audit.Kafka
	topic   string
	limit   int64
	dir     string
	batches map[string]int64
}

var fakeSchemas = map[string]*iceberg.Schema{
	bronzeTable: iceberg.NewSchema(0,
		iceberg.NestedField{ID: 1, Name: "topic", Type: iceberg.PrimitiveTypes.String},
		iceberg.NestedField{ID: 2, Name: "partition", Type: iceberg.PrimitiveTypes.Int32},
		iceberg.NestedField{ID: 3, Name: "offset", Type: iceberg.PrimitiveTypes.Int64},
		iceberg.NestedField{ID: 4, Name: "value", Type: iceberg.PrimitiveTypes.String}),
	silverTable: iceberg.NewSchema(0,
		iceberg.NestedField{ID: 1, Name: "event_id", Type: iceberg.PrimitiveTypes.String},
		iceberg.NestedField{ID: 2, Name: "kafka_partition", Type: iceberg.PrimitiveTypes.Int32},
		iceberg.NestedField{ID: 3, Name: "kafka_offset", Type: iceberg.PrimitiveTypes.Int64}),
	deadLetterTable: iceberg.NewSchema(0,
		iceberg.NestedField{ID: 1, Name: "reason", Type: iceberg.PrimitiveTypes.String}),
}

func fakeRun(mode, file string, once bool) error {
	p, faults := pipeline.Load(file, os.LookupEnv)
	if len(faults) > 0 {
		return fmt.Errorf("%v", faults)
	}
	e := &fakeEngine{mode: mode, p: p, topic: p.Queries[0].From.Kafka.Topics[0], limit: p.Queries[0].From.Kafka.MaxOffsetsPerTrigger,
		dir: filepath.Dir(file), batches: map[string]int64{}}
	if mode == fakeRefuse {
		mark := filepath.Join(e.dir, "started")
		if _, err := os.Stat(mark); err == nil {
			return errors.New("I do not start twice")
		}
		if err := os.WriteFile(mark, nil, 0o644); err != nil {
			return err
		}
	}
	if err := e.open(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	fault.Reach("bronze", fault.ClaimBefore)
	fault.Reach("silver", fault.ClaimBefore)
	fault.Reach("bronze", fault.ClaimDone)
	fault.Reach("silver", fault.ClaimDone)
	for {
		n, err := e.bronze(ctx)
		if err == nil {
			err = e.silver(ctx)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if n == 0 && once {
			return nil
		}
		_ = clock.System{}.Sleep(ctx, p.Queries[0].Trigger.ProcessingTime+time.Millisecond)
	}
}

func (e *fakeEngine) open() error {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(e.dir, "catalog.db")+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
	if err != nil {
		return err
	}
	e.cat, err = icebergsql.NewCatalog("weir", db, icebergsql.SQLite, iceberg.Properties{"warehouse": "file://" + e.dir + "/warehouse", "init_catalog_tables": "true"})
	if err != nil {
		return err
	}
	ctx := context.Background()
	for name, schema := range fakeSchemas {
		id := catalog.ToIdentifier(strings.Split(name, ".")...)
		_ = e.cat.CreateNamespace(ctx, catalog.ToIdentifier(id[0]), nil)
		if _, err := e.cat.LoadTable(ctx, id); err != nil {
			if _, err := e.cat.CreateTable(ctx, id, schema, catalog.WithProperties(iceberg.Properties{"format-version": "2"})); err != nil {
				return err
			}
		}
	}
	e.kafka, err = audit.NewKafka(e.p.Kafka.BootstrapServers, clock.System{})
	return err
}

// position is where a query goes on: its marker in the table, or a file.
func (e *fakeEngine) position(query string, tbl *table.Table) (map[int32]int64, error) {
	out := map[int32]int64{}
	raw := []byte(tbl.Properties()["weir.fake."+query])
	if query == "bronze" && (e.mode == fakeAfter || e.mode == fakeBefore) {
		var err error
		if raw, err = os.ReadFile(filepath.Join(e.dir, "offsets.json")); errors.Is(err, os.ErrNotExist) {
			return out, nil
		} else if err != nil {
			return nil, err
		}
	}
	if len(raw) == 0 {
		return out, nil
	}
	return out, json.Unmarshal(raw, &out)
}

// row is a line of any of the tables, by column name.
type row map[string]any

func (e *fakeEngine) commit(ctx context.Context, query, name string, rows []row, next map[int32]int64, counters string) error {
	tbl, err := e.cat.LoadTable(ctx, catalog.ToIdentifier(strings.Split(name, ".")...))
	if err != nil {
		return err
	}
	fault.Reach(query, fault.CommitBefore)
	vec := `{"topics":{"` + e.topic + `":{"partitions":{`
	for i, p := range []int32{0, 1, 2, 3} {
		if i > 0 {
			vec += ","
		}
		vec += fmt.Sprintf(`"%d":{"next_offset":%d}`, p, next[p])
	}
	vec += "}}}}"
	plain, err := json.Marshal(next)
	if err != nil {
		return err
	}
	marker := fmt.Sprintf(`{"kind":"stream","query_name":%q,"batch_id":%d,"position":{"kafka":%s},"counters":%s}`, query, e.batches[query], vec, counters)
	tx := tbl.NewTransaction()
	schema, err := table.SchemaToArrowSchema(tbl.Schema(), nil, true, false)
	if err != nil {
		return err
	}
	rdr, err := array.NewRecordReader(schema, []arrow.RecordBatch{fakeRecord(schema, rows)})
	if err != nil {
		return err
	}
	if err := tx.Append(ctx, rdr, iceberg.Properties{"weir.offsets": vec, "weir.marker": marker}); err != nil {
		return err
	}
	if err := tx.SetProperties(iceberg.Properties{"weir.query." + query: marker, "weir.fake." + query: string(plain),
		"weir.fake.batch": strconv.FormatInt(e.batches[query]+1, 10)}); err != nil {
		return err
	}
	fault.Reach(query, fault.CommitMetadata)
	if _, err := tx.Commit(ctx); err != nil {
		return err
	}
	fault.Reach(query, fault.CommitSwapped)
	return nil
}

func fakeRecord(schema *arrow.Schema, rows []row) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	for _, r := range rows {
		for i, f := range schema.Fields() {
			switch v := r[f.Name].(type) {
			case string:
				b.Field(i).(*array.StringBuilder).Append(v)
			case int32:
				b.Field(i).(*array.Int32Builder).Append(v)
			case int64:
				b.Field(i).(*array.Int64Builder).Append(v)
			default:
				b.Field(i).AppendNull()
			}
		}
	}
	return b.NewRecordBatch()
}

// bronze commits one batch; it returns the rows.
func (e *fakeEngine) bronze(ctx context.Context) (int, error) {
	tbl, err := e.cat.LoadTable(ctx, catalog.ToIdentifier("bronze", "recentchange"))
	if err != nil {
		return 0, err
	}
	next, err := e.position("bronze", tbl)
	if err != nil {
		return 0, err
	}
	e.batches["bronze"], _ = strconv.ParseInt(tbl.Properties()["weir.fake.batch"], 10, 64)
	bounds, err := e.kafka.Bounds(ctx, e.topic)
	if err != nil {
		return 0, err
	}
	fault.Reach("bronze", fault.PlanWritten)
	var rows []row
	left := e.limit
	for p, b := range bounds.Partitions {
		to := min(b.Stable, next[p]+left)
		left -= to - next[p]
		err := e.kafka.Scan(ctx, e.topic, p, next[p], to, func(r *audit.Record) error {
			rows = append(rows, row{"topic": e.topic, "partition": r.Partition, "offset": r.Offset, "value": string(r.Value)})
			return nil
		})
		if err != nil {
			return 0, err
		}
		next[p] = to
	}
	for _, p := range []string{fault.ReadDone, fault.TransformDone, fault.StageFile, fault.StageDone} {
		fault.Reach("bronze", p)
	}
	if len(rows) == 0 {
		return 0, nil
	}
	save := func() error {
		b, err := json.Marshal(next)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(e.dir, "offsets.json"), b, 0o644)
	}
	if e.mode == fakeBefore {
		if err := save(); err != nil {
			return 0, err
		}
	}
	c := fmt.Sprintf(`{"read":%d,"emitted":%d}`, len(rows), len(rows))
	if err := e.commit(ctx, "bronze", bronzeTable, rows, next, c); err != nil {
		return 0, err
	}
	if e.mode == fakeAfter {
		if err := save(); err != nil {
			return 0, err
		}
	}
	fault.Reach("bronze", fault.DoneWritten)
	fault.Reach("bronze", fault.ReportDone)
	return len(rows), nil
}

// silver is computed whole from Kafka each time and appended where new: this
// fake is about bronze, silver only has to be right.
func (e *fakeEngine) silver(ctx context.Context) error {
	tbl, err := e.cat.LoadTable(ctx, catalog.ToIdentifier("silver", "edits"))
	if err != nil {
		return err
	}
	bronze, err := e.cat.LoadTable(ctx, catalog.ToIdentifier("bronze", "recentchange"))
	if err != nil {
		return err
	}
	from, err := e.position("silver", tbl)
	if err != nil {
		return err
	}
	to := map[int32]int64{}
	if raw := bronze.Properties()["weir.fake.bronze"]; raw != "" {
		if err := json.Unmarshal([]byte(raw), &to); err != nil {
			return err
		}
	}
	e.batches["silver"], _ = strconv.ParseInt(tbl.Properties()["weir.fake.batch"], 10, 64)
	seen := map[string]bool{}
	cat := audit.SQLiteCatalog{Path: filepath.Join(e.dir, "catalog.db")}
	if err := audit.Strings(ctx, cat, nil, silverTable, "event_id", func(id string) { seen[id] = true }); err != nil {
		return err
	}
	var rows, dead []row
	var read, filtered, duplicate, late int
	cutoff := time.Now().Add(-20 * time.Minute)
	for p, end := range to {
		err := e.kafka.Scan(ctx, e.topic, p, from[p], end, func(r *audit.Record) error {
			read++
			var doc struct {
				Meta struct {
					ID string    `json:"id"`
					DT time.Time `json:"dt"`
				} `json:"meta"`
				Type string `json:"type"`
			}
			switch err := json.Unmarshal(r.Value, &doc); {
			case err != nil:
				dead = append(dead, row{"reason": "json"})
			case doc.Type != "edit" && doc.Type != "new":
				filtered++
			case doc.Meta.DT.Before(cutoff):
				late++
			case seen[doc.Meta.ID]:
				duplicate++
			default:
				seen[doc.Meta.ID] = true
				rows = append(rows, row{"event_id": doc.Meta.ID, "kafka_partition": r.Partition, "kafka_offset": r.Offset})
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if read == 0 {
		return nil
	}
	c := fmt.Sprintf(`{"read":%d,"emitted":%d,"filtered":%d,"duplicate":%d,"late":%d,"dead_lettered":%d}`, read, len(rows), filtered, duplicate, late, len(dead))
	if err := e.commit(ctx, "silver", silverTable, rows, to, c); err != nil {
		return err
	}
	if len(dead) > 0 {
		return e.commit(ctx, "dead", deadLetterTable, dead, to, "{}")
	}
	return nil
}

// loopbackPort is a free port of the loopback interface.
func loopbackPort(t *testing.T) int {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port
}
