package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/weirlake/weir/internal/clock"
)

const (
	// partBytesDefault is the size of a part, and so the most that an open file
	// holds back; what is smaller goes in one request.
	partBytesDefault = 8 << 20
	// partsInFlight bounds the parts that are being sent, over all files of a
	// client: with partBytesDefault, 64 MiB.
	partsInFlight = 8
	// partsMax is S3's own limit.
	partsMax = 10_000
	// abortTimeout bounds the clean-up after a failure.
	abortTimeout = 30 * time.Second
)

// upload is one multipart upload. Its object is not there before complete, and
// after an error its parts are given back.
type upload struct {
	c      *Client
	w      write
	ctx    context.Context
	cancel context.CancelFunc
	id     string
	wg     sync.WaitGroup

	mu    sync.Mutex
	parts []types.CompletedPart
	err   error
}

func (c *Client) newUpload(ctx context.Context, w write) *upload {
	w.data = nil
	u := &upload{c: c, w: w}
	u.ctx, u.cancel = context.WithCancel(ctx)
	return u
}

// sendAll is the whole upload of data that is there already.
func (u *upload) sendAll(data []byte) error {
	for part := range slices.Chunk(data, u.c.partBytes) {
		if err := u.part(part); err != nil {
			u.abort()
			return err
		}
	}
	return u.complete()
}

// part sends the next part in the background; data must not change any more.
func (u *upload) part(data []byte) error {
	if err := u.failed(); err != nil {
		return err
	}
	if u.id == "" {
		out, err := u.c.api.CreateMultipartUpload(u.ctx, &awss3.CreateMultipartUploadInput{
			Bucket: &u.w.bucket, Key: &u.w.key, ChecksumAlgorithm: types.ChecksumAlgorithmCrc32c,
			Metadata: map[string]string{nonceKey: u.w.nonce}, ServerSideEncryption: u.c.sse(), SSEKMSKeyId: u.c.kmsKey(),
		})
		if err != nil {
			return err
		}
		u.id = aws.ToString(out.UploadId)
	}
	n := len(u.parts) + 1
	if n > partsMax {
		return fmt.Errorf("more than %d parts of %d bytes", partsMax, u.c.partBytes)
	}
	select {
	case u.c.slots <- struct{}{}:
	case <-u.ctx.Done():
		return u.ctx.Err()
	}
	u.mu.Lock()
	u.parts = append(u.parts, types.CompletedPart{PartNumber: aws.Int32(int32(n)), ChecksumCRC32C: checksum(data)}) //nolint:gosec // partsMax
	u.mu.Unlock()
	u.wg.Go(func() {
		defer func() { <-u.c.slots }()
		u.send(n, data)
	})
	return nil
}

func (u *upload) send(n int, data []byte) {
	out, err := u.c.api.UploadPart(u.ctx, &awss3.UploadPartInput{
		Bucket: &u.w.bucket, Key: &u.w.key, UploadId: &u.id, PartNumber: aws.Int32(int32(n)), //nolint:gosec // partsMax
		Body: bytes.NewReader(data), ContentLength: aws.Int64(int64(len(data))), ChecksumCRC32C: checksum(data),
	})
	u.mu.Lock()
	defer u.mu.Unlock()
	if err != nil {
		if u.err == nil {
			u.err = err
		}
		u.cancel() // the others need not go on
		return
	}
	u.parts[n-1].ETag = out.ETag
	if out.ChecksumCRC32C == nil {
		u.parts[n-1].ChecksumCRC32C = nil // the store keeps none, and would not know it
	}
}

func (u *upload) failed() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.err
}

// complete makes the object out of the parts, or leaves nothing.
func (u *upload) complete() error {
	u.wg.Wait()
	err := u.failed()
	if err == nil {
		_, err = u.c.api.CompleteMultipartUpload(u.ctx, &awss3.CompleteMultipartUploadInput{
			Bucket: &u.w.bucket, Key: &u.w.key, UploadId: &u.id, IfNoneMatch: u.w.condition(),
			MultipartUpload: &types.CompletedMultipartUpload{Parts: u.parts},
		})
		// Where the answer was lost, the repeated request found no upload any
		// more: the object says whether it was ours.
		if err != nil && u.ctx.Err() == nil {
			if i, herr := u.c.head(u.ctx, u.w.bucket, u.w.key); herr == nil && i.nonce == u.w.nonce {
				err = nil
			}
		}
	}
	if err != nil {
		u.abort()
		return err
	}
	u.cancel()
	return nil
}

// abort gives the parts back. A part that arrives after the abort would stay, so
// those on their way are waited for.
func (u *upload) abort() {
	u.cancel()
	u.wg.Wait()
	if u.id == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(u.ctx), abortTimeout)
	defer cancel()
	// Nothing can be done about a failure; the bucket's lifecycle rule is for it.
	_, _ = u.c.api.AbortMultipartUpload(ctx, &awss3.AbortMultipartUploadInput{Bucket: &u.w.bucket, Key: &u.w.key, UploadId: &u.id})
}

// Writer writes one file of a table: nothing is there before Close has
// succeeded. It holds at most one part, and what is being sent. It is used by
// one goroutine.
type Writer struct {
	c      *Client
	at     Location
	ctx    context.Context
	buf    []byte
	up     *upload
	failed error
	closed bool
}

// NewWriter begins a file. Nothing is sent yet.
func (c *Client) NewWriter(ctx context.Context, at Location) *Writer {
	return &Writer{c: c, at: at, ctx: ctx}
}

// Write implements io.Writer. After a failed write the file can only be given
// up.
func (w *Writer) Write(b []byte) (int, error) {
	if w.closed {
		return 0, fs.ErrClosed
	}
	if w.failed != nil {
		return 0, w.failed
	}
	written := 0
	for len(b) > 0 {
		if len(w.buf) == w.c.partBytes {
			if err := w.flush(); err != nil {
				w.failed = named(err, "write", w.at)
				return written, w.failed
			}
		}
		n := min(len(b), w.c.partBytes-len(w.buf))
		w.buf = append(w.buf, b[:n]...)
		written += n
		b = b[n:]
	}
	return written, nil
}

// ReadFrom implements io.ReaderFrom.
func (w *Writer) ReadFrom(r io.Reader) (int64, error) { return io.Copy(struct{ io.Writer }{w}, r) }

// flush sends what is held back as a part.
func (w *Writer) flush() error {
	if w.up == nil {
		w.up = w.c.newUpload(w.ctx, write{bucket: w.at.Bucket, key: w.at.Key, nonce: clock.Nonce()})
	}
	part := w.buf
	w.buf = make([]byte, 0, w.c.partBytes)
	return w.up.part(part)
}

// Close makes the file durable under its name, or leaves nothing.
func (w *Writer) Close() error {
	if w.closed {
		return fs.ErrClosed
	}
	if w.failed != nil {
		w.Abort()
		return w.failed
	}
	if w.up == nil {
		w.closed = true
		err := w.c.put(w.ctx, write{bucket: w.at.Bucket, key: w.at.Key, data: w.buf, nonce: clock.Nonce()})
		w.buf = nil
		return named(err, "write", w.at)
	}
	if err := w.flush(); err != nil {
		w.Abort()
		return named(err, "write", w.at)
	}
	w.closed, w.buf = true, nil
	err := w.up.complete()
	if isNoObject(err) {
		// The upload, not the file: aborted by somebody's lifecycle rule.
		err = errors.Join(errors.New("the multipart upload is gone"), err)
	}
	return classify(err, "write", w.at.String())
}

// Abort gives the file up. It is harmless after Close.
func (w *Writer) Abort() {
	if w.closed {
		return
	}
	w.closed, w.buf = true, nil
	if w.up != nil {
		w.up.abort()
	}
}
