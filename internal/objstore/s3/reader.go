package s3

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"time"

	"github.com/weirlake/weir/internal/objstore/ranged"
)

// Reader is an open object, read by ranges.
type Reader = ranged.Reader

// OpenReader opens an object for reading by ranges: with one request, that
// brings its end. The error wraps fs.ErrNotExist where there is none.
func (c *Client) OpenReader(ctx context.Context, at Location) (*Reader, error) {
	o, err := c.get(ctx, at.Bucket, at.Key, fmt.Sprintf("bytes=-%d", ranged.TailBytes), "")
	if codeOf(err) == "InvalidRange" { // an empty object has no last byte
		o, err = c.get(ctx, at.Bucket, at.Key, "", "")
	}
	if err != nil {
		return nil, named(err, "open", at)
	}
	return ranged.New(ranged.Object{
		Name: at.String(), Size: o.size, Data: o.data, First: o.first, Info: FileInfo(at, Info{Size: o.size}),
		Fetch: func(from, end int64) ([]byte, error) {
			p, err := c.get(ctx, at.Bucket, at.Key, fmt.Sprintf("bytes=%d-%d", from, end-1), o.etag)
			if err != nil {
				return nil, err
			}
			if p.first != from || int64(len(p.data)) != end-from {
				return nil, fmt.Errorf("the store answered bytes %d to %d with %d bytes from %d", from, end, len(p.data), p.first)
			}
			return p.data, nil
		},
		Classify: func(err error) error { return named(err, "read", at) },
	}), nil
}

// FileInfo dresses what a store says of an object as the file system's.
func FileInfo(at Location, i Info) fs.FileInfo { return fileInfo{path.Base(at.Key), i} }

type fileInfo struct {
	name string
	i    Info
}

func (f fileInfo) Name() string       { return f.name }
func (f fileInfo) Size() int64        { return f.i.Size }
func (f fileInfo) Mode() fs.FileMode  { return 0o644 }
func (f fileInfo) ModTime() time.Time { return f.i.Modified }
func (f fileInfo) IsDir() bool        { return false }
func (f fileInfo) Sys() any           { return nil }
