package file

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/google/uuid"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/external"
	"github.com/weirlake/weir/internal/sink/rowjson"
)

// Defaults and bounds.
const (
	DefaultFileBytes = 64 << 20
	// triesMax bounds the asking of a store that answers with errors.
	triesMax   = 8
	backoffMin = 200 * time.Millisecond
	backoffMax = 10 * time.Second
	// movesMax bounds how often the log is read again because it had moved on.
	movesMax = 16
)

// Options make a Sink.
type Options struct {
	// Name is the sink's name in logs and in the checkpoint; the folder's location
	// where empty.
	Name, Query string
	// Store is the folder.
	Store objstore.Store
	Shape *arrow.Schema
	// Format is ndjson, csv or parquet; Gzip is for the first two.
	Format string
	Gzip   bool
	// FileBytes is the size at which a file ends; of a Parquet file the size of
	// its rows in memory.
	FileBytes int64
	Clock     clock.Clock
	// Probe, if set, refuses a store that does not create once; it is asked before
	// a claim.
	Probe func(ctx context.Context) error
}

// Sink drops the files of one query into a folder.
type Sink struct {
	opts    Options
	log     *log
	claimed bool
}

var _ sink.Sink = (*Sink)(nil)

// New makes a sink; nothing is read or written before Facts or Claim.
func New(o Options) (*Sink, error) {
	if o.Store == nil || o.Clock == nil || o.Shape == nil || o.Query == "" {
		return nil, errors.New("a file sink needs a query, a folder, the rows' shape and a clock")
	}
	if o.Format == "" {
		o.Format = NDJSON
	}
	if o.FileBytes <= 0 {
		o.FileBytes = DefaultFileBytes
	}
	if o.Name == "" {
		o.Name = o.Store.Location()
	}
	switch o.Format {
	case Parquet:
		if o.Gzip {
			return nil, failure.New(failure.Config, "query %s: gzip is for ndjson and csv; Parquet files are compressed inside", o.Query)
		}
	case NDJSON, CSV:
		if _, err := rowjson.New(o.Shape, nil, nil); err != nil {
			return nil, err
		}
	default:
		return nil, failure.New(failure.Config, "query %s: %q is not a format of files: want ndjson, csv or parquet", o.Query, o.Format)
	}
	return &Sink{opts: o, log: &log{store: o.Store, query: o.Query}}, nil
}

// Name implements sink.Sink.
func (s *Sink) Name() string { return s.opts.Name }

// Close implements sink.Sink; there is nothing to close.
func (s *Sink) Close() error { return nil }

func (s *Sink) who() string { return "folder " + s.opts.Store.Location() }

// folder is the identity of a folder: one that was removed and made again is
// another one.
type folder struct {
	Format int    `json:"format"`
	ID     string `json:"id"`
}

// identity reads the folder's, empty where it has none yet.
func (s *Sink) identity(ctx context.Context) (string, error) {
	data, err := s.opts.Store.Get(ctx, folderKey)
	if errors.Is(err, objstore.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", s.log.unreachable(err)
	}
	f := folder{}
	if err := json.Unmarshal(data, &f); err != nil || f.Format != 1 || f.ID == "" {
		return "", failure.New(failure.Checkpoint, "%s: %s is not readable", s.who(), folderKey).WithHint("restore it")
	}
	return f.ID, nil
}

// Facts implements sink.Sink.
func (s *Sink) Facts(ctx context.Context, queryName string) (sink.Facts, error) {
	out := sink.Facts{Others: map[string]*marker.Marker{}}
	if queryName != s.opts.Query {
		return out, failure.New(failure.Config, "%s was opened for query %s, not %s", s.who(), s.opts.Query, queryName)
	}
	id, err := s.identity(ctx)
	if err != nil {
		return out, err
	}
	e, err := s.log.head(ctx)
	if err != nil {
		return out, err
	}
	out.Exists, out.Identity = id != "", id
	if e == nil {
		out.Rewound, err = s.leftovers(ctx)
		return out, err
	}
	m := *e.Marker
	out.Marker, out.HeadID, out.HeadSequence, out.Handle = &m, e.Seq, e.Seq, e
	if id == "" {
		out.Rewound = "it holds the query's log and has lost " + folderKey
	}
	return out, nil
}

// leftovers finds files of the query in a folder without its log: what they hold
// is not known any more, and to begin again would deliver it twice.
func (s *Sink) leftovers(ctx context.Context) (string, error) {
	list, err := s.opts.Store.List(ctx, s.opts.Query+"-")
	if err != nil {
		return "", s.log.unreachable(err)
	}
	own := regexp.MustCompile(`^` + regexp.QuoteMeta(s.opts.Query) + `-[0-9]{10,}-[0-9a-f]{8}(-[0-9]{4,}|\.manifest)\.`)
	for _, i := range list {
		if own.MatchString(i.Key) {
			return fmt.Sprintf("it holds files of the query (%s) and no log that says what was delivered; move them to another folder to begin anew", i.Key), nil
		}
	}
	return "", nil
}

// Claim implements sink.Sink: an entry of its own, after the one that want was
// read from. A batch that an earlier run committed becomes wholly visible first.
func (s *Sink) Claim(ctx context.Context, want sink.Facts, m *marker.Marker) (sink.Permit, bool, error) {
	if s.opts.Probe != nil {
		if err := s.opts.Probe(ctx); err != nil {
			return sink.Permit{}, false, err
		}
	}
	head, _ := want.Handle.(*entry)
	base := int64(0)
	if head != nil {
		base = head.Seq
		if err := external.ClaimFollows(s.who(), head.Marker, m); err != nil {
			return sink.Permit{}, false, err
		}
		if err := s.publish(ctx, head, nil); err != nil {
			return sink.Permit{}, false, err
		}
	}
	if want.Identity == "" {
		data, err := json.Marshal(folder{Format: 1, ID: uuid.NewString()})
		if err != nil {
			return sink.Permit{}, false, fmt.Errorf("encode %s: %w", folderKey, err)
		}
		if err := s.again(ctx, func() error { _, _, err := s.opts.Store.CreateOnce(ctx, folderKey, data); return err }); err != nil {
			return sink.Permit{}, false, err
		}
	}
	written := *m
	written.BaseSequence = base
	if _, err := s.append(ctx, base, newEntry(kindClaim, &written)); errors.Is(err, errMoved) {
		return sink.Permit{}, true, nil
	} else if err != nil {
		return sink.Permit{}, false, fmt.Errorf("claim %s for query %s: %w", s.who(), m.QueryName, err)
	}
	s.claimed = true
	s.sweep(ctx, m.BatchID)
	return sink.NewPermit(s, m.Epoch), false, nil
}

// sweep removes what was staged for batches that are committed: nothing refers
// to it. Staged files of later batches may be in a staged manifest.
func (s *Sink) sweep(ctx context.Context, committed int64) {
	list, err := s.opts.Store.List(ctx, s.log.staged())
	if err != nil {
		return // another time
	}
	for _, i := range list {
		name := strings.TrimPrefix(i.Key, s.log.staged())
		if n, _, ok := strings.Cut(name, "-"); ok && n <= number(committed) && committed >= 0 && len(n) == len(number(committed)) {
			_ = s.opts.Store.Delete(ctx, i.Key)
		}
	}
}

// number writes a batch id so that names sort.
func number(batchID int64) string { return fmt.Sprintf("%010d", batchID) }

// append writes an entry, asking again where the answer is an error.
func (s *Sink) append(ctx context.Context, base int64, e *entry) (found bool, err error) {
	err = s.again(ctx, func() error {
		found, err = s.log.append(ctx, base, e)
		return err
	})
	return found, err
}

// again asks a store up to triesMax times while it cannot be reached.
func (s *Sink) again(ctx context.Context, f func() error) error {
	pause := backoffMin
	for n := 1; ; n++ {
		err := f()
		if err == nil || errors.Is(err, errMoved) {
			return err
		}
		err = s.log.unreachable(err)
		if n == triesMax || !failure.Is(err, failure.Unreachable) || s.opts.Clock.Sleep(ctx, pause) != nil {
			return err
		}
		pause = min(2*pause, backoffMax)
	}
}

// RebuildScan implements sink.Sink: consumers remove what they have read, so
// files are no memory of what was delivered.
func (s *Sink) RebuildScan(context.Context, *marker.Marker, []string, string, int64, func(arrow.RecordBatch) error) error {
	return failure.New(failure.Checkpoint, "query %s: the state of its operators is lost, or was made by another transform, and dropped files are not read back to rebuild it", s.opts.Query).
		WithHint("restore the checkpoint folder and the transform; or let a table be the sink, from which state can be rebuilt, and drop files from a query without dedup over it")
}
