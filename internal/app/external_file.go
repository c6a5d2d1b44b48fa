package app

import (
	"context"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"

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
	o := sinkfile.Options{
		Name: f.Target(), Query: q.Name, Store: store, Shape: shape, Format: f.Format, Gzip: f.Compression == pipeline.CompressionGzip,
		FileBytes: int64(f.MaxFileSize), Clock: a.opts.Clock,
	}
	if s, ok := store.(*s3.Store); ok {
		o.Probe = s.Probe
	}
	return sinkfile.New(o)
}
