package app

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/column"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/pipeline"
)

// firstPartitionField is where Iceberg numbers partition fields from.
const firstPartitionField = 1000

// icebergSchema is the table schema of rows of shape s, ids in column order.
func icebergSchema(s *arrow.Schema) (*iceberg.Schema, error) {
	out, err := table.ArrowSchemaToIcebergWithFreshIDs(s, false)
	if err != nil {
		return nil, fmt.Errorf("table schema from rows: %w", err)
	}
	return out, nil
}

// partitionSpec is the spec of a table from the terms of partitionBy.
func partitionSpec(name string, s *iceberg.Schema, terms []pipeline.PartitionField) (iceberg.PartitionSpec, error) {
	opts := make([]iceberg.PartitionOption, 0, len(terms))
	for i, t := range terms {
		transform, target, err := partitionTransform(t)
		if err != nil {
			return iceberg.PartitionSpec{}, failure.Wrap(failure.Config, err, "table %s: partitionBy", name)
		}
		if _, ok := s.FindFieldByName(t.Column); !ok {
			return iceberg.PartitionSpec{}, failure.New(failure.Config, "table %s: partitionBy names column %q, which the rows do not have", name, t.Column)
		}
		id := firstPartitionField + i
		opts = append(opts, iceberg.AddPartitionFieldByName(t.Column, target, transform, s, &id))
	}
	spec, err := iceberg.NewPartitionSpecOpts(opts...)
	if err != nil {
		return iceberg.PartitionSpec{}, failure.Wrap(failure.Config, err, "table %s: partitionBy", name)
	}
	return spec, nil
}

func partitionTransform(t pipeline.PartitionField) (iceberg.Transform, string, error) {
	switch t.Transform {
	case "", "identity":
		return iceberg.IdentityTransform{}, t.Column, nil
	case "day":
		return iceberg.DayTransform{}, t.Column + "_day", nil
	}
	return nil, "", fmt.Errorf("transform %q is not supported by this build: use day(column) or a column", t.Transform)
}

// evolutionOf is what the file says of the past of a query's columns; nil where
// it declares none, because the rows are Kafka's.
func evolutionOf(q pipeline.Query) *column.Evolution {
	if q.Parse == nil && !q.Typed() {
		return nil
	}
	return &column.Evolution{Renamed: q.Renamed(), Drop: q.To.DropColumns(), Keep: q.To.KeepColumns(), Fixed: q.FixedColumns()}
}
