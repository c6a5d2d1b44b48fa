package bench

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/examples"
	"github.com/weirlake/weir/internal/duck"
	"github.com/weirlake/weir/internal/gold"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/datafile"
	"github.com/weirlake/weir/internal/pipeline"
)

const (
	// goldFiles is in how many data files the rows of silver are.
	goldFiles = 10
	// goldRatio is how much slower than plain DuckDB a run of gold may be.
	goldRatio = 1.3
	goldPlain = "gold/plain-duckdb"
	// goldFactor times --rows are in silver.
	goldFactor = 10
)

// goldSilver are the columns of silver.edits that the shipped models read.
var goldSilver = []struct{ name, kind, value string }{
	{"event_id", "string", "uuid()::VARCHAR"},
	{"event_time", "timestamptz", "timestamptz '2026-05-01 00:00:00+00' + to_milliseconds(i)"},
	{"type", "string", "CASE WHEN i % 10 = 0 THEN 'new' ELSE 'edit' END"},
	{"wiki", "string", "['commonswiki', 'wikidatawiki', 'enwiki', 'dewiki', 'frwiki', 'viwiki', 'eswiki', 'ruwiki'][1 + (hash(i) % 8)::INTEGER]"},
	{"title", "string", "'Page ' || (hash(i * 7) % greatest(1, n // 5))"},
	{"user", "string", "'Editor ' || (hash(i * 13) % greatest(1, n // 10))"},
	{"bot", "boolean", "hash(i * 13) % 3 = 0"},
	{"length_old", "long", "(hash(i * 17) % 10000)::BIGINT"},
	{"length_new", "long", "(hash(i * 19) % 10000)::BIGINT"},
	{"processed_at", "timestamptz", "timestamptz '2026-05-01 00:00:01+00' + to_milliseconds(i)"},
}

// gold measures the shipped marts over rows of silver, against the same
// statements in plain DuckDB over the same Parquet files, one after the other.
func (b *bench) gold(ctx context.Context) ([]Result, error) {
	if err := duck.Linked(); err != nil {
		return nil, err
	}
	dir := filepath.Join(b.dir, "gold")
	c, err := lake.Open(ctx, lake.Config{URI: filepath.Join(dir, "catalog.db"), Warehouse: filepath.Join(dir, "warehouse")})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	b.say("gold: making %d rows of silver", goldFactor*b.o.Rows)
	t, err := b.makeSilver(ctx, c)
	if err != nil {
		return nil, err
	}
	p, err := gold.Load(examples.Gold())
	if err != nil {
		return nil, err
	}
	g, err := p.Compile("gold", nil)
	if err != nil {
		return nil, err
	}
	b.say("gold: the four marts, and the same in plain DuckDB")
	return b.each(ctx, Gold, func(run int) ([]Result, error) {
		var plain, ours time.Duration
		measure := []func() error{
			func() (err error) { plain, err = b.plainMarts(ctx, g, t); return err },
			func() error {
				began := b.o.Clock.Now()
				_, err := g.Run(ctx, gold.Options{Catalog: c, Clock: b.o.Clock, Logger: slog.New(slog.DiscardHandler), FullRefresh: true, MemoryLimit: pipeline.DefaultDuckMemory})
				ours = b.o.Clock.Now().Sub(began)
				return err
			},
		}
		if run%2 == 0 { // whoever is second has the files in memory
			slices.Reverse(measure)
		}
		for _, f := range measure {
			if err := f(); err != nil {
				return nil, err
			}
		}
		rate := func(d time.Duration) float64 { return round(float64(goldFactor*b.o.Rows) / d.Seconds()) }
		return []Result{
			{Name: goldPlain, Rows: goldFactor * b.o.Rows, RowsPerSecond: rate(plain), Seconds: round(plain.Seconds())},
			{Name: Gold, Rows: goldFactor * b.o.Rows, RowsPerSecond: rate(ours), Seconds: round(ours.Seconds()), Ratio: round(plain.Seconds() / ours.Seconds())},
		}, nil
	})
}

// makeSilver fills the table with generated rows.
func (b *bench) makeSilver(ctx context.Context, c *lake.Catalog) (*table.Table, error) {
	kinds := map[string]iceberg.Type{
		"string": iceberg.PrimitiveTypes.String, "timestamptz": iceberg.PrimitiveTypes.TimestampTz, "boolean": iceberg.PrimitiveTypes.Bool, "long": iceberg.PrimitiveTypes.Int64,
	}
	var fields []iceberg.NestedField
	var cols, ids []string
	for i, f := range goldSilver {
		fields = append(fields, iceberg.NestedField{ID: i + 1, Name: f.name, Type: kinds[f.kind]})
		cols = append(cols, f.value+" AS "+duck.Ident(f.name))
		ids = append(ids, fmt.Sprintf("%s: %d", duck.Ident(f.name), i+1))
	}
	t, err := c.EnsureTable(ctx, table.Identifier{"silver", "edits"}, iceberg.NewSchema(0, fields...), *iceberg.UnpartitionedSpec, nil)
	if err != nil {
		return nil, err
	}
	storage, err := lake.DataFSOf(ctx, t)
	if err != nil {
		return nil, err
	}
	s, err := duck.Open(ctx, duck.Options{Folder: b.dir})
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Close() }()
	var ch lake.Change
	for n := range int64(goldFiles) {
		from, to := goldFactor*b.o.Rows*n/goldFiles, goldFactor*b.o.Rows*(n+1)/goldFiles
		path := filepath.Join(s.Folder(), fmt.Sprintf("silver-%d.parquet", n))
		err := s.Exec(ctx, fmt.Sprintf("COPY (SELECT %s FROM (SELECT range AS i, %d AS n FROM range(%d, %d))) TO %s (FORMAT parquet, COMPRESSION zstd, FIELD_IDS {%s})",
			strings.Join(cols, ", "), goldFactor*b.o.Rows, from, to, duck.Quote(path), strings.Join(ids, ", ")))
		if err != nil {
			return nil, err
		}
		f, err := datafile.Adopt(datafile.Spec{
			Schema: t.Schema(), PartitionSpec: t.Spec(), FormatVersion: t.Metadata().Version(), Properties: t.Properties(), Location: lake.DataLocation(t), FS: storage,
		}, path, fmt.Sprintf("%s/silver-%d.parquet", lake.DataLocation(t), n))
		if err != nil {
			return nil, err
		}
		ch.Files = append(ch.Files, f.DataFile)
	}
	return c.Commit(ctx, t, ch)
}

// plainMarts runs the models' statements in a DuckDB of their own, over a view
// of the files, and writes each result as one Parquet file.
func (b *bench) plainMarts(ctx context.Context, g *gold.Graph, t *table.Table) (time.Duration, error) {
	files, _, err := lake.FilesOf(ctx, t)
	if err != nil {
		return 0, err
	}
	var paths []string
	for _, f := range files {
		p, err := lake.LocalPath(f.FilePath())
		if err != nil {
			return 0, err
		}
		paths = append(paths, duck.Quote(p))
	}
	out, err := os.MkdirTemp(b.dir, "plain-")
	if err != nil {
		return 0, err
	}
	began := b.o.Clock.Now()
	s, err := duck.Open(ctx, duck.Options{Folder: b.dir})
	if err != nil {
		return 0, err
	}
	defer func() { _ = s.Close() }()
	statements := []string{
		"CREATE SCHEMA silver", "CREATE SCHEMA gold",
		"CREATE VIEW silver.edits AS FROM read_parquet([" + strings.Join(paths, ", ") + "])",
		`CREATE VIEW silver.editor_sessions AS SELECT NULL::VARCHAR AS "user" WHERE false`,
	}
	for _, m := range g.Order {
		rel := duck.Relation("gold", m.Name)
		if !m.Published() {
			statements = append(statements, "CREATE VIEW "+rel+" AS "+m.SQL())
			continue
		}
		statements = append(statements, "CREATE TABLE "+rel+" AS "+m.SQL(),
			"COPY "+rel+" TO "+duck.Quote(filepath.Join(out, m.Name+".parquet"))+" (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)")
	}
	for _, st := range statements {
		if err := s.Exec(ctx, st); err != nil {
			return 0, err
		}
	}
	return b.o.Clock.Now().Sub(began), os.RemoveAll(out)
}
