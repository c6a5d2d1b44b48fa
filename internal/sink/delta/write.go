package delta

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/weirlake/weir/internal/delta"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
)

// sidecarKeep is how many batches' markers stay beside the table; sidecarEvery
// is how often older ones are removed.
const (
	sidecarKeep  = 3
	sidecarEvery = 16
)

// change is the commit that writes m on a snapshot: txn actions and the user's
// own app id. The whole marker is durable beside the table when it returns.
func (s *Sink) change(ctx context.Context, snap *delta.Snapshot, markers map[string]*marker.Marker, m *marker.Marker) ([]delta.Action, error) {
	if err := sink.CheckOverlap(s.Name(), markers, m); err != nil {
		return nil, err
	}
	text, hash, err := body(m)
	if err != nil {
		return nil, err
	}
	version := snap.Version + 1
	actions := txns(snap, m, hash, version, s.opts.Clock.Now())
	own, err := s.ownAppID(snap, m)
	if err != nil {
		return nil, err
	}
	if err := s.writeSidecar(ctx, sidecarKey(m.QueryID, m.BatchID, hash), text); err != nil {
		return nil, delta.Again(fmt.Errorf("write the marker of query %s beside table %s: %w", m.QueryName, s.Name(), err))
	}
	s.cache(hash, m)
	return append(actions, own...), nil
}

// writeSidecar makes the whole marker durable, once for all tries of a commit.
func (s *Sink) writeSidecar(ctx context.Context, key, text string) error {
	s.mu.Lock()
	done := s.sidecar == key
	s.mu.Unlock()
	if done {
		return nil
	}
	if err := s.opts.Storage.Put(ctx, key, []byte(text)); err != nil {
		return err
	}
	s.mu.Lock()
	s.sidecar = key
	s.mu.Unlock()
	return nil
}

// ownAppID keeps the user's app id at the batch id. A restart names its
// predecessor, and batch ids go on, so it may take the app id over.
func (s *Sink) ownAppID(snap *delta.Snapshot, m *marker.Marker) ([]delta.Action, error) {
	if s.opts.AppID == "" {
		return nil, nil
	}
	policy := s.opts.OnReusedAppID
	if owner, _ := delta.OwnerOf(snap, s.opts.AppID); owner != "" && owner == m.Predecessor {
		policy = delta.RebindReused
	}
	return delta.Bind(s.table, snap, s.opts.AppID, m.BatchID, m.QueryID, policy)
}

// summary is what commitInfo says of the commit: the keys of a snapshot summary.
func (s *Sink) summary(markers map[string]*marker.Marker, m *marker.Marker) (map[string]string, error) {
	offsets, err := sink.MergeOffsets(markers, m)
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "table %s", s.Name()).
			WithHint("queries that feed one table must read the same cluster and topics")
	}
	out, err := m.Summary(offsets)
	if err != nil {
		return nil, err
	}
	// The very text that the hash is of.
	if out[marker.KeyMarker], _, err = body(m); err != nil {
		return nil, err
	}
	return out, nil
}

// parameters are what Spark's own streaming writes say.
func parameters(m *marker.Marker) map[string]any {
	return map[string]any{"outputMode": "Append", "queryId": m.QueryID, "epochId": strconv.FormatInt(m.BatchID, 10)}
}

// dropSidecars removes the markers of batches long gone. Whoever could still
// commit one of them is fenced: batch ids never start again.
func (s *Sink) dropSidecars(ctx context.Context, m *marker.Marker) {
	if m.BatchID%sidecarEvery != 0 {
		return
	}
	list, err := s.opts.Storage.List(ctx, folder+m.QueryID+"/")
	for _, i := range list {
		name := strings.TrimPrefix(i.Key, folder+m.QueryID+"/")
		n, parseErr := strconv.ParseInt(name[:max(0, strings.LastIndexByte(name, '-'))], 10, 64)
		if parseErr == nil && n < m.BatchID-sidecarKeep && err == nil {
			err = s.opts.Storage.Delete(ctx, i.Key)
		}
	}
	if err != nil && s.opts.Warn != nil {
		s.opts.Warn(fmt.Errorf("remove old markers of query %s beside table %s: %w", m.QueryName, s.Name(), err))
	}
}
