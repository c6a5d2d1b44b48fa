package app

import (
	"context"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/objstore/s3"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/sink"
	sinkfile "github.com/weirlake/weir/internal/sink/file"
)

func (a *App) fileSink(ctx context.Context, q pipeline.Query, f *pipeline.FileSink, shape *arrow.Schema) (sink.Sink, error) {
	store, err := a.openCheckpoint(ctx, f.Path)
	if err != nil {
		return nil, fmt.Errorf("query %s: folder %s: %w", q.Name, f.Path, err)
	}
	return FileSink(store, q.Name, shape, f, a.opts.Clock)
}

// FileSink makes the sink over a folder.
func FileSink(store objstore.Store, query string, shape *arrow.Schema, f *pipeline.FileSink, clk clock.Clock) (sink.Sink, error) {
	o := sinkfile.Options{
		Name: f.Target(), Query: query, Store: store, Shape: shape, Format: f.Format, Gzip: f.Compression == pipeline.CompressionGzip,
		FileBytes: int64(f.MaxFileSize), Clock: clk,
	}
	if s, ok := store.(*s3.Store); ok {
		o.Probe = s.Probe
	}
	return sinkfile.New(o)
}
