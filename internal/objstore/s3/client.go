package s3

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/weirlake/weir/internal/clock"
)

const (
	// nonceKey is the user metadata that says which call wrote an object.
	nonceKey = "weir-nonce"
	// readAttemptsMax bounds how often a body that broke off is asked for again;
	// readTimeout is how long one body may take.
	readAttemptsMax = 5
	readTimeout     = 5 * time.Minute
	// objectBytesMax bounds what is read whole.
	objectBytesMax = 2 << 30
)

// object is an object that was read, whole or in part.
type object struct {
	data  []byte
	nonce string
	etag  string
	size  int64 // of the whole object
	first int64 // where data begins in it
}

// write is one object on its way.
type write struct {
	bucket, key string
	data        []byte
	nonce       string
	// once makes it conditional on there being nothing.
	once bool
}

func (w write) condition() *string {
	if w.once {
		return aws.String("*")
	}
	return nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum is the value of x-amz-checksum-crc32c.
func checksum(data []byte) *string {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], crc32.Checksum(data, castagnoli))
	return aws.String(base64.StdEncoding.EncodeToString(b[:]))
}

// put sends the object in one request, or in parts where it is large. The
// error is the SDK's own.
func (c *Client) put(ctx context.Context, w write) error {
	if len(w.data) > c.partBytes {
		u := c.newUpload(ctx, w)
		return u.sendAll(w.data)
	}
	_, err := c.api.PutObject(ctx, &awss3.PutObjectInput{
		Bucket: &w.bucket, Key: &w.key, Body: bytes.NewReader(w.data), ContentLength: aws.Int64(int64(len(w.data))),
		ChecksumCRC32C: checksum(w.data), IfNoneMatch: w.condition(), Metadata: map[string]string{nonceKey: w.nonce},
		ServerSideEncryption: c.sse(), SSEKMSKeyId: c.kmsKey(),
	})
	return err
}

// get reads an object, whole where rng is empty. etag, if given, must still be
// its own. A body that breaks off is asked for again.
func (c *Client) get(ctx context.Context, bucket, key, rng, etag string) (object, error) {
	for attempt := 1; ; attempt++ {
		o, broken, err := c.getOnce(ctx, bucket, key, rng, etag)
		if err == nil || !broken || attempt == readAttemptsMax || ctx.Err() != nil {
			return o, err
		}
	}
}

func (c *Client) getOnce(ctx context.Context, bucket, key, rng, etag string) (_ object, broken bool, err error) {
	attempt, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	in := &awss3.GetObjectInput{Bucket: &bucket, Key: &key}
	validate := aws.ResponseChecksumValidationWhenSupported
	if rng != "" {
		in.Range = &rng
		validate = aws.ResponseChecksumValidationWhenRequired // the checksum is the whole object's
	}
	if etag != "" {
		in.IfMatch = &etag
	}
	out, err := c.api.GetObject(attempt, in, func(o *awss3.Options) { o.ResponseChecksumValidation = validate })
	if err != nil {
		return object{}, false, err
	}
	defer out.Body.Close()
	o := object{nonce: out.Metadata[nonceKey], etag: aws.ToString(out.ETag), size: aws.ToInt64(out.ContentLength)}
	if r := aws.ToString(out.ContentRange); r != "" {
		var last int64
		if _, err := fmt.Sscanf(r, "bytes %d-%d/%d", &o.first, &last, &o.size); err != nil {
			return object{}, false, fmt.Errorf("the store answered with the range %q", r)
		}
	}
	want := aws.ToInt64(out.ContentLength)
	if want > objectBytesMax {
		return object{}, false, fmt.Errorf("%d bytes are more than %d", want, objectBytesMax)
	}
	buf := bytes.NewBuffer(make([]byte, 0, want+bytes.MinRead)) // or it would grow for nothing
	n, err := io.Copy(buf, out.Body)
	if err == nil && n != want {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return object{}, true, fmt.Errorf("the object's body broke off after %d of %d bytes: %w", n, want, err)
	}
	o.data = buf.Bytes()
	return o, false, nil
}

// Info is what a store says of an object without reading it.
type Info struct {
	Size     int64
	Modified time.Time
	nonce    string
}

func (c *Client) head(ctx context.Context, bucket, key string) (Info, error) {
	out, err := c.api.HeadObject(ctx, &awss3.HeadObjectInput{Bucket: &bucket, Key: &key})
	if err != nil {
		return Info{}, err
	}
	return Info{Size: aws.ToInt64(out.ContentLength), Modified: aws.ToTime(out.LastModified), nonce: out.Metadata[nonceKey]}, nil
}

// list calls visit with every object whose key begins with prefix, page by page.
func (c *Client) list(ctx context.Context, bucket, prefix string, visit func(key string, o types.Object) error) error {
	pages := awss3.NewListObjectsV2Paginator(c.api, &awss3.ListObjectsV2Input{Bucket: &bucket, Prefix: &prefix}, func(o *awss3.ListObjectsV2PaginatorOptions) {
		o.StopOnDuplicateToken = true
		if c.cfg.PageKeys > 0 {
			o.Limit = int32(c.cfg.PageKeys) //nolint:gosec // a page
		}
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, o := range page.Contents {
			if err := visit(aws.ToString(o.Key), o); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Client) remove(ctx context.Context, bucket, key string) error {
	_, err := c.api.DeleteObject(ctx, &awss3.DeleteObjectInput{Bucket: &bucket, Key: &key})
	if isNoObject(err) {
		return nil
	}
	return err
}

// Read reads an object whole. The error wraps objstore.ErrNotExist and
// fs.ErrNotExist where there is none.
func (c *Client) Read(ctx context.Context, l Location) ([]byte, error) {
	o, err := c.get(ctx, l.Bucket, l.Key, "", "")
	return o.data, named(err, "read", l)
}

// Write replaces an object as a whole; it is durable when Write returns.
func (c *Client) Write(ctx context.Context, l Location, data []byte) error {
	return named(c.put(ctx, write{bucket: l.Bucket, key: l.Key, data: data, nonce: clock.Nonce()}), "write", l)
}

// Stat says how large and how old an object is, or that there is none.
func (c *Client) Stat(ctx context.Context, l Location) (Info, error) {
	i, err := c.head(ctx, l.Bucket, l.Key)
	return i, named(err, "look at", l)
}

// Remove deletes an object; a missing one is no error.
func (c *Client) Remove(ctx context.Context, l Location) error {
	return named(c.remove(ctx, l.Bucket, l.Key), "delete", l)
}

// List calls visit with every object below a prefix ("a/b" is not below "a/bc"),
// in the store's order.
func (c *Client) List(ctx context.Context, below Location, visit func(Location, Info) error) error {
	prefix := below.Key
	if prefix != "" {
		prefix += "/"
	}
	var stopped error
	err := c.list(ctx, below.Bucket, prefix, func(key string, o types.Object) error {
		stopped = visit(Location{below.Bucket, key}, Info{Size: aws.ToInt64(o.Size), Modified: aws.ToTime(o.LastModified)})
		return stopped
	})
	if stopped != nil {
		return stopped
	}
	return named(err, "list", below)
}

// named turns the SDK's error into a classified one, or into "does not exist".
func named(err error, doing string, l Location) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errNotExist):
		return err
	case isNoObject(err):
		return fmt.Errorf("%s: %w", l, errNotExist)
	}
	return classify(err, doing, l.String())
}
