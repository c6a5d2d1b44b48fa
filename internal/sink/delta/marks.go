package delta

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/delta"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore"
)

const (
	txnPrefix = "weir/"
	folder    = "_weir/"

	txnEpoch     = "epoch"
	txnWatermark = "watermark"
	txnCommit    = "commit"
	txnMarker    = "marker"
	txnName      = "name/"
	txnPosition  = "pos/"

	// refreshAfter is the age from which an unchanged txn is written again, so
	// that a table with a transaction retention (30 days or more) never lets go
	// of the position of a partition that stands still.
	refreshAfter = 24 * time.Hour
)

// marks are the txn actions of one query id.
type marks struct {
	queryID   string
	batch     int64
	hasBatch  bool
	values    map[string]int64 // epoch, watermark, commit, marker
	positions map[string]int64 // by <topic id>/<partition>
	names     map[string]int64 // by query name: epoch
}

// allMarks parses a table's txn actions, by query id.
func allMarks(s *delta.Snapshot) map[string]*marks {
	out := map[string]*marks{}
	s.Txns(txnPrefix, func(x delta.Txn) bool {
		id, what, _ := strings.Cut(strings.TrimPrefix(x.AppID, txnPrefix), "/")
		if len(id) != 36 { // a UUID; other ids below weir/ are package delta's
			return true
		}
		m := out[id]
		if m == nil {
			m = &marks{queryID: id, values: map[string]int64{}, positions: map[string]int64{}, names: map[string]int64{}}
			out[id] = m
		}
		switch {
		case what == "":
			m.batch, m.hasBatch = x.Version, true
		case strings.HasPrefix(what, txnName):
			m.names[strings.TrimPrefix(what, txnName)] = x.Version
		case strings.HasPrefix(what, txnPosition):
			m.positions[strings.TrimPrefix(what, txnPosition)] = x.Version
		default:
			m.values[what] = x.Version
		}
		return true
	})
	return out
}

// current picks the lineage of each query name: the one that claimed last.
func current(all map[string]*marks) map[string]*marks {
	out := map[string]*marks{}
	for _, m := range all {
		for name, epoch := range m.names {
			if had, ok := out[name]; !ok || epoch > had.names[name] {
				out[name] = m
			}
		}
	}
	return out
}

// body is the whole marker as it is stored, and its hash. The version that the
// commit will get is not known yet; the txn actions have it.
func body(m *marker.Marker) (string, int64, error) {
	stored := *m
	stored.BaseSequence = 0
	text, err := stored.Encode()
	return text, hashOf(text), err
}

func hashOf(text string) int64 {
	sum := sha256.Sum256([]byte(text))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

func sidecarKey(queryID string, batchID, hash int64) string {
	return fmt.Sprintf("%s%s/%d-%016x.json", folder, queryID, batchID, uint64(hash))
}

// positionID names a partition in a txn's app id: by the topic's id, by its name
// where the broker gives no ids.
func positionID(topic, topicID string, partition int32) string {
	if topicID == "" {
		topicID = topic
	}
	return topicID + "/" + strconv.FormatInt(int64(partition), 10)
}

// txns are the actions that write a marker as the given version. Those that the
// table already has are left out.
func txns(s *delta.Snapshot, m *marker.Marker, hash, version int64, now time.Time) []delta.Action {
	var out []delta.Action
	set := func(what string, v int64) {
		id := txnPrefix + m.QueryID
		if what != "" {
			id += "/" + what
		}
		if had, ok := s.Txn(id); ok && had.Version == v && now.Sub(time.UnixMilli(had.LastUpdated)) < refreshAfter {
			return
		}
		out = append(out, delta.Action{Txn: &delta.Txn{AppID: id, Version: v, LastUpdated: now.UnixMilli()}})
	}
	set("", m.BatchID)
	set(txnEpoch, m.Epoch.Number)
	set(txnName+m.QueryName, m.Epoch.Number)
	set(txnMarker, hash)
	set(txnCommit, version)
	set(txnWatermark, m.Watermark.Micros)
	m.Position.Vector().Each(func(topic, id string, part int32, p batch.PartitionPosition) {
		set(txnPosition+positionID(topic, id, part), p.NextOffset)
	})
	return out
}

// markerOf reads the whole marker that the marks name.
func (s *Sink) markerOf(ctx context.Context, mk *marks) (*marker.Marker, error) {
	hash, ok := mk.values[txnMarker]
	if !ok || !mk.hasBatch {
		return nil, s.contradiction(mk, "its txn actions are not complete")
	}
	if m := s.cached(hash); m != nil {
		out := *m
		out.BaseSequence = mk.values[txnCommit]
		return &out, s.agree(mk, &out)
	}
	text, err := s.markerText(ctx, mk, hash)
	if err != nil {
		return nil, err
	}
	m, err := marker.Decode(text)
	if err != nil {
		return nil, failure.Wrap(failure.Checkpoint, err, "table %s: marker of query id %s", s.Name(), mk.queryID).
			WithHint("a newer version of weir may have written it: run that one")
	}
	s.cache(hash, m)
	out := *m
	out.BaseSequence = mk.values[txnCommit]
	return &out, s.agree(mk, &out)
}

// markerText finds the marker's JSON by its hash: beside the table, else in the
// commit that wrote it.
func (s *Sink) markerText(ctx context.Context, mk *marks, hash int64) (string, error) {
	key := sidecarKey(mk.queryID, mk.batch, hash)
	data, err := s.table.Storage().Get(ctx, key)
	if err == nil && hashOf(string(data)) == hash {
		return string(data), nil
	}
	if err != nil && !errors.Is(err, objstore.ErrNotExist) {
		return "", failure.Wrap(failure.Unreachable, err, "read the marker of query id %s in table %s", mk.queryID, s.Name())
	}
	actions, err := s.table.CommitAt(ctx, mk.values[txnCommit])
	if err != nil && !errors.Is(err, delta.ErrNoVersion) {
		return "", err
	}
	for _, a := range actions {
		if a.CommitInfo != nil {
			if text := a.CommitInfo.Weir[marker.KeyMarker]; hashOf(text) == hash {
				return text, nil
			}
		}
	}
	return "", failure.New(failure.Checkpoint, "table %s: the marker of query id %s (batch %d) is gone: neither %s nor the commit of version %d is there",
		s.Name(), mk.queryID, mk.batch, key, mk.values[txnCommit]).
		WithHint("restore the folder %s of the table from a backup; the next offsets stand in the table's txn actions (weir/%s/pos/…)", strings.TrimSuffix(folder, "/"), mk.queryID)
}

// agree holds the whole marker against the numbers, which decide.
func (s *Sink) agree(mk *marks, m *marker.Marker) error {
	switch {
	case m.QueryID != mk.queryID:
		return s.contradiction(mk, "its marker is of query id "+m.QueryID)
	case m.BatchID != mk.batch:
		return s.contradiction(mk, fmt.Sprintf("its marker is of batch %d, the txn says %d", m.BatchID, mk.batch))
	case m.Epoch.Number != mk.values[txnEpoch]:
		return s.contradiction(mk, fmt.Sprintf("its marker has epoch %s, the txn says %d", m.Epoch, mk.values[txnEpoch]))
	case m.Watermark.Micros != mk.values[txnWatermark]:
		return s.contradiction(mk, fmt.Sprintf("its marker has watermark %d, the txn says %d", m.Watermark.Micros, mk.values[txnWatermark]))
	}
	why := ""
	m.Position.Vector().Each(func(topic, id string, part int32, p batch.PartitionPosition) {
		if v, ok := mk.positions[positionID(topic, id, part)]; !ok || v != p.NextOffset {
			why = fmt.Sprintf("its marker stands at offset %d of %s-%d, the txn says %d", p.NextOffset, topic, part, v)
		}
	})
	if why != "" {
		return s.contradiction(mk, why)
	}
	return nil
}

func (s *Sink) contradiction(mk *marks, why string) error {
	return failure.New(failure.Checkpoint, "table %s contradicts itself about query id %s: %s", s.Name(), mk.queryID, why).
		WithHint("somebody else wrote txn actions that begin with weir/, or the table was put together from two copies; restore it from one backup")
}

// markersOf reads the current marker of every query.
func (s *Sink) markersOf(ctx context.Context, snap *delta.Snapshot) (map[string]*marker.Marker, error) {
	out := map[string]*marker.Marker{}
	for name, mk := range current(allMarks(snap)) {
		m, err := s.markerOf(ctx, mk)
		if err != nil {
			return nil, err
		}
		if m.QueryName != name {
			return nil, s.contradiction(mk, fmt.Sprintf("its marker is of query %q, the txn says %q", m.QueryName, name))
		}
		out[name] = m
	}
	return out, nil
}
