package foreachbatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore"
)

const (
	recordFormat = 1
	// recordKeep is how many entries stay below the newest one.
	recordKeep = 8
	// readTries bounds how often the newest entry is looked for again because it
	// was removed between listing and reading.
	readTries = 8
)

// Kinds of entries.
const (
	kindClaim = "claim"
	kindBegun = "begun"
	kindDone  = "done"
)

// entry is one file of the record.
type entry struct {
	Format int    `json:"format"`
	Seq    int64  `json:"seq"`
	Kind   string `json:"kind"`
	Nonce  string `json:"nonce"`
	// Marker is that of the newest claim or finished batch.
	Marker *marker.Marker `json:"marker"`
	// Begun is the batch that was handed over last, and Done the one that was
	// finished last, where they are ahead of Marker: a claim stands where the
	// commit log does.
	Begun *marker.Marker `json:"begun,omitempty"`
	Done  *marker.Marker `json:"done,omitempty"`
	// Note is what the handler wrote down about Begun, see Delivery.Keep.
	Note json.RawMessage `json:"note,omitempty"`
}

// ahead is the newest batch that the record knows more of than Marker says, nil
// if there is none.
func (e *entry) ahead() *marker.Marker {
	if e.Begun != nil {
		return e.Begun
	}
	return e.Done
}

// same reports whether two markers speak of one batch by one plan.
func same(a, b *marker.Marker) bool {
	return a != nil && a.QueryID == b.QueryID && a.BatchID == b.BatchID && a.PlanHash == b.PlanHash
}

// claim is the entry of a claim on this one, which may be nil: what is ahead of
// the claimed marker stays known.
func (e *entry) claim(m *marker.Marker) *entry {
	out := newEntry(kindClaim, m)
	if e == nil {
		return out
	}
	keep := func(x *marker.Marker) *marker.Marker {
		if x != nil && x.QueryID == m.QueryID && x.BatchID > m.BatchID {
			return x
		}
		return nil
	}
	out.Begun, out.Done = keep(e.Begun), keep(e.Done)
	if out.Begun != nil {
		out.Note = e.Note
	}
	if e.Kind == kindDone && out.Done == nil {
		out.Done = keep(e.Marker)
	}
	return out
}

// record is the log of deliveries.
type record struct {
	store objstore.Store
	query string
}

func recordKey(seq int64) string { return fmt.Sprintf("%020d", seq) }

func seqOf(key string) (int64, bool) {
	n, err := strconv.ParseInt(key, 10, 64)
	return n, err == nil && recordKey(n) == key
}

// newest lists the record: the newest entry's number, and all.
func (r *record) newest(ctx context.Context) (int64, []int64, error) {
	list, err := r.store.List(ctx, "")
	if err != nil {
		return 0, nil, r.unreachable(err)
	}
	var head int64
	var all []int64
	for _, i := range list {
		if n, ok := seqOf(i.Key); ok {
			all, head = append(all, n), max(head, n)
		}
	}
	return head, all, nil
}

// head reads the newest entry, durable; nil where there is none.
func (r *record) head(ctx context.Context) (*entry, error) {
	for range readTries {
		seq, _, err := r.newest(ctx)
		if err != nil || seq == 0 {
			return nil, err
		}
		// A killed process may have left it visible only; what is built on it
		// must not outlive it.
		err = objstore.Settle(ctx, r.store, recordKey(seq))
		var data []byte
		if err == nil {
			data, err = r.store.Get(ctx, recordKey(seq))
		}
		if errors.Is(err, objstore.ErrNotExist) {
			continue // removed since: there is a newer one
		}
		if err != nil {
			return nil, r.unreachable(err)
		}
		return r.decode(seq, data)
	}
	return nil, failure.New(failure.Unreachable, "the record of query %s in %s changes faster than it can be read", r.query, r.store.Location())
}

func (r *record) unreachable(err error) error {
	var classified *failure.Error
	if errors.As(err, &classified) {
		return err
	}
	return failure.Wrap(failure.Unreachable, err, "record of query %s in %s", r.query, r.store.Location())
}

func (r *record) decode(seq int64, data []byte) (*entry, error) {
	e := &entry{}
	err := json.Unmarshal(data, e)
	switch {
	case err == nil && e.Format > recordFormat:
		return nil, failure.New(failure.Checkpoint, "record %s of query %s has format %d, this version knows up to %d", recordKey(seq), r.query, e.Format, recordFormat).
			WithHint("run the version of weir that wrote it, or a newer one")
	case err == nil && (e.Format < 1 || e.Seq != seq || e.Marker == nil):
		err = errors.New("it is not whole")
	}
	if err != nil {
		return nil, failure.Wrap(failure.Checkpoint, err, "record %s of query %s in %s", recordKey(seq), r.query, r.store.Location()).
			WithHint("restore the folder; or remove it: then only the checkpoint knows what was handed over")
	}
	if e.Marker.QueryName != r.query {
		return nil, failure.New(failure.Config, "the record in %s belongs to query %s, not to %s", r.store.Location(), e.Marker.QueryName, r.query).
			WithHint("give each query a checkpoint folder of its own")
	}
	return e, nil
}

// errMoved says that the record has a newer entry than the one that was built on.
var errMoved = errors.New("the record has moved on")

// append writes the entry after base (0 for the first one). Asking again with
// the same nonce is safe; there is true where it had been written before.
func (r *record) append(ctx context.Context, base int64, e *entry) (there bool, err error) {
	e.Format, e.Seq = recordFormat, base+1
	data, err := json.Marshal(e)
	if err != nil {
		return false, fmt.Errorf("encode the record of query %s: %w", r.query, err)
	}
	created, existing, err := r.store.CreateOnce(ctx, recordKey(e.Seq), data)
	if err != nil {
		return false, r.unreachable(err)
	}
	if !created {
		had, err := r.decode(e.Seq, existing)
		if err != nil {
			return false, err
		}
		if had.Nonce != e.Nonce {
			return false, errMoved
		}
	}
	// Old entries are removed: one that stood still for long may just have made
	// a number anew that others are far beyond.
	head, all, err := r.newest(ctx)
	if err != nil {
		return false, err
	}
	if head != e.Seq {
		return false, errMoved
	}
	for _, n := range all {
		if n < head-recordKeep {
			_ = r.store.Delete(ctx, recordKey(n)) // removed another time
		}
	}
	return !created, nil
}

func newEntry(kind string, m *marker.Marker) *entry {
	return &entry{Kind: kind, Nonce: clock.Nonce(), Marker: m}
}
