package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/operator"
)

// Store keeps the state of one checkpoint. It belongs to one goroutine.
type Store struct {
	objects objstore.Store
	opts    Options
	// sound are the files that this process saved, or loaded with their whole
	// chain: only these may be a delta's parent.
	sound map[string]*header
	// headers are those of other files that Purge has read.
	headers map[string]*header
}

// Options of a store.
type Options struct {
	// Query is whose crash points are reached.
	Query string
	// PartBytes is the size at which a snapshot is cut into parts; 0 is
	// DefaultPartBytes. It bounds the memory of a save and of a load.
	PartBytes int
}

// NewStore makes a store over a checkpoint location.
func NewStore(objects objstore.Store, opts Options) *Store {
	if opts.PartBytes == 0 {
		opts.PartBytes = DefaultPartBytes
	}
	return &Store{objects: objects, opts: opts, sound: map[string]*header{}, headers: map[string]*header{}}
}

// Save makes the state after batch version durable: a delta on parent (the
// version that the batch began from), or a snapshot where there is no parent,
// where the parent is not known to be sound, or where the chain has become
// long. The operator's batch must be finished, and must have begun from parent.
// Saving the same bytes under the same attempt again is no error.
func (s *Store) Save(ctx context.Context, queryID string, op operator.Stateful, version int64, attempt string, parent *marker.StateFile) (marker.StateFile, error) {
	h := header{QueryID: queryID, Operator: op.Name(), Version: version, Attempt: attempt, Kind: kindSnapshot, Keys: op.Keys()}
	var payload []byte
	aboutBytes := int64(0)
	if parent != nil {
		h.Parent, h.ParentSHA256 = parent.Path, parent.SHA256
		if base := s.sound[parent.Path]; base != nil {
			if base.Version >= version {
				return marker.StateFile{}, failure.New(failure.Runtime, "state of %s: version %d cannot follow version %d", op.Name(), version, base.Version)
			}
			delta, err := s.delta(op, &h, base)
			if err != nil {
				return marker.StateFile{}, err
			}
			payload, aboutBytes = delta, base.SnapshotBytes
		}
	}
	if payload == nil {
		var err error
		if payload, err = s.snapshot(ctx, op, &h, aboutBytes); err != nil {
			return marker.StateFile{}, err
		}
	}
	f, err := s.write(ctx, &h, payload)
	if r, ok := op.(operator.Resumer); ok && err == nil {
		r.Saved(operator.Version{Path: f.Path, SHA256: f.SHA256})
	}
	return f, err
}

// delta packs what the batch changed and fills the header in; nil where a
// snapshot is due instead.
func (s *Store) delta(op operator.Stateful, h, base *header) ([]byte, error) {
	if base.Deltas >= DeltasMax {
		return nil, nil
	}
	raw, err := op.Delta()
	if err != nil {
		return nil, fmt.Errorf("delta of %s: %w", op.Name(), err)
	}
	p := newPacker(int64(len(raw)/2), math.MaxInt, nil)
	defer p.close()
	if _, err := p.Write(raw); err != nil {
		return nil, fmt.Errorf("delta of %s: %w", op.Name(), err)
	}
	payload, err := p.last()
	if err != nil {
		return nil, fmt.Errorf("delta of %s: %w", op.Name(), err)
	}
	sum := base.DeltaBytes + int64(len(payload)-lineRoom)
	// The first commit after a start does not wait for a snapshot to be written.
	long := !base.loaded && base.Deltas >= SnapshotEvery && sum*snapshotShare >= base.SnapshotBytes
	if long || sum > max(base.SnapshotBytes, smallChainBytes) {
		return nil, nil
	}
	h.Kind, h.Deltas, h.DeltaBytes, h.SnapshotBytes = kindDelta, base.Deltas+1, sum, base.SnapshotBytes
	h.RawBytes = int64(len(raw))
	return payload, nil
}

// snapshot packs the whole state, without holding it unpacked where the operator
// can stream it. Parts that are full are made durable on the way: nothing refers
// to them before the snapshot's own file is there. aboutBytes is the size of the
// snapshot before.
func (s *Store) snapshot(ctx context.Context, op operator.Stateful, h *header, aboutBytes int64) ([]byte, error) {
	h.Kind, h.Deltas, h.DeltaBytes = kindSnapshot, 0, 0
	if v, ok := op.(operator.SnapshotVersioner); ok && v.SnapshotVersion() > 1 {
		h.Format = formatPacked
	}
	full := func(frame []byte) error { return s.writePart(ctx, h, frame) }
	p := newPacker(aboutBytes+aboutBytes/8, s.opts.PartBytes, full)
	defer p.close()
	err := writeSnapshot(op, p)
	var payload []byte
	if err == nil {
		payload, err = p.last()
	}
	if err == nil && len(h.Parts) > 0 {
		err = full(payload[lineRoom:])
		payload = payload[:lineRoom]
	}
	if err != nil {
		return nil, fmt.Errorf("snapshot of %s: %w", op.Name(), err)
	}
	h.RawBytes, h.SnapshotBytes = p.rawBytes, int64(len(payload)-lineRoom)+h.partBytes()
	return payload, nil
}

func writeSnapshot(op operator.Stateful, w io.Writer) error {
	if streamed, ok := op.(operator.SnapshotWriter); ok {
		return streamed.WriteSnapshot(w)
	}
	raw, err := op.Snapshot()
	if err == nil {
		_, err = w.Write(raw)
	}
	return err
}

// writePart makes the next part durable.
func (s *Store) writePart(ctx context.Context, h *header, frame []byte) error {
	path := partKey(key(h.Operator, h.Version, h.Attempt, kindSnapshot), len(h.Parts))
	if err := s.create(ctx, path, frame); err != nil {
		return err
	}
	h.Parts = append(h.Parts, part{marker.Hash(frame), int64(len(frame))})
	fault.Reach(s.opts.Query, fault.StatePart)
	return nil
}

// create writes a file once; the same contents under the same name are no error.
func (s *Store) create(ctx context.Context, path string, data []byte) error {
	created, existing, err := s.objects.CreateOnce(ctx, path, data)
	if err != nil {
		return fmt.Errorf("write state %s: %w", path, err)
	}
	if !created && !bytes.Equal(existing, data) {
		return failure.New(failure.Runtime, "state %s is there with other contents: an attempt was numbered twice", path)
	}
	return nil
}

func (s *Store) write(ctx context.Context, h *header, payload []byte) (marker.StateFile, error) {
	data, err := h.encode(payload)
	if err != nil {
		return marker.StateFile{}, err
	}
	path := key(h.Operator, h.Version, h.Attempt, h.Kind)
	if err := s.create(ctx, path, data); err != nil {
		return marker.StateFile{}, err
	}
	if len(s.sound) >= rememberedFiles {
		clear(s.sound) // costs a snapshot; Purge keeps the number far below
	}
	s.sound[path] = h
	return marker.StateFile{Operator: h.Operator, Path: path, SHA256: marker.Hash(data), Keys: h.Keys, Bytes: int64(len(data)) + h.partBytes()}, nil
}

// Load makes the operator's state that of tip: back to the chain's snapshot,
// every file checked, then forward. An operator whose memory has outlasted the
// process, and is a version of the chain, is given the deltas after that one only.
// On an error the operator is empty.
func (s *Store) Load(ctx context.Context, queryID string, op operator.Stateful, tip marker.StateFile) error {
	op.Reset()
	chain, err := s.chain(ctx, queryID, op.Name(), reference{tip.Path, tip.SHA256})
	if err != nil {
		return err
	}
	if err := s.forward(ctx, op, chain, tip.Keys); err != nil {
		op.Reset()
		return err
	}
	chain[0].header.loaded = true
	for _, l := range chain {
		s.sound[l.path] = l.header
	}
	return nil
}

// forward brings the operator from where it stands in the chain to its tip, which has
// so many keys.
func (s *Store) forward(ctx context.Context, op operator.Stateful, chain []*link, keys int64) error {
	resumer, resumes := op.(operator.Resumer)
	left := len(chain)
	if resumes {
		at, err := resumer.Resume()
		if err != nil {
			return fmt.Errorf("take up the state of %s: %w", op.Name(), err)
		}
		if i := slices.IndexFunc(chain, func(l *link) bool { return operator.Version{Path: l.path, SHA256: l.sha256} == at }); i >= 0 {
			left = i
		} else {
			op.Reset()
		}
	}
	for i := left - 1; i >= 0; i-- {
		if err := s.apply(ctx, op, chain[i], keys); err != nil {
			return err
		}
		chain[i].payload = nil
	}
	if !resumes {
		return nil
	}
	if err := resumer.Loaded(operator.Version{Path: chain[0].path, SHA256: chain[0].sha256}); err != nil {
		return fmt.Errorf("take up the state of %s: %w", op.Name(), err)
	}
	return nil
}

// apply gives one file of a chain to the operator; its tip has so many keys.
func (s *Store) apply(ctx context.Context, op operator.Stateful, l *link, keys int64) error {
	r, err := s.open(ctx, l)
	if err != nil {
		return err
	}
	defer r.close()
	streamed, ok := op.(operator.SnapshotReader)
	if ok && l.header.Kind == kindSnapshot {
		if err = streamed.ReadSnapshot(r, l.header.RawBytes, keys); err == nil {
			err = r.end()
		}
	} else {
		var raw []byte
		if raw, err = r.all(); err != nil {
			return err
		}
		load := op.ApplyDelta
		if l.header.Kind == kindSnapshot {
			load = op.LoadSnapshot
		}
		err = load(raw)
	}
	if r.err != nil {
		return r.err
	}
	if errors.Is(err, operator.ErrStateCorrupt) {
		return damaged(l.path, "%v", err)
	}
	return err
}

// link is one file of a chain.
type link struct {
	path    string
	sha256  string
	header  *header
	payload []byte
}

// chain reads from a tip back to its snapshot.
func (s *Store) chain(ctx context.Context, queryID, op string, f reference) ([]*link, error) {
	var chain []*link
	for {
		h, payload, err := s.read(ctx, queryID, op, f)
		if err != nil {
			return nil, err
		}
		if n := len(chain); n > 0 {
			child := chain[n-1].header
			if h.Version >= child.Version || h.Deltas != child.Deltas-1 {
				return nil, damaged(f.path, "version %d with %d deltas is no parent of version %d with %d", h.Version, h.Deltas, child.Version, child.Deltas)
			}
		}
		chain = append(chain, &link{f.path, f.sha256, h, payload})
		if h.Kind == kindSnapshot {
			if h.Deltas != 0 {
				return nil, damaged(f.path, "a snapshot with %d deltas", h.Deltas)
			}
			return chain, nil
		}
		if h.Parent == "" || h.Deltas < 1 || h.Deltas > DeltasMax {
			return nil, damaged(f.path, "a delta without a parent, or with %d before it", h.Deltas)
		}
		f = reference{h.Parent, h.ParentSHA256}
	}
}

func (s *Store) read(ctx context.Context, queryID, op string, f reference) (*header, []byte, error) {
	data, err := s.get(ctx, f.path)
	if err != nil {
		return nil, nil, err
	}
	return decode(f, queryID, op, data)
}

func (s *Store) get(ctx context.Context, path string) ([]byte, error) {
	data, err := s.objects.Get(ctx, path)
	if errors.Is(err, objstore.ErrNotExist) {
		return nil, failure.Wrap(failure.Checkpoint, ErrMissing, "%s in %s", path, s.objects.Location())
	}
	if err != nil {
		return nil, fmt.Errorf("read state %s: %w", path, err)
	}
	return data, nil
}
