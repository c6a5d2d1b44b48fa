package file

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore"
)

const (
	logFormat = 1
	// logKeep is how many entries stay below the newest one.
	logKeep = 8
	// readTries bounds how often the newest entry is looked for again because it
	// was removed between listing and reading.
	readTries = 8

	metaFolder = "_weir"
	folderKey  = metaFolder + "/folder.json"
)

// Kinds of entries.
const (
	kindClaim = "claim"
	kindBatch = "batch"
)

// entry is one file of the log.
type entry struct {
	Format int            `json:"format"`
	Seq    int64          `json:"seq"`
	Kind   string         `json:"kind"`
	Nonce  string         `json:"nonce"`
	Marker *marker.Marker `json:"marker"`
	// Files are those of the batch, none for a claim.
	Files []File `json:"files,omitempty"`
}

// File is one file of a batch.
type File struct {
	Name   string `json:"name"`
	Rows   int64  `json:"rows"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	// Staged is the key of its bytes until it is published.
	Staged string `json:"staged,omitempty"`
}

// errMoved says that the log has a newer entry than the one that was built on.
var errMoved = errors.New("the log has moved on")

// log is the log of one query in a folder.
type log struct {
	store objstore.Store
	query string
}

func (l *log) prefix() string            { return metaFolder + "/" + l.query + "/log/" }
func (l *log) key(seq int64) string      { return fmt.Sprintf("%s%020d", l.prefix(), seq) }
func (l *log) staged() string            { return metaFolder + "/" + l.query + "/staged/" }
func (l *log) unreachable(e error) error { return unreachable(e, l.store, l.query) }

// unreachable gives an error of the store the class that it deserves.
func unreachable(err error, store objstore.Store, query string) error {
	var classified *failure.Error
	if errors.As(err, &classified) {
		return err
	}
	return failure.Wrap(failure.Unreachable, err, "query %s: files in %s", query, store.Location())
}

// newest lists the log: the newest entry's number, and all.
func (l *log) newest(ctx context.Context) (int64, []int64, error) {
	list, err := l.store.List(ctx, l.prefix())
	if err != nil {
		return 0, nil, l.unreachable(err)
	}
	var head int64
	var all []int64
	for _, i := range list {
		n, err := strconv.ParseInt(strings.TrimPrefix(i.Key, l.prefix()), 10, 64)
		if err == nil && l.key(n) == i.Key {
			all, head = append(all, n), max(head, n)
		}
	}
	return head, all, nil
}

// head reads the newest entry, durable; nil where there is none.
func (l *log) head(ctx context.Context) (*entry, error) {
	for range readTries {
		seq, _, err := l.newest(ctx)
		if err != nil || seq == 0 {
			return nil, err
		}
		// A killed process may have left it visible only; what is built on it
		// must not outlive it.
		err = objstore.Settle(ctx, l.store, l.key(seq))
		var data []byte
		if err == nil {
			data, err = l.store.Get(ctx, l.key(seq))
		}
		if errors.Is(err, objstore.ErrNotExist) {
			continue // removed since: there is a newer one
		}
		if err != nil {
			return nil, l.unreachable(err)
		}
		return l.decode(seq, data)
	}
	return nil, failure.New(failure.Unreachable, "the log of query %s in %s changes faster than it can be read", l.query, l.store.Location())
}

func (l *log) decode(seq int64, data []byte) (*entry, error) {
	e := &entry{}
	err := json.Unmarshal(data, e)
	switch {
	case err == nil && e.Format > logFormat:
		return nil, failure.New(failure.Checkpoint, "entry %s in %s has format %d, this version knows up to %d", l.key(seq), l.store.Location(), e.Format, logFormat).
			WithHint("run the version of weir that wrote it, or a newer one")
	case err == nil && (e.Format < 1 || e.Seq != seq || e.Marker == nil || e.Marker.QueryName != l.query):
		err = errors.New("it is not whole, or of another query")
	}
	if err != nil {
		return nil, failure.Wrap(failure.Checkpoint, err, "entry %s in %s", l.key(seq), l.store.Location()).
			WithHint("restore the folder %s/%s", metaFolder, l.query)
	}
	return e, nil
}

// append writes the entry after base (0 for the first one). Asking again with
// the same nonce is safe; there is true where it had been written before.
func (l *log) append(ctx context.Context, base int64, e *entry) (there bool, err error) {
	e.Format, e.Seq = logFormat, base+1
	data, err := json.Marshal(e)
	if err != nil {
		return false, fmt.Errorf("encode the log of query %s: %w", l.query, err)
	}
	created, existing, err := l.store.CreateOnce(ctx, l.key(e.Seq), data)
	if err != nil {
		return false, l.unreachable(err)
	}
	if !created {
		had, err := l.decode(e.Seq, existing)
		if err != nil {
			return false, err
		}
		if had.Nonce != e.Nonce {
			return false, errMoved
		}
	}
	// Old entries are removed: one that stood still for long may just have made
	// a number anew that others are far beyond. Nobody takes it for the head.
	head, all, err := l.newest(ctx)
	if err != nil {
		return false, err
	}
	if head != e.Seq {
		return false, errMoved
	}
	for _, n := range all {
		if n < head-logKeep {
			_ = l.store.Delete(ctx, l.key(n)) // removed another time
		}
	}
	return !created, nil
}

func newEntry(kind string, m *marker.Marker) *entry {
	return &entry{Kind: kind, Nonce: clock.Nonce(), Marker: m}
}
