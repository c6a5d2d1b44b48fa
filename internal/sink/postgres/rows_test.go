package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake/catalogtest"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
)

// writer drives one sink: claim, then batches.
type writer struct {
	s      *Sink
	permit sink.Permit
	cur    *marker.Marker
}

func at(next int64) batch.Position {
	k := &batch.KafkaPosition{ClusterID: "c", Topics: map[string]batch.TopicPosition{}}
	k.Set("events", "t1", 0, batch.PartitionPosition{NextOffset: next, LastOffset: next - 1})
	return batch.Position{Kafka: k}
}

func claim(s *Sink) (*writer, error) {
	ctx := context.Background()
	f, err := s.Facts(ctx, s.opts.Query)
	if err != nil {
		return nil, err
	}
	m := &marker.Marker{Format: marker.Format, Kind: marker.KindStream, QueryName: s.opts.Query, QueryID: "lineage", BatchID: -1, Position: at(0)}
	if f.Marker != nil {
		c := *f.Marker
		m = &c
	}
	m.Claim, m.Attempt = true, clock.Nonce()
	m.Epoch = marker.Epoch{Number: m.Epoch.Number + 1, Nonce: clock.Nonce()}
	p, moved, err := s.Claim(ctx, f, m)
	if err == nil && moved {
		err = fmt.Errorf("the claim met another head")
	}
	return &writer{s: s, permit: p, cur: m}, err
}

func mustClaim(t *testing.T, s *Sink) *writer {
	t.Helper()
	w, err := claim(s)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// stage stages a record as the next batch.
func (w *writer) stage(t *testing.T, rec arrow.RecordBatch) (sink.Staged, *marker.Marker) {
	t.Helper()
	m := *w.cur
	m.Claim, m.Attempt, m.Epoch, m.PlanHash = false, clock.Nonce(), w.permit.Epoch(), "plan"
	m.BatchID++
	m.Position = at(w.cur.Position.Kafka.Topics["events"].Partitions[0].NextOffset + rec.NumRows())
	m.BatchTime = time.Unix(1, 0)
	st, err := w.s.Stage(context.Background(), m.BatchID, m.Attempt)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Write(rec); err != nil {
		t.Fatal(err)
	}
	staged, err := st.Close(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return staged, &m
}

func (w *writer) put(t *testing.T, rec arrow.RecordBatch) error {
	t.Helper()
	staged, m := w.stage(t, rec)
	if w.s.opts.OnRejected == sink.RejectDeadLetter {
		got, err := w.s.Prepare(context.Background(), w.permit, w.cur, staged, m, nil)
		if err != nil {
			return err
		}
		staged.Rejected = got.Rejected
	}
	c, err := w.s.Commit(context.Background(), w.permit, w.cur, staged, m)
	if err == nil {
		w.cur = c.Marker
	}
	return err
}

// rejected puts a record and gives the places and codes of what was refused.
func (w *writer) rejected(t *testing.T, rec arrow.RecordBatch) (out []string) {
	t.Helper()
	staged, m := w.stage(t, rec)
	got, err := w.s.Prepare(context.Background(), w.permit, w.cur, staged, m, nil)
	if err != nil {
		t.Fatal(err)
	}
	staged.Rejected = got.Rejected
	c, err := w.s.Commit(context.Background(), w.permit, w.cur, staged, m)
	if err != nil {
		t.Fatal(err)
	}
	w.cur = c.Marker
	for _, r := range got.Rejected {
		out = append(out, fmt.Sprintf("%d %s", r.Row, r.Reason))
	}
	return out
}

var wideSchema = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64},
	{Name: "Te\"xt", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "small", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
	{Name: "ratio", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
	{Name: "flag", Type: arrow.FixedWidthTypes.Boolean, Nullable: true},
	{Name: "event_time", Type: batch.Timestamp, Nullable: true},
	{Name: "raw", Type: arrow.BinaryTypes.Binary, Nullable: true},
	{Name: "doc", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "list", Type: arrow.ListOf(arrow.StructOf(arrow.Field{Name: "key", Type: arrow.BinaryTypes.String})), Nullable: true},
}, nil)

// rowsOf makes a record of rows in JSON.
func rowsOf(t *testing.T, schema *arrow.Schema, rows ...string) arrow.RecordBatch {
	t.Helper()
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	for _, row := range rows {
		if err := b.UnmarshalJSON([]byte(row)); err != nil {
			t.Fatal(err)
		}
	}
	return b.NewRecordBatch()
}

// wide has one row with values and one with nulls.
func wide(t *testing.T) arrow.RecordBatch {
	t.Helper()
	return rowsOf(t, wideSchema, `{"id": 9223372036854775807, "Te\"xt": "tab\t \"quoted\" ü \\N", "small": -7, "ratio": 0.1, "flag": true,
		"event_time": "2026-01-02T03:04:05.000006Z", "raw": "AP8=", "doc": "{\"a\": 1.50}", "list": [{"key": "x"}]}`, `{"id": 1}`)
}

func TestEveryTypeIsStoredAsItIsAndTablesAreCheckedBeforeTheyAreClaimed(t *testing.T) {
	server := catalogtest.StartPostgres(t)
	wideOptions := func(o *Options) { o.Arrow, o.JSONB = wideSchema, []string{"doc"} }
	t.Run("ATableThatIsMissingIsMade", func(t *testing.T) {
		d := database{server, server.NewDatabase()}
		w := mustClaim(t, d.open(t, "q", wideOptions))
		if err := w.put(t, wide(t)); err != nil {
			t.Fatal(err)
		}
		got := ask[string](t, d, `SELECT concat_ws('|', id, "Te""xt", small, ratio, flag, event_time AT TIME ZONE 'UTC', raw, doc->>'a', list->0->>'key') FROM edits WHERE id > 1`)
		want := `9223372036854775807|tab` + "\t" + ` "quoted" ü \N|-7|0.1|t|2026-01-02 03:04:05.000006|\x00ff|1.50|x`
		if got != want {
			t.Fatalf("got  %s\nwant %s", got, want)
		}
		if n := ask[int](t, d, `SELECT num_nulls("Te""xt", small, ratio, flag, event_time, raw, doc, list) FROM edits WHERE id = 1`); n != 8 {
			t.Fatalf("%d of 8 nulls", n)
		}
		types := ask[string](t, d, `SELECT string_agg(format_type(atttypid, atttypmod) || CASE WHEN attnotnull THEN '!' ELSE '' END, ',' ORDER BY attnum) FROM pg_attribute WHERE attrelid = 'edits'::regclass AND attnum > 0`)
		if types != "bigint!,text,integer,double precision,boolean,timestamp with time zone,bytea,jsonb,jsonb" {
			t.Fatalf("types %s", types)
		}
	})
	t.Run("ATableOfOtherTypesGetsWhatFitsAndRefusesTheRest", func(t *testing.T) {
		d := database{server, server.NewDatabase()}
		d.exec(t, `CREATE TABLE edits (id numeric(20,0), "Te""xt" varchar(30), small smallint, ratio numeric, flag text, event_time timestamp,
			raw bytea, doc json, list text, more int DEFAULT 5)`)
		w := mustClaim(t, d.open(t, "q", func(o *Options) { wideOptions(o); o.OnRejected = sink.RejectDeadLetter }))
		if got := w.rejected(t, wide(t)); got != nil {
			t.Fatalf("refused %v", got)
		}
		got := ask[string](t, d, `SELECT concat_ws('|', id, small, ratio, flag, event_time, doc->>'a', list, more) FROM edits WHERE id > 1`)
		if want := `9223372036854775807|-7|0.1|true|2026-01-02 03:04:05.000006|1.50|[{"key": "x"}]|5`; got != want {
			t.Fatalf("got  %s\nwant %s", got, want)
		}
		bad := rowsOf(t, wideSchema, `{"id": 2, "Te\"xt": "123456789012345678901234567890 too long"}`, `{"id": 3, "small": 40000}`, `{"id": 4, "doc": "{"}`, `{"id": 5}`)
		if got := w.rejected(t, bad); !slices.Equal(got, []string{"0 22001", "1 22003", "2 22P02"}) {
			t.Fatalf("refused %v", got)
		}
	})
	for name, c := range map[string]struct{ ddl, want string }{
		"AColumnIsMissing":        {`CREATE TABLE edits (id bigint)`, `column "note" (text) is missing`},
		"AColumnIsOfAnotherType":  {`CREATE TABLE edits (id boolean, note text)`, `column "id" is boolean, the rows have bigint`},
		"AColumnMoreIsNeeded":     {`CREATE TABLE edits (id bigint, note text, who int NOT NULL)`, `column "who" is NOT NULL without a default`},
		"AColumnIsGenerated":      {`CREATE TABLE edits (id bigint, note text GENERATED ALWAYS AS ('x') STORED)`, `column "note" is generated`},
		"AnUpsertHasNoIndex":      {`CREATE TABLE edits (id bigint, note text)`, `no unique index on (id)`},
		"AnUpsertHasAPartialOne":  {`CREATE TABLE edits (id bigint, note text); CREATE UNIQUE INDEX ON edits (id) WHERE note > ''`, `no unique index on (id)`},
		"AnUpsertHasAnotherIndex": {`CREATE TABLE edits (id bigint, note text, UNIQUE (id, note))`, `no unique index on (id)`},
	} {
		t.Run(name, func(t *testing.T) {
			d := database{server, server.NewDatabase()}
			d.exec(t, c.ddl)
			_, err := claim(d.open(t, "q", func(o *Options) {
				if strings.HasPrefix(name, "AnUpsert") {
					o.Upsert, o.Keys = true, []string{"id"}
				}
			}))
			if !failure.Is(err, failure.SchemaConflict) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v", err)
			}
			if ask[*string](t, d, "SELECT to_regclass('weir_markers')::text") != nil {
				t.Fatal("a table that was refused was claimed")
			}
		})
	}
}

var exactSchema = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64},
	{Name: "price", Type: &arrow.Decimal128Type{Precision: 9, Scale: 2}, Nullable: true},
	{Name: "exact", Type: &arrow.Decimal128Type{Precision: 38, Scale: 18}, Nullable: true},
	{Name: "ratio", Type: arrow.PrimitiveTypes.Float32, Nullable: true},
	{Name: "day", Type: arrow.FixedWidthTypes.Date32, Nullable: true},
	{Name: "local", Type: batch.LocalTimestamp, Nullable: true},
}, nil)

func TestDecimalsFloatsAndDatesAreExactAndNeverRoundedByTheDatabase(t *testing.T) {
	server := catalogtest.StartPostgres(t)
	exact := func(o *Options) { o.Arrow = exactSchema }
	rows := func() arrow.RecordBatch {
		return rowsOf(t, exactSchema,
			`{"id": 1, "price": "19.90", "exact": "12345678901234567890.123456789012345678", "ratio": 0.1, "day": "2024-02-29", "local": "2024-02-29T12:00:00.5"}`,
			`{"id": 2, "price": "-0.05", "exact": "-0.000000000000000001", "ratio": -3.4028235e38, "day": "1969-12-31", "local": "1969-12-31T23:59:59.999999"}`,
			`{"id": 3, "price": "0.00", "exact": "-99999999999999999999.999999999999999999"}`)
	}
	for name, ddl := range map[string]string{
		"made":   "",
		"direct": `CREATE TABLE edits (id bigint, price numeric(20,4), exact numeric, ratio real, day date, local timestamp)`,
		"cast":   `CREATE TABLE edits (id bigint, price text, exact numeric, ratio double precision, day date, local timestamp)`,
	} {
		d := database{server, server.NewDatabase()}
		if ddl != "" {
			d.exec(t, ddl)
		}
		s := d.open(t, "q", exact)
		w, err := claim(s)
		if name == "cast" {
			if !failure.Is(err, failure.SchemaConflict) || !strings.Contains(err.Error(), `column "price" is text, the rows have numeric(9,2)`) {
				t.Errorf("decimals in a text: %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := w.put(t, rows()); err != nil {
			t.Fatal(err)
		}
		got := ask[string](t, d, `SELECT string_agg(concat_ws('|', price = CASE id WHEN 1 THEN 19.90 WHEN 2 THEN -0.05 ELSE 0 END, exact, ratio, day, local), ' ' ORDER BY id) FROM edits`)
		want := `t|12345678901234567890.123456789012345678|0.1|2024-02-29|2024-02-29 12:00:00.5 ` +
			`t|-0.000000000000000001|-3.4028235e+38|1969-12-31|1969-12-31 23:59:59.999999 t|-99999999999999999999.999999999999999999`
		if got != want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, want)
		}
		var back []arrow.RecordBatch
		err = w.s.RebuildScan(t.Context(), w.cur, []string{"id", "price", "exact", "ratio", "day", "local"}, "local", marker.MinTime, func(rec arrow.RecordBatch) error {
			back = append(back, rec)
			return nil
		})
		if err != nil || len(back) != 1 || !array.RecordEqual(back[0], rows()) {
			t.Errorf("%s: read back %v: %v", name, err, back)
		}
	}
	for typ, want := range map[string]string{"numeric(9,1)": "would round", "numeric(10,4)": "would round", "double precision": "is double precision"} {
		d := database{server, server.NewDatabase()}
		d.exec(t, fmt.Sprintf(`CREATE TABLE edits (id bigint, price %s, exact numeric, ratio real, day date, local timestamp)`, typ))
		if _, err := claim(d.open(t, "q", exact)); !failure.Is(err, failure.SchemaConflict) || !strings.Contains(err.Error(), `column "price"`) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", typ, err)
		}
	}
}

var versionSchema = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
	{Name: "version", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
	{Name: "note", Type: arrow.BinaryTypes.String, Nullable: true},
}, nil)

func versions(t *testing.T, rows ...string) arrow.RecordBatch {
	t.Helper()
	return rowsOf(t, versionSchema, rows...)
}

func TestUpsertsKeepTheLastRowOfEachKey(t *testing.T) {
	server := catalogtest.StartPostgres(t)
	upsert := func(order ...string) func(*Options) {
		return func(o *Options) {
			o.Arrow, o.Upsert, o.Keys, o.OrderBy, o.OnRejected = versionSchema, true, []string{"id"}, order, sink.RejectDeadLetter
		}
	}
	rows := func(t *testing.T, d database) string {
		return ask[string](t, d, "SELECT coalesce(string_agg(id || '=' || note, ' ' ORDER BY id), '') FROM edits")
	}
	t.Run("ByADeclaredOrderAlsoAgainstOlderRowsThatComeLater", func(t *testing.T) {
		d := database{server, server.NewDatabase()}
		w := mustClaim(t, d.open(t, "q", upsert("version")))
		w.rejected(t, versions(t, `{"id":1,"version":2,"note":"b"}`, `{"id":1,"version":1,"note":"a"}`, `{"id":2,"version":1,"note":"x"}`, `{"id":2,"note":"null comes first"}`))
		if got := rows(t, d); got != "1=b 2=x" {
			t.Fatal(got)
		}
		w.rejected(t, versions(t, `{"id":1,"version":1,"note":"late"}`, `{"id":2,"version":1,"note":"same"}`, `{"id":3,"note":"new"}`))
		if got := rows(t, d); got != "1=b 2=same 3=new" {
			t.Fatal(got)
		}
		w.rejected(t, versions(t, `{"id":3,"version":-5,"note":"newer"}`, `{"id":1,"version":3,"note":"c"}`))
		if got := rows(t, d); got != "1=c 2=same 3=newer" {
			t.Fatal(got)
		}
	})
	t.Run("ByTheOrderOfReadingWhereNoneIsDeclared", func(t *testing.T) {
		d := database{server, server.NewDatabase()}
		w := mustClaim(t, d.open(t, "q", upsert()))
		w.rejected(t, versions(t, `{"id":1,"version":2,"note":"b"}`, `{"id":1,"version":1,"note":"a"}`))
		if got := rows(t, d); got != "1=a" {
			t.Fatal(got)
		}
	})
	t.Run("AKeyWithoutAValueAndARowThatIsRefusedAreAsIfTheyWereNotThere", func(t *testing.T) {
		d := database{server, server.NewDatabase()}
		d.exec(t, "CREATE TABLE edits (id bigint UNIQUE, version bigint, note text CHECK (note <> 'bad'))")
		w := mustClaim(t, d.open(t, "q", upsert("version")))
		got := w.rejected(t, versions(t, `{"id":1,"version":1,"note":"a"}`, `{"version":1,"note":"no key"}`, `{"id":1,"version":2,"note":"bad"}`, `{"id":2,"version":1,"note":"x"}`))
		if !slices.Equal(got, []string{"1 23502", "2 23514"}) || rows(t, d) != "1=a 2=x" {
			t.Fatalf("refused %v, table %s", got, rows(t, d))
		}
	})
}

var changeSchema = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64},
	{Name: "version", Type: arrow.PrimitiveTypes.Int64},
	{Name: "note", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "gone", Type: arrow.FixedWidthTypes.Boolean},
}, nil)

func TestRowsThatDeleteTheirKey(t *testing.T) {
	server := catalogtest.StartPostgres(t)
	begin := func(t *testing.T, order ...string) (database, *writer, func(rows ...string) string) {
		d := database{server, server.NewDatabase()}
		d.exec(t, "CREATE TABLE edits (id bigint PRIMARY KEY, version bigint NOT NULL, note text NOT NULL CHECK (note <> 'bad'))")
		w := mustClaim(t, d.open(t, "q", func(o *Options) {
			o.Arrow, o.Upsert, o.Keys, o.OrderBy, o.DeleteColumn, o.OnRejected = changeSchema, true, []string{"id"}, order, "gone", sink.RejectDeadLetter
		}))
		return d, w, func(rows ...string) string {
			w.rejected(t, rowsOf(t, changeSchema, rows...))
			return ask[string](t, d, "SELECT coalesce(string_agg(id || '=' || note, ' ' ORDER BY id), '') FROM edits")
		}
	}
	t.Run("ByADeclaredOrder", func(t *testing.T) {
		_, _, put := begin(t, "version")
		for i, step := range []struct {
			rows []string
			want string
		}{
			{[]string{`{"id":1,"version":1,"note":"a","gone":false}`, `{"id":2,"version":1,"note":"b","gone":false}`, `{"id":3,"version":5,"note":"c","gone":false}`}, "1=a 2=b 3=c"},
			// A delete brings no more than its key and order; a late one changes nothing.
			{[]string{`{"id":1,"version":2,"gone":true}`, `{"id":3,"version":4,"gone":true}`, `{"id":9,"version":1,"gone":true}`}, "2=b 3=c"},
			// Within one batch the order decides, not the place.
			{[]string{`{"id":2,"version":4,"gone":true}`, `{"id":2,"version":3,"note":"late","gone":false}`, `{"id":1,"version":3,"note":"again","gone":false}`}, "1=again 3=c"},
			// What only a delete's other columns could be refused for is not looked at.
			{[]string{`{"id":3,"version":6,"note":"nul \u0000","gone":true}`, `{"id":1,"version":4,"note":"bad","gone":true}`}, ""},
		} {
			if got := put(step.rows...); got != step.want {
				t.Fatalf("step %d: %q, want %q", i, got, step.want)
			}
		}
	})
	t.Run("ByTheOrderOfReading", func(t *testing.T) {
		_, _, put := begin(t)
		if got := put(`{"id":1,"version":9,"note":"a","gone":false}`, `{"id":1,"version":1,"gone":true}`, `{"id":2,"version":1,"gone":true}`, `{"id":2,"version":1,"note":"b","gone":false}`); got != "2=b" {
			t.Fatal(got)
		}
	})
	t.Run("ARefusedRowIsAsIfItWereNotThereAndBringsNothingBack", func(t *testing.T) {
		d, w, _ := begin(t, "version")
		got := w.rejected(t, rowsOf(t, changeSchema, `{"id":1,"version":5,"gone":true}`, `{"id":2,"version":1,"note":"x","gone":false}`, `{"id":3,"version":1,"note":"bad","gone":false}`,
			`{"id":1,"version":4,"note":"older than its delete","gone":false}`, `{"id":2,"version":2,"note":"bad","gone":false}`))
		if rows := ask[string](t, d, "SELECT string_agg(id || '=' || note, ' ') FROM edits"); !slices.Equal(got, []string{"2 23514", "4 23514"}) || rows != "2=x" {
			t.Fatalf("refused %v, table %s", got, rows)
		}
	})
}

func TestRefusedRowsAreFoundAmongThousands(t *testing.T) {
	server := catalogtest.StartPostgres(t)
	d := database{server, server.NewDatabase()}
	d.exec(t, "CREATE TABLE edits (id bigint, note text CHECK (note <> 'bad'), UNIQUE (id) DEFERRABLE INITIALLY DEFERRED)", "INSERT INTO edits VALUES (4000, 'of another')")
	w := mustClaim(t, d.open(t, "q", func(o *Options) { o.OnRejected = sink.RejectDeadLetter }))
	ids := make([]int64, 5000)
	for i := range ids {
		ids[i] = int64(i)
	}
	ids[4999] = 17 // twice in one batch: the second one goes
	got := w.rejected(t, records(ids, []int64{0, 1001, 1002, 3333}))
	want := []string{"0 23514", "1001 22021", "1002 23514", "3333 22021", "4000 23505", "4999 23505"}
	if !slices.Equal(got, want) {
		t.Fatalf("refused %v, want %v", got, want)
	}
	if n := ask[int](t, d, "SELECT count(*) FROM edits"); n != 5000-6+1 {
		t.Fatalf("%d rows", n)
	}
	if tx := ask[int](t, d, "SELECT count(DISTINCT xmin::text) FROM edits WHERE note = 'fine'"); tx > 40 {
		t.Fatalf("the rows came in %d subtransactions: isolated one by one instead of by halves", tx)
	}
}

func TestNoMessageShowsThePassword(t *testing.T) {
	for _, url := range []string{"postgres://weir:sesame@127.0.0.1:1/x", "postgres://weir:sesame@127.0.0.1:notaport/x", "postgres://weir:sesame@[::1/x"} {
		s, err := New(Options{URL: url, Table: "t", Query: "q", Arrow: idSchema, Clock: clock.System{}, Limits: Limits{Tries: 1}})
		if err == nil {
			_, err = s.Facts(context.Background(), "q")
		}
		if err == nil || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%v", err)
		}
	}
}

func TestCasts(t *testing.T) {
	for in, want := range map[string]string{"numeric(10,2)": "numeric", "character varying(3)": "character varying", "timestamp(3) without time zone": "timestamp without time zone", "text": "text"} {
		if got := withoutLength(in); got != want {
			t.Errorf("%s: %s", in, got)
		}
	}
}

func TestRowsAreReadBackToRebuildState(t *testing.T) {
	server := catalogtest.StartPostgres(t)
	d := database{server, server.NewDatabase()}
	w := mustClaim(t, d.open(t, "q", func(o *Options) { o.Arrow = wideSchema }))
	if err := w.put(t, wide(t)); err != nil {
		t.Fatal(err)
	}
	var got []string
	read := func(from int64) {
		got = nil
		err := w.s.RebuildScan(context.Background(), w.cur, []string{"event_time", "id", "Te\"xt", "small", "ratio", "flag", "raw"}, "event_time", from, func(rec arrow.RecordBatch) error {
			defer rec.Release()
			for i := range int(rec.NumRows()) {
				var row []string
				for _, c := range rec.Columns() {
					row = append(row, c.ValueStr(i))
				}
				got = append(got, strings.Join(row, "|"))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(got)
	}
	read(marker.MinTime)
	first := `2026-01-02T03:04:05.000006Z|9223372036854775807|tab` + "\t" + ` "quoted" ü \N|-7|0.1|true|AP8=`
	if !slices.Equal(got, []string{"(null)|1|(null)|(null)|(null)|(null)|(null)", first}) {
		t.Fatalf("%q", got)
	}
	read(time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC).UnixMicro())
	if !slices.Equal(got, []string{first}) {
		t.Fatalf("%q", got)
	}
	if read(time.Date(2026, 1, 2, 3, 4, 5, 7000, time.UTC).UnixMicro()); got != nil {
		t.Fatalf("%q", got)
	}
}
