package app

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/pipeline"
	sourceiceberg "github.com/weirlake/weir/internal/source/iceberg"
)

// aggregated puts a query's sessions and windows behind its chain.
func aggregated(q pipeline.Query, inner operator.Transform) (operator.Transform, error) {
	if len(q.Aggregate) == 0 {
		return inner, nil
	}
	var stages []operator.Aggregation
	for _, a := range q.Aggregate {
		s := operator.Aggregation{Keys: a.Keys}
		if a.Session != nil {
			s.Session = &operator.SessionWindow{Gap: a.Session.Gap}
		}
		if a.Window != nil {
			s.Window = &operator.TimeWindow{Duration: a.Window.Duration, Slide: a.Window.Slide}
		}
		for _, c := range a.Columns {
			s.Columns = append(s.Columns, operator.Aggregate{Name: c.Name, Function: c.Function, Column: c.Column, Limit: c.Limit})
		}
		stages = append(stages, s)
	}
	t, err := operator.NewAggregated(inner, q.EventTime(), stages)
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", q.Name, err)
	}
	return t, nil
}

// tableRows is the chain of a query over a table that is parsed already.
func tableRows(q pipeline.Query) (operator.Transform, error) {
	schema, err := typedSchema(q)
	if err != nil {
		return nil, err
	}
	cfg := operator.TableRows{Schema: schema, TimeColumn: q.EventTime()}
	if q.Watermark != nil {
		cfg.Delay = q.Watermark.Delay
	}
	t, err := operator.NewTableRows(cfg)
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", q.Name, err)
	}
	return t, nil
}

// typedRows describes that table to its source; nil where it holds Kafka rows.
func typedRows(q pipeline.Query) (*sourceiceberg.Rows, error) {
	if !q.Typed() {
		return nil, nil //nolint:nilnil // a table of Kafka rows needs no description
	}
	schema, err := typedSchema(q)
	if err != nil {
		return nil, err
	}
	topic, partition, offset := q.Place()
	renamed := map[string]string{}
	for _, c := range q.Input() {
		if c.RenamedFrom != "" {
			renamed[c.Name] = c.RenamedFrom
		}
	}
	return &sourceiceberg.Rows{Schema: schema, Topic: topic, Partition: partition, Offset: offset, Renamed: renamed}, nil
}

// typedSchema is the shape of the rows that a query over typed columns reads.
func typedSchema(q pipeline.Query) (*arrow.Schema, error) {
	var fields []arrow.Field
	for _, c := range q.Input() {
		t := operator.ArrowType(c.Type)
		if t == nil {
			return nil, failure.New(failure.Config, "query %s: column %s of table %s is a %s, which this build does not read", q.Name, c.Name, q.From.Table.Name, c.Type)
		}
		fields = append(fields, arrow.Field{Name: c.Name, Type: t, Nullable: !c.Required})
	}
	return arrow.NewSchema(fields, nil), nil
}
