package pipeline

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/event"
)

// testEnv is the environment of the tests.
func testEnv(name string) (string, bool) {
	v, ok := map[string]string{
		"SASL_USER":  "alice",
		"PARTITIONS": "12",
		"EMPTY":      "",
		"PASSWORD":   "sesame",
		"EVIL":       "x\nwarehouse: /etc\n- [a, {b: c}]",
	}[name]
	return v, ok
}

func TestFaultListingsAreComplete(t *testing.T) {
	files, err := filepath.Glob("testdata/faults/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no files", err)
	}
	for _, file := range files {
		p, faults := Load(file, testEnv)
		if p != nil || len(faults) == 0 {
			t.Errorf("%s: no faults", file)
			continue
		}
		var got strings.Builder
		for i, f := range faults {
			if i > 0 && (f.Line < faults[i-1].Line || f.Line == faults[i-1].Line && f.Column < faults[i-1].Column) {
				t.Errorf("%s: not in order: %s", file, f)
			}
			// The folder of the checkout is not part of the listing.
			line := strings.ReplaceAll(f.String(), filepath.Dir(mustAbs(t, file)), "DIR")
			got.WriteString(line + "\n")
		}
		golden := strings.TrimSuffix(file, ".yaml") + ".golden"
		if *update {
			if err := os.WriteFile(golden, []byte(got.String()), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if got.String() != string(want) {
			t.Errorf("%s: faults are\n%s\nwant\n%s", file, got.String(), want)
		}
	}
}

func mustAbs(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}

// load loads a file that has to be valid.
func load(t *testing.T, file string) *Pipeline {
	t.Helper()
	p, faults := Load(file, testEnv)
	for _, f := range faults {
		t.Error(f)
	}
	if p == nil {
		t.FailNow()
	}
	return p
}

func TestEveryKeyReachesItsField(t *testing.T) {
	p := load(t, "testdata/valid/everything.yaml")
	dir := mustAbs(t, "testdata/valid")
	check := func(what string, got, want any) {
		t.Helper()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %v, want %v", what, got, want)
		}
	}
	check("sqlite path", p.Catalog.SQLitePath(), mustAbs(t, "testdata/data/catalog.db"))
	check("warehouse", p.Warehouse, filepath.Join(dir, "data/warehouse"))
	check("brokers", p.Kafka.BootstrapServers, []string{"broker-1:9092", "broker-2:9092"})
	check("user", p.Kafka.SASL.Username.Reveal(), "alice")
	check("password", p.Kafka.SASL.Password.Reveal(), "hunter2")
	check("topic", p.Kafka.Topics[0], Topic{Name: "a", Partitions: 12, ReplicationFactor: 3,
		Config: map[string]string{"retention.ms": "604800000", "cleanup.policy": "delete"}})
	in := p.Ingest[0]
	check("sse", in.SSE, SSE{URL: "http://127.0.0.1:1/stream", UserAgent: "me/1", Since: "2026-05-01T00:00:00Z",
		MaxEventBytes: 1 << 20, IdleTimeout: 15 * time.Second})
	check("canary", *in.Contract.Canary, Canary{Path: "$.meta.domain", Equals: "canary"})
	check("delivery", in.Delivery+" "+in.TransactionalID, "exactly-once tx-one")
	low, high, byTime, silver := p.Queries[0], p.Queries[1], p.Queries[2], p.Queries[3]
	check("starting offsets", low.From.Kafka.StartingOffsets, StartingOffsets{Specific, map[string]map[int32]int64{"a": {0: 23, 1: -2}}})
	check("no limit", low.From.Kafka.MaxOffsetsPerTrigger, int64(0))
	check("checkpoint", low.CheckpointLocation, filepath.Join(dir, "elsewhere/low"))
	check("partitioning", low.To.Iceberg.PartitionBy, []PartitionField{{"day", "timestamp", 0}, {"bucket", "key", 16}, {"identity", "topic", 0}})
	check("alias", high.To, low.To)
	check("partitions", high.From.Kafka.Partitions, Partitions{{4, 4}, {6, 7}})
	check("starting timestamp", *high.From.Kafka.StartingTimestamp, Millis(1777593600000))
	check("by timestamp", byTime.From.Kafka.StartingOffsetsByTimestamp, map[string]map[int32]int64{"c": {0: 1700000000000, 1: 1777593600000}})
	check("trigger", silver.Trigger.ProcessingTime, 90*time.Second)
	check("columns", silver.Parse.Columns[0], Column{Name: "id", Path: "$.id", Type: TypeString, Required: true})
	check("watermark", *silver.Watermark, Watermark{Column: "at", Delay: 10 * time.Minute, MaxFutureSkew: time.Hour, IdleTimeout: DefaultIdlePartition})
	check("dedup", silver.DropDuplicatesWithinWatermark, []string{"id"})
	check("ops", p.Ops, Ops{ProgressTable: "ops.stream_progress", FlushInterval: 500 * time.Millisecond, JSONL: filepath.Join(dir, "progress.jsonl")})
	check("status", p.Status.Listen, ListenNone)

	var warned []string
	for _, w := range p.Warnings {
		warned = append(warned, w.Key)
	}
	check("warnings", warned, []string{"kafka.tls.insecureSkipVerify", "queries[0].from.kafka.failOnDataLoss", "queries[0].onLostCheckpoint"})
}

func TestExamplesLoadWithDefaultsAlone(t *testing.T) {
	for _, kind := range Examples() {
		p, faults := LoadBytes(kind+".yaml", t.TempDir(), []byte(Example(kind)), nil)
		for _, f := range faults {
			t.Error(f)
		}
		if p != nil && len(p.Warnings) > 0 {
			t.Errorf("%s: %v", kind, p.Warnings)
		}
	}
	if Example("other") != "" {
		t.Error("an example of a kind that does not exist")
	}
}

func TestWikimediaExampleHasTheTablesThatScriptsRelyOn(t *testing.T) {
	data := t.TempDir()
	p, faults := LoadBytes("wikimedia.yaml", "/elsewhere", []byte(Example(ExampleWikimedia)), func(name string) (string, bool) {
		v, ok := map[string]string{"WEIR_DATA": data, "WEIR_SSE_URL": "http://127.0.0.1:9/x", "WEIR_LISTEN": "none", "WEIR_TRIGGER": "2 seconds"}[name]
		return v, ok
	})
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	if p.Catalog.SQLitePath() != filepath.Join(data, "catalog.db") || p.Kafka.Embedded.DataDir != filepath.Join(data, "kafka") ||
		p.Ingest[0].Position != filepath.Join(data, "ingest/recentchange.json") || p.Warehouse != filepath.Join(data, "warehouse") {
		t.Error("the folder is not laid out as promised")
	}
	silver := p.Queries[1]
	var columns []string
	for _, c := range silver.Parse.Columns {
		columns = append(columns, c.Name+" "+c.Type)
	}
	const want = "event_id string, event_time timestamptz, type string, wiki string, title string, namespace int, user string, bot boolean, minor boolean, comment string, length_old long, length_new long, revision_old long, revision_new long, kafka_partition int, kafka_offset long, processed_at timestamptz"
	if got := strings.Join(columns, ", "); got != want {
		t.Errorf("silver.edits is %s", got)
	}
	if silver.CheckpointLocation != filepath.Join(data, "checkpoints/silver") || silver.Trigger.ProcessingTime != 2*time.Second {
		t.Error("silver's checkpoint or trigger is wrong")
	}
}

func TestAnInterpolatedValueNeverChangesTheStructure(t *testing.T) {
	p, faults := LoadBytes("x.yaml", "/d", []byte(`
name: x
catalog: {uri: "sqlite:x.db"}
warehouse: w
checkpointLocation: c
kafka: {bootstrapServers: [h:1], clientId: "${EVIL}"}
queries:
  - name: q
    from: {kafka: {topics: [t]}}
    parse: {columns: [{name: a, path: $.a, type: string}]}
    deadLetter: {table: a.dead}
    filter: ${EVIL}
    to: {iceberg: {table: a.b, properties: {note: "${EVIL}"}}}
`), testEnv)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	evil, _ := testEnv("EVIL")
	if p.Warehouse != "/d/w" || p.Kafka.ClientID != evil || p.Queries[0].Filter != evil || p.Queries[0].To.Iceberg.Properties["note"] != evil {
		t.Errorf("%+v", p)
	}
}

func TestDollarStandsForItselfExceptBeforeABrace(t *testing.T) {
	l := &loader{env: testEnv, dir: "testdata/valid"}
	for raw, want := range map[string]string{
		"$.meta.id": "$.meta.id", "a$": "a$", "$$": "$", "$${X}": "${X}", "$$${SASL_USER}": "$alice",
		"${SASL_USER}-${PARTITIONS}": "alice-12", "${EMPTY:-d}": "d", "${EMPTY}": "", "${NOPE:-}": "", "${NOPE:-a:-b}": "a:-b",
		"${file:secret.txt}": "hunter2",
	} {
		s, errs := l.interpolate(raw)
		if len(errs) > 0 || s.text != want {
			t.Errorf("%s is %q, %v; want %q", raw, s.text, errs, want)
		}
	}
	for _, raw := range []string{"${NOPE}", "${", "${}", "${a b}", "${1}", "${file:}", "${file:none}", "${file:.}", "${A:-${B}}"} {
		if _, errs := l.interpolate(raw); len(errs) == 0 {
			t.Errorf("%s is accepted", raw)
		}
	}
	if _, errs := l.interpolate("${NOPE}${ALSO_NOT}"); len(errs) != 2 {
		t.Errorf("two missing variables give %v", errs)
	}
}

func TestADateAloneBecomesATimeAndEachStreamHasAFolderForItsPosition(t *testing.T) {
	p, faults := LoadBytes("x.yaml", "/d", []byte(`
name: x
catalog: {uri: "sqlite:x.db"}
warehouse: w
checkpointLocation: c
kafka: {bootstrapServers: [h:1]}
ingest:
  - {name: a, sse: {url: "http://h/", since: 2026-05-01}, topic: a}
  - {name: b, sse: {url: "http://h/", since: 1777593600000}, topic: b}
`), nil)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	a, b := p.Ingest[0], p.Ingest[1]
	if a.SSE.Since != "2026-05-01T00:00:00Z" || b.SSE.Since != "1777593600000" {
		t.Error(a.SSE.Since, b.SSE.Since)
	}
	if a.Position != "/d/c/ingest/a/position.json" || filepath.Dir(a.Position) == filepath.Dir(b.Position) {
		t.Error(a.Position, b.Position)
	}
}

func TestDurationsAreReadInGoAndSparkForm(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"500ms": 500 * time.Millisecond, "10 minutes": 10 * time.Minute, "1h30m": 90 * time.Minute, "1 hour 30 seconds": time.Hour + 30*time.Second,
		"0": 0, "0s": 0, "1.5h": 90 * time.Minute, "2 days": 48 * time.Hour, "1 WEEK": 168 * time.Hour, "3 us": 3 * time.Microsecond,
	} {
		if d, err := ParseDuration(text); err != nil || d != want {
			t.Errorf("%q is %v, %v", text, d, err)
		}
	}
	for _, text := range []string{"", "5", "-5s", "5 months", "5 s 7", "s", "1e3s", "999999999 weeks"} {
		if d, err := ParseDuration(text); err == nil {
			t.Errorf("%q is accepted as %v", text, d)
		}
	}
}

func TestAcceptedJSONPathsAreThoseOfTheParser(t *testing.T) {
	for _, path := range []string{"$.a", "$.meta.id", "$['a b'].c", `$["x"][0]`, "$.a[12]", "$.$schema", "$.log_params", "$.größe"} {
		if err := checkJSONPath(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if err := event.CheckPath(path); err != nil {
			t.Errorf("%s is accepted here and refused by the parser: %v", path, err)
		}
	}
	for _, path := range []string{"", "a", "$", "$.", "$..a", "$.a[*]", "$.a[-1]", "$['']", "$.a b", "$.a[1", "$.a?(@.b)"} {
		if checkJSONPath(path) == nil {
			t.Errorf("%q is accepted", path)
		}
	}
}

func TestHostAndPortInAListInsideBracesIsOneText(t *testing.T) {
	const rest = "\nname: x\ncatalog: {uri: \"sqlite:x.db\"}\nwarehouse: w\ncheckpointLocation: c\n" +
		"queries: [{name: q, from: {kafka: {topics: [t]}}, to: {iceberg: {table: a.b}}}]\n"
	p, faults := LoadBytes("x.yaml", "/", []byte("kafka: {bootstrapServers: [localhost:9092, h:1, \"i:2\"], clientId: c}"+rest), nil)
	if len(faults) > 0 || !reflect.DeepEqual(p.Kafka.BootstrapServers, []string{"localhost:9092", "h:1", "i:2"}) {
		t.Error(p, faults)
	}
	if _, faults = LoadBytes("x.yaml", "/", []byte("kafka: {bootstrapServers: [h: 1]}"+rest), nil); len(faults) == 0 {
		t.Error("a mapping is taken for a text")
	}
}

func TestFaultAtNamesTheLineOfAKeyOrOfItsParent(t *testing.T) {
	p := load(t, "testdata/valid/everything.yaml")
	if f := p.FaultAt("kafka.topics[0].name", "no such topic"); f.Line != 12 || !strings.HasSuffix(f.String(), "no such topic") {
		t.Error(f)
	}
	if f := p.FaultAt("ops.nothing.there", "x"); f.Line != p.FaultAt("ops", "x").Line {
		t.Error(f)
	}
	if f := p.FaultAt("nowhere", "x"); f.Line != 2 && f.Line != 1 {
		t.Error(f)
	}
}

func TestAMissingFileAFolderAndAHugeFileAreFaults(t *testing.T) {
	dir := t.TempDir()
	big := filepath.Join(dir, "big.yaml")
	if err := os.WriteFile(big, make([]byte, fileBytesMax+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "none.yaml"), dir, big} {
		if p, faults := Load(path, testEnv); p != nil || len(faults) != 1 {
			t.Errorf("%s: %v", path, faults)
		}
	}
}

func TestAliasesThatMultiplyAreRefused(t *testing.T) {
	var b strings.Builder
	b.WriteString("a0: &a0 {x: y}\n")
	for i := 1; i < 30; i++ {
		b.WriteString("a" + string(rune('0'+i%10)) + ": &b {x: *b}\n")
	}
	b.WriteString("name: &n *n\n")
	if p, faults := LoadBytes("x.yaml", "/", []byte(b.String()), testEnv); p != nil || len(faults) == 0 {
		t.Error("accepted")
	}
}

func FuzzLoadNeverPanics(f *testing.F) {
	for _, kind := range Examples() {
		f.Add(Example(kind))
	}
	files, _ := filepath.Glob("testdata/*/*.yaml")
	for _, file := range files {
		if b, err := os.ReadFile(file); err == nil {
			f.Add(string(b))
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, faults := LoadBytes("f.yaml", "testdata/valid", []byte(text), testEnv)
		if (p == nil) != (len(faults) > 0) {
			t.Errorf("pipeline %v with faults %v", p != nil, faults)
		}
	})
}

func TestAStatusPageForOthersNeedsATokenInTheFile(t *testing.T) {
	const head = "name: x\ncatalog: {uri: 'sqlite:/d/c.db'}\nwarehouse: /d/w\ncheckpointLocation: /d/c\nqueries: []\n"
	for text, want := range map[string]string{
		"status: {listen: '127.0.0.1:8080'}":                                 "",
		"status: {listen: '[::1]:8080'}":                                     "",
		"status: {listen: 'localhost:0'}":                                    "",
		"status: {listen: none}":                                             "",
		"status: {listen: '0.0.0.0:8080'}":                                   "status.token",
		"status: {listen: ':8080'}":                                          "status.token",
		"status: {listen: '0.0.0.0:8080', token: short}":                     "status.token",
		"status: {listen: '0.0.0.0:8080', token: '0123456789abcdef0123456'}": "",
	} {
		_, faults := LoadBytes("p.yaml", "/d", []byte(head+text+"\n"), func(string) (string, bool) { return "", false })
		got := ""
		for _, f := range faults {
			if strings.Contains(f.Error(), "status.token") {
				got = "status.token"
			}
		}
		if got != want {
			t.Errorf("%s: faults %v, want %q", text, faults, want)
		}
	}
}

func TestAFileThatIsNotThereIsSaidInPlainWords(t *testing.T) {
	for path, want := range map[string]string{
		filepath.Join(t.TempDir(), "none.yaml"): "there is no such file; weir init writes a commented example",
		t.TempDir():                             "is a folder",
	} {
		_, faults := Load(path, func(string) (string, bool) { return "", false })
		if len(faults) != 1 || !strings.Contains(faults[0].Message, want) || strings.Contains(faults[0].Message, "stat ") {
			t.Errorf("%s: %v", path, faults)
		}
	}
}
