package registry

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/sr"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/event"
	"github.com/weirlake/weir/internal/failure"
)

// Formats of a payload.
const (
	Avro       = "avro"
	Protobuf   = "protobuf"
	JSONSchema = "jsonSchema"
)

// Reasons of values that cannot be read.
const (
	// ReasonNotFramed is a value that does not begin with a schema's id.
	ReasonNotFramed event.Reason = "not_framed"
	// ReasonUnknownSchema is an id that the registry does not know.
	ReasonUnknownSchema event.Reason = "unknown_schema"
	// ReasonBadSchema is a schema of another format, or one that is not valid.
	ReasonBadSchema event.Reason = "bad_schema"
	// ReasonBadPayload is a payload that its schema does not describe.
	ReasonBadPayload event.Reason = "bad_payload"
)

const (
	// requestTimeout bounds one request, patience all attempts to look up a schema.
	requestTimeout = 10 * time.Second
	patience       = time.Minute
	firstPause     = 100 * time.Millisecond
	longestPause   = 5 * time.Second
	// maxReferences bounds the schemas that one schema refers to, in all.
	maxReferences = 1000
	// maxJSON bounds the text of one value, so that a few bytes cannot become
	// gigabytes.
	maxJSON = 64 << 20
)

// Config says where the registry is and what it is asked for.
type Config struct {
	// URLs are tried one after the other.
	URLs   []string
	Format string
	// Username and Password, or Token, or neither.
	Username, Password, Token string
	// TLS is nil for the system's roots.
	TLS   *tls.Config
	Clock clock.Clock
}

// Decoder turns values into JSON. It is safe for concurrent use.
type Decoder struct {
	client *sr.Client
	format string
	clock  clock.Clock
	url    string

	mu      sync.Mutex
	schemas map[int]*known
}

// known is a schema that was looked up: a reader of its payloads, or what is
// wrong with it.
type known struct {
	read func(dst, payload []byte) ([]byte, error)
	err  *event.Error
}

// New makes a decoder. It asks nothing yet. Errors are of class Config.
func New(c Config) (*Decoder, error) {
	d := &Decoder{format: c.Format, clock: c.Clock, schemas: map[int]*known{}}
	if d.clock == nil {
		d.clock = clock.System{}
	}
	switch c.Format {
	case Avro, Protobuf, JSONSchema:
	default:
		return nil, failure.New(failure.Config, "schema registry: %q is not a format", c.Format)
	}
	if len(c.URLs) == 0 {
		return nil, failure.New(failure.Config, "schema registry: no URL")
	}
	d.url = c.URLs[0]
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = c.TLS
	opts := []sr.ClientOpt{
		sr.URLs(c.URLs...), sr.UserAgent("weir"),
		sr.HTTPClient(&http.Client{Timeout: requestTimeout, Transport: transport}),
	}
	switch {
	case c.Token != "":
		opts = append(opts, sr.BearerToken(c.Token))
	case c.Username != "":
		opts = append(opts, sr.BasicAuth(c.Username, c.Password))
	}
	client, err := sr.NewClient(opts...)
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "schema registry")
	}
	d.client = client
	return d, nil
}

// Decode appends the JSON text of a value to dst. An *event.Error is a fault of
// the value; any other error is classified and not: the registry does not answer
// (Unreachable, after a minute of trying) or lets nobody in (Config).
func (d *Decoder) Decode(ctx context.Context, dst, value []byte) ([]byte, error) {
	id, payload, err := new(sr.ConfluentHeader).DecodeID(value)
	if err != nil {
		return dst, &event.Error{Reason: ReasonNotFramed, Detail: "the value does not begin with a zero byte and the id of a schema"}
	}
	s, err := d.schema(ctx, id)
	if err != nil {
		return dst, err
	}
	if s.err != nil {
		return dst, s.err
	}
	out, err := s.read(dst, payload)
	switch {
	case err != nil:
		return dst, &event.Error{Reason: ReasonBadPayload, Detail: fmt.Sprintf("schema %d: %v", id, err)}
	case len(out)-len(dst) > maxJSON:
		return dst, &event.Error{Reason: ReasonBadPayload, Detail: fmt.Sprintf("schema %d: more than %d MiB as JSON", id, maxJSON>>20)}
	}
	return out, nil
}

// Reach asks the registry for something small, to see that it answers and lets
// us in.
func (d *Decoder) Reach(ctx context.Context) error {
	if _, err := d.client.SupportedTypes(ctx); err != nil {
		return d.classify(err)
	}
	return nil
}

// schema looks a schema up, once. A registry that does not answer is asked again
// for a while.
func (d *Decoder) schema(ctx context.Context, id int) (*known, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s, ok := d.schemas[id]; ok {
		return s, nil
	}
	began := d.clock.Now()
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		s, err := d.lookUp(ctx, id)
		if err == nil {
			// An id that is unknown today may be known tomorrow.
			if s.err == nil || s.err.Reason != ReasonUnknownSchema {
				d.schemas[id] = s
			}
			return s, nil
		}
		if !failure.Is(err, failure.Unreachable) || d.clock.Now().Sub(began) > patience {
			return nil, err
		}
		if err := d.clock.Sleep(ctx, pause); err != nil {
			return nil, err
		}
	}
}

func (d *Decoder) lookUp(ctx context.Context, id int) (*known, error) {
	bad := func(reason event.Reason, format string, args ...any) (*known, error) {
		return &known{err: &event.Error{Reason: reason, Detail: fmt.Sprintf("schema %d: ", id) + fmt.Sprintf(format, args...)}}, nil
	}
	s, err := d.client.SchemaByID(ctx, id)
	if err != nil {
		if absent(err) {
			return bad(ReasonUnknownSchema, "the registry does not know it")
		}
		return nil, d.classify(err)
	}
	// Avro is what a registry means that names no type, and not every one names it
	// where it should: whether such a schema is of our format shows when it is read.
	if got := formatOf(s.Type); got != d.format && got != Avro {
		return bad(ReasonBadSchema, "it is of format %s, parse.format is %s", got, d.format)
	}
	var all []named
	if d.format != JSONSchema {
		if all, err = d.references(ctx, s, nil, map[string]bool{}); err != nil {
			if absent(err) {
				return bad(ReasonBadSchema, "a schema that it refers to is not in the registry")
			}
			return nil, d.classify(err)
		}
	}
	var read func(dst, payload []byte) ([]byte, error)
	switch d.format {
	case Avro:
		read, err = avroReader(s.Schema, all)
	case Protobuf:
		read, err = protobufReader(ctx, s.Schema, all)
	default:
		read = func(dst, payload []byte) ([]byte, error) { return append(dst, payload...), nil }
	}
	if err != nil {
		return bad(ReasonBadSchema, "%v", err)
	}
	return &known{read: read}, nil
}

// named is a schema under the name that others refer to it by: an Avro type, an
// import of a .proto file.
type named struct{ name, schema string }

// references are the schemas that s refers to, each after those that it refers
// to itself.
func (d *Decoder) references(ctx context.Context, s sr.Schema, all []named, seen map[string]bool) ([]named, error) {
	for _, r := range s.References {
		if seen[r.Name] {
			continue
		}
		if seen[r.Name] = true; len(seen) > maxReferences {
			return nil, fmt.Errorf("more than %d schemas are referred to", maxReferences)
		}
		got, err := d.client.SchemaByVersion(ctx, r.Subject, r.Version)
		if err != nil {
			return nil, err
		}
		if all, err = d.references(ctx, got.Schema, all, seen); err != nil {
			return nil, err
		}
		all = append(all, named{r.Name, got.Schema.Schema})
	}
	return all, nil
}

func formatOf(t sr.SchemaType) string {
	switch t {
	case sr.TypeAvro:
		return Avro
	case sr.TypeProtobuf:
		return Protobuf
	case sr.TypeJSON:
		return JSONSchema
	default:
		return t.String()
	}
}

// absent reports whether the registry answered that it has no such schema, in
// its own words: a 404 of another server is not that.
func absent(err error) bool {
	var r *sr.ResponseError
	return errors.As(err, &r) && sr.IsNotFoundError(r.ErrorCode)
}

// classify says what to do about an error of the registry.
func (d *Decoder) classify(err error) error {
	var r *sr.ResponseError
	var f *failure.Error
	switch {
	case errors.As(err, &f):
		return err
	case !errors.As(err, &r):
		var certificate *tls.CertificateVerificationError
		if errors.As(err, &certificate) {
			return failure.Wrap(failure.Config, err, "schema registry %s", d.url).WithHint("set schemaRegistry.tls.caFile to the authority that signed its certificate")
		}
		return failure.Wrap(failure.Unreachable, err, "schema registry %s", d.url)
	case r.StatusCode == http.StatusUnauthorized || r.StatusCode == http.StatusForbidden:
		return failure.New(failure.Config, "schema registry %s does not let us in (%d)", d.url, r.StatusCode).
			WithHint("set schemaRegistry.username and password, or token")
	case r.StatusCode == http.StatusTooManyRequests || r.StatusCode >= http.StatusInternalServerError:
		return failure.New(failure.Unreachable, "schema registry %s answered %d: %s", d.url, r.StatusCode, r.Message)
	default:
		return failure.New(failure.Config, "%s is not a schema registry: it answered %d", d.url, r.StatusCode).
			WithHint("schemaRegistry.url is the address before /schemas and /subjects")
	}
}
