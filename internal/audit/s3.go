package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go/logging"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/objstore/cloud"
)

// The audit reads S3 by itself: what writes the tables is not asked how to
// read them.
const (
	// s3BlockBytes is the piece that is fetched at once, s3BlocksMax how many of
	// a file are kept.
	s3BlockBytes = 4 << 20
	s3BlocksMax  = 8
	// s3TriesMax bounds how often one request is sent, and how often a body that
	// broke off is asked for again.
	s3TriesMax = 6
	// s3Region is signed for where an endpoint of one's own needs none.
	s3Region = "us-east-1"
)

// S3 is how a bucket is read. The zero value is AWS by the default chain.
type S3 struct {
	// Bucket limits the settings to one bucket; empty is every other one.
	Bucket                                       string
	Endpoint, Region, CAFile                     string
	PathStyle                                    bool
	AccessKeyID, SecretAccessKey, SessionToken   string
	AssumeRoleARN, ExternalID, AssumeSessionName string
}

// Format implements fmt.Formatter: no verb shows a key.
func (s S3) Format(f fmt.State, _ rune) { _, _ = fmt.Fprintf(f, "S3(%q)", s.Bucket) }

// Stores reads files on S3, on the other clouds, and local ones.
type Stores struct {
	// Clouds reads gs:// and abfss://; nil takes the default credentials.
	Clouds *cloud.Stores

	local   LocalStore
	configs map[string]S3

	mu      sync.Mutex
	clients map[string]*s3.Client
}

// NewStores takes the settings of buckets; a bucket that none is for is on AWS.
func NewStores(configs ...S3) *Stores {
	s := &Stores{configs: map[string]S3{}, clients: map[string]*s3.Client{}}
	for _, c := range configs {
		s.configs[c.Bucket] = c
	}
	return s
}

// Open implements Store.
func (s *Stores) Open(ctx context.Context, location string) (File, error) {
	if cloud.IsLocation(location) {
		return s.openCloud(ctx, location)
	}
	bucket, key, ok := s3Location(location)
	if !ok {
		return s.local.Open(ctx, location)
	}
	client, err := s.client(ctx, bucket)
	if err != nil {
		return nil, err
	}
	head, err := client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &bucket, Key: &key})
	if err != nil {
		return nil, s3Error(err, location)
	}
	return &s3File{
		ctx: ctx, client: client, bucket: bucket, key: key, location: location,
		size: aws.ToInt64(head.ContentLength), etag: head.ETag, blocks: map[int64][]byte{},
	}, nil
}

// openCloud opens a file on Google Cloud Storage or Azure. There is no SDK in the
// program for them: the client that carries bytes is the one that the stores have.
func (s *Stores) openCloud(ctx context.Context, location string) (File, error) {
	at, err := cloud.ParseLocation(location)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	if s.Clouds == nil {
		s.Clouds, err = cloud.NewStores()
	}
	clouds := s.Clouds
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	c, err := clouds.Client(ctx, at)
	if err != nil {
		return nil, err
	}
	return c.OpenReader(ctx, at)
}

func s3Location(location string) (bucket, key string, ok bool) {
	for _, scheme := range []string{"s3://", "s3a://", "s3n://"} {
		if rest, found := strings.CutPrefix(location, scheme); found {
			bucket, key, ok = strings.Cut(rest, "/")
			return bucket, key, ok && bucket != "" && key != ""
		}
	}
	return "", "", false
}

func (s *Stores) client(ctx context.Context, bucket string) (*s3.Client, error) {
	cfg, ok := s.configs[bucket]
	if !ok {
		cfg = s.configs[""]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.clients[cfg.Bucket]; ok {
		return c, nil
	}
	c, err := cfg.open(context.WithoutCancel(ctx))
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "store of bucket %s", bucket)
	}
	s.clients[cfg.Bucket] = c
	return c, nil
}

// config is the SDK's configuration: region, credentials, authorities.
func (s S3) config(ctx context.Context) (aws.Config, error) {
	options := []func(*config.LoadOptions) error{config.WithLogger(logging.Nop{}), config.WithRetryMaxAttempts(s3TriesMax)}
	if s.Region != "" {
		options = append(options, config.WithRegion(s.Region))
	}
	if s.AccessKeyID != "" {
		options = append(options, config.WithCredentialsProvider(
			credentials.NewStaticCredentialsProvider(s.AccessKeyID, s.SecretAccessKey, s.SessionToken)))
	}
	if s.CAFile != "" {
		f, err := os.Open(s.CAFile)
		if err != nil {
			return aws.Config{}, err
		}
		defer f.Close()
		options = append(options, config.WithCustomCABundle(f))
	}
	loaded, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return aws.Config{}, err
	}
	if loaded.Region == "" {
		loaded.Region = s3Region
	}
	if s.AssumeRoleARN != "" {
		loaded.Credentials = aws.NewCredentialsCache(stscreds.NewAssumeRoleProvider(sts.NewFromConfig(loaded), s.AssumeRoleARN,
			func(o *stscreds.AssumeRoleOptions) {
				if o.RoleSessionName = s.AssumeSessionName; o.RoleSessionName == "" {
					o.RoleSessionName = "weir-audit"
				}
				if s.ExternalID != "" {
					o.ExternalID = &s.ExternalID
				}
			}))
	}
	return loaded, nil
}

func (s S3) open(ctx context.Context) (*s3.Client, error) {
	loaded, err := s.config(ctx)
	if err != nil {
		return nil, err
	}
	return s3.NewFromConfig(loaded, func(o *s3.Options) {
		o.UsePathStyle = s.PathStyle || o.BaseEndpoint != nil
		if s.Endpoint != "" {
			o.BaseEndpoint, o.UsePathStyle = &s.Endpoint, s.PathStyle
		}
		o.DisableLogOutputChecksumValidationSkipped = true
	}), nil
}

// s3Error says what is wrong; a missing object wraps os.ErrNotExist.
func s3Error(err error, location string) error {
	var re *awshttp.ResponseError
	if errors.As(err, &re) {
		switch {
		case re.HTTPStatusCode() == http.StatusNotFound && !strings.Contains(err.Error(), "NoSuchBucket"):
			return fmt.Errorf("%s: %w", location, os.ErrNotExist)
		case re.HTTPStatusCode() < http.StatusInternalServerError:
			return failure.Wrap(failure.Config, err, "read %s", location).WithHint("check bucket, region and credentials of the pipeline's stores, or the AWS_* variables")
		}
	}
	return failure.Wrap(failure.Unreachable, err, "read %s", location)
}

// s3File is an object, read in pieces.
type s3File struct {
	ctx      context.Context // io.ReaderAt has none
	client   *s3.Client
	bucket   string
	key      string
	location string
	size     int64
	etag     *string

	mu     sync.Mutex
	blocks map[int64][]byte
	order  []int64
}

func (f *s3File) Size() int64  { return f.size }
func (f *s3File) Close() error { return nil }

// ReadAt implements io.ReaderAt.
func (f *s3File) ReadAt(p []byte, off int64) (int, error) {
	n := 0
	for n < len(p) {
		at := off + int64(n)
		if at >= f.size {
			return n, io.EOF
		}
		start := at / s3BlockBytes * s3BlockBytes
		b, err := f.block(start)
		if err != nil {
			return n, err
		}
		n += copy(p[n:], b[at-start:])
	}
	return n, nil
}

func (f *s3File) block(start int64) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if b, ok := f.blocks[start]; ok {
		return b, nil
	}
	end := min(start+s3BlockBytes, f.size)
	var b []byte
	var err error
	for range s3TriesMax {
		if b, err = f.fetch(start, end); err == nil || f.ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return nil, s3Error(err, f.location)
	}
	if len(f.order) == s3BlocksMax {
		delete(f.blocks, f.order[0])
		f.order = f.order[1:]
	}
	f.blocks[start] = b
	f.order = append(f.order, start)
	return b, nil
}

// fetch reads [start, end) of the object that was opened, and of no other.
func (f *s3File) fetch(start, end int64) ([]byte, error) {
	out, err := f.client.GetObject(f.ctx, &s3.GetObjectInput{
		Bucket: &f.bucket, Key: &f.key, Range: aws.String(fmt.Sprintf("bytes=%d-%d", start, end-1)), IfMatch: f.etag,
	}, func(o *s3.Options) { o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired })
	if err != nil {
		return nil, err
	}
	defer out.Body.Close()
	b := make([]byte, end-start)
	if _, err := io.ReadFull(out.Body, b); err != nil {
		return nil, err
	}
	return b, nil
}
