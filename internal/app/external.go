package app

import (
	"context"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/sink"
)

// externalSink makes the sink over a store outside. Each kind is a file of its
// own: what it needs of the pipeline, and the sink made of it.
func (a *App) externalSink(ctx context.Context, q pipeline.Query, shape *arrow.Schema) (sink.Sink, error) {
	key, e := q.To.External()
	switch e := e.(type) {
	case *pipeline.PostgresSink:
		return PostgresSink(*e, q.Name, shape, a.opts.Clock)
	case *pipeline.CassandraSink:
		return CassandraSink(*e, q.Name, shape, a.opts.Clock)
	case *pipeline.KafkaSink:
		return KafkaSink(*e, a.Kafka, q.Name, shape, a.opts.Clock)
	case *pipeline.HTTPSink:
		return a.httpSink(ctx, q, e, shape)
	case *pipeline.FileSink:
		return a.fileSink(ctx, q, e, shape)
	case *pipeline.ExecSink:
		return a.execSink(ctx, q, e, shape)
	}
	return nil, failure.New(failure.Config, "query %s: this build has no sink %s", q.Name, key)
}

// buildExternal makes the sinks of a query whose main one is outside: that, the
// dead-letter table, and the table of rejected rows.
func (a *App) buildExternal(ctx context.Context, q pipeline.Query, t operator.Transform) ([]engine.Output, error) {
	shapes := t.Outputs()
	main, err := a.externalSink(ctx, q, shapes[operator.Main])
	if err != nil {
		return nil, err
	}
	a.closers = append(a.closers, main.Close)
	outputs := []engine.Output{{Name: operator.Main, Sink: main}}
	if q.DeadLetter != nil {
		side, err := a.deadLetterSink(ctx, q, shapes[operator.DeadLetter])
		if err != nil {
			return nil, err
		}
		outputs = append(outputs, engine.Output{Name: operator.DeadLetter, Sink: side})
	}
	if table := q.RejectedTable(); table != "" {
		side, err := IcebergSink(a.Catalog, SinkSpec{Query: q.Name, Table: table, Side: true, Shape: sink.RejectedSchema, Clock: a.opts.Clock})
		if err != nil {
			return nil, err
		}
		outputs = append(outputs, engine.Output{Name: operator.Rejected, Sink: side})
	}
	return outputs, nil
}

// externalMarkerOf reads a store outside's marker of the query, nil where there
// is none.
func (a *App) externalMarkerOf(ctx context.Context, q pipeline.Query, s *QueryStatus) (*marker.Marker, error) {
	t, err := Transform(q)
	if err != nil {
		return nil, err
	}
	reader, err := a.externalSink(ctx, q, t.Outputs()[operator.Main])
	if err != nil {
		return nil, err
	}
	defer func() { _ = reader.Close() }()
	f, err := reader.Facts(ctx, q.Name)
	if err != nil {
		return nil, fmt.Errorf("read the marker in %s: %w", reader.Name(), err)
	}
	if f.Rewound != "" {
		s.Notes = append(s.Notes, "sink: "+f.Rewound)
	}
	if f.Unreadable && f.Begun != nil {
		s.Notes = append(s.Notes, fmt.Sprintf("batch %d was handed over and is not known to be done; it comes again", f.Begun.BatchID))
	}
	return f.Marker, nil
}

// acceptable refuses to accept the present contents of a store outside.
func acceptable(q pipeline.Query) error {
	_, e := q.To.External()
	if e == nil {
		return nil
	}
	return failure.New(failure.Config, "query %s writes to %s, whose marker comes and goes with its rows: there is nothing to accept", q.Name, e.Target()).
		WithHint("a plain start adopts what the store holds; or start over with: weir checkpoint reset, which repeats rows")
}
