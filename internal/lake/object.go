package lake

import (
	"context"
	"io/fs"
	"strings"

	"github.com/weirlake/weir/internal/objstore/cloud"
	"github.com/weirlake/weir/internal/objstore/ranged"
	"github.com/weirlake/weir/internal/objstore/s3"
)

// s3Object is an object of S3.
type s3Object struct {
	c *s3.Client
	l s3.Location
}

func (o s3Object) open(ctx context.Context) (*ranged.Reader, error) { return o.c.OpenReader(ctx, o.l) }
func (o s3Object) read(ctx context.Context) ([]byte, error)         { return o.c.Read(ctx, o.l) }
func (o s3Object) write(ctx context.Context, data []byte) error     { return o.c.Write(ctx, o.l, data) }
func (o s3Object) create(ctx context.Context) objectWriter          { return o.c.NewWriter(ctx, o.l) }
func (o s3Object) remove(ctx context.Context) error                 { return o.c.Remove(ctx, o.l) }
func (o s3Object) kept() keptKey                                    { return keptKey{o.c, o.l.String()} }

func (o s3Object) stat(ctx context.Context) (fs.FileInfo, error) {
	i, err := o.c.Stat(ctx, o.l)
	if err != nil {
		return nil, err
	}
	return s3.FileInfo(o.l, i), nil
}

func (o s3Object) list(ctx context.Context, visit func(string, fs.FileInfo) error) error {
	return o.c.List(ctx, o.l, func(l s3.Location, i s3.Info) error {
		return visit(strings.TrimPrefix(l.Key, o.l.Key), s3.FileInfo(l, i))
	})
}

// cloudObject is an object of Google Cloud Storage or Azure.
type cloudObject struct {
	c *cloud.Client
	l cloud.Location
}

func (o cloudObject) open(ctx context.Context) (*ranged.Reader, error) {
	return o.c.OpenReader(ctx, o.l)
}
func (o cloudObject) read(ctx context.Context) ([]byte, error)     { return o.c.Read(ctx, o.l) }
func (o cloudObject) write(ctx context.Context, data []byte) error { return o.c.Write(ctx, o.l, data) }
func (o cloudObject) create(ctx context.Context) objectWriter      { return o.c.NewWriter(ctx, o.l) }
func (o cloudObject) remove(ctx context.Context) error             { return o.c.Remove(ctx, o.l) }
func (o cloudObject) kept() keptKey                                { return keptKey{o.c, o.l.String()} }

func (o cloudObject) stat(ctx context.Context) (fs.FileInfo, error) {
	i, err := o.c.Stat(ctx, o.l)
	if err != nil {
		return nil, err
	}
	return cloud.FileInfo(o.l, i), nil
}

func (o cloudObject) list(ctx context.Context, visit func(string, fs.FileInfo) error) error {
	return o.c.List(ctx, o.l, func(l cloud.Location, i cloud.Info) error {
		return visit(strings.TrimPrefix(l.Key, o.l.Key), cloud.FileInfo(l, i))
	})
}
