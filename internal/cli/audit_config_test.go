package cli

import (
	"testing"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/broker"
	"github.com/weirlake/weir/internal/pipeline"
)

const shop = `name: shop
catalog: {type: sql, name: weir, uri: "sqlite:./catalog.db"}
warehouse: ./warehouse
checkpointLocation: ./checkpoints
kafka: {bootstrapServers: "localhost:9092"}
queries:
  - name: bronze
    from: {kafka: {topics: [orders]}}
    to: {iceberg: {table: bronze.orders}}
  - name: silver
    from: {table: {name: bronze.orders}}
    parse: &parse
      format: json
      columns:
        - {name: id, path: $.id, type: string, required: true}
        - {name: at, path: $.at, type: timestamptz, required: true}
        - {name: part, source: partition, type: int}
        - {name: place, source: offset, type: long}
    watermark: {column: at, delay: 1h}
    dropDuplicatesWithinWatermark: [id]
    deadLetter: {table: silver.orders_dead}
    to: {iceberg: {table: silver.orders}}
  - name: copies
    from: {table: {name: bronze.orders}}
    parse: *parse
    deadLetter: {table: silver.copies_dead}
    to: {iceberg: {table: silver.copies}}
`

func TestTheAuditOfAPipelineTakesItsOwnNamesOfColumns(t *testing.T) {
	p, faults := pipeline.LoadBytes("shop.yaml", t.TempDir(), []byte(shop), nil)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	cfg, err := auditConfig(p, broker.Config{BootstrapServers: []string{"localhost:9092"}})
	if err != nil || len(cfg.Tables) != 3 {
		t.Fatalf("%v, %+v", err, cfg.Tables)
	}
	if got, want := cfg.Tables[1].Columns, (audit.Columns{Partition: "part", Offset: "place", EventID: "id"}); got != want || cfg.Tables[1].NoEventID {
		t.Errorf("silver: %+v, want %+v", got, want)
	}
	if c := cfg.Tables[2]; c.Columns.EventID != "" || !c.NoEventID {
		t.Errorf("copies: %+v", c)
	}
}
