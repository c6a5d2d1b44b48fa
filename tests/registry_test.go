package tests

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/lake/catalogtest"
)

const registryFile = `name: lab
catalog: {type: sql, name: weir, uri: "sqlite:%[1]s/catalog.db"}
warehouse: "%[1]s/warehouse"
checkpointLocation: "%[1]s/checkpoints"
kafka:
  bootstrapServers: [%[2]q]
queries:
  - name: bronze
    from:
      kafka: {topics: [edits], startingOffsets: earliest}
    to:
      iceberg: {table: bronze.events}
  - name: silver
    from:
      table: {name: bronze.events, maxOffsetsPerTrigger: 60}
    parse:
      format: %[3]s
      schemaRegistry: {url: "http://%[4]s/apis/ccompat/v7"}
      columns:
        - {name: event_id, path: $.id, type: string, required: true}
        - {name: user_name, path: $.user.name, type: string, required: true}
        - {name: big, path: $.big, type: long, required: true}
        - {name: at, path: $.at, type: timestamptz, required: true}
        - {name: note, path: $.note, type: string}
        - {name: user, path: $.user, type: json}
        - {name: kafka_partition, source: partition, type: int}
        - {name: kafka_offset, source: offset, type: long}
    watermark: {column: at, delay: 10m, maxFutureSkew: 100h}
    dropDuplicatesWithinWatermark: [event_id]
    deadLetter: {table: silver.dead}
    to:
      iceberg: {table: silver.edits}
status: {listen: none}
`

// What Confluent's own serializers write, in two versions of a schema, lands in
// silver once each, through a kill between the two commits of a batch; a value
// without a schema's id and one with an unknown id end in the dead-letter table
// as they came.
func TestValuesOfASchemaRegistryLandOnceEach(t *testing.T) {
	if os.Getenv("WEIR_REGISTRY") == "" {
		t.Skip("starts a real schema registry: run by `make registry` (WEIR_REGISTRY=1)")
	}
	serializers := filepath.Join(repo(t), ".cache", "venv-registry", "bin", "python")
	if _, err := os.Stat(serializers); err != nil {
		t.Skipf("%s is missing: run scripts/venv.sh registry", serializers)
	}
	python(t)
	registry := catalogtest.StartSchemaRegistry(t)
	for _, format := range []string{"avro", "protobuf", "jsonSchema"} {
		t.Run(format, func(t *testing.T) {
			l := &lab{t: t, dir: t.TempDir(), partitions: 2}
			l.startBroker(0)
			l.file = filepath.Join(l.dir, "pipeline.yaml")
			if err := os.WriteFile(l.file, fmt.Appendf(nil, registryFile, l.dir, l.broker.Bootstrap(), format, registry.Addr()), 0o644); err != nil {
				t.Fatal(err)
			}
			produce := func(first, count, version int) {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				cmd := exec.CommandContext(ctx, serializers, filepath.Join(repo(t), "tests", "readers", "produce_registry.py"),
					l.broker.Bootstrap(), "http://"+registry.Addr()+"/apis/ccompat/v7", format, labTopic, strconv.Itoa(first), strconv.Itoa(count), strconv.Itoa(version))
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("produce: %v\n%s", err, tail(string(out)))
				}
			}
			produce(0, 150, 1)
			bad := []*kgo.Record{
				{Topic: labTopic, Value: []byte(`{"id":"plain"}`)},
				{Topic: labTopic, Partition: 1, Value: []byte{0, 0, 1, 0, 0, 9, 9}},
			}
			if err := l.client.ProduceSync(t.Context(), bad...).FirstErr(); err != nil {
				t.Fatal(err)
			}
			l.crash("silver/commit.side:1")
			produce(150, 50, 2)
			l.run(exitOK)
			for table, a := range l.audit(exitOK) {
				if !a.Exact {
					t.Errorf("audit: %s is not exact: %+v", table, a)
				}
			}

			rows := l.dump(labSilver)
			if len(rows) != 200 {
				t.Fatalf("%d rows in silver, want 200; dead letters: %v", len(rows), l.dump(labDead)[:3])
			}
			seen := map[string]row{}
			for _, r := range rows {
				seen[r.text("event_id")] = r
			}
			start := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
			for n := range 200 {
				r := seen[fmt.Sprintf("e%d", n)]
				if r == nil {
					t.Fatalf("e%d is missing", n)
				}
				name := fmt.Sprintf("u%d", n%7)
				if r.text("user_name") != name || r.int("big") != int64(n)*1e12 || r.int("at") != start.Add(time.Duration(n)*time.Second).UnixMicro() ||
					r.text("user") != fmt.Sprintf(`{"name":%q}`, name) {
					t.Errorf("e%d: %v", n, r)
				}
				if want := fmt.Sprintf("note %d", n); n >= 150 && r.text("note") != want {
					t.Errorf("e%d: note %v", n, r["note"])
				}
			}
			dead := map[string]string{}
			for _, r := range l.dump(labDead) {
				dead[r.text("reason")] = string(r.bytes(t, "value"))
			}
			if len(dead) != 2 || dead["not_framed"] != string(bad[0].Value) || dead["unknown_schema"] != string(bad[1].Value) {
				t.Errorf("dead letters: %q", dead)
			}
		})
	}
}
