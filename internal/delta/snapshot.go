package delta

import (
	"maps"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
)

// Snapshot is the state of a table at one version. It never changes.
type Snapshot struct {
	Version  int64 // -1: there is no table yet
	Protocol *Protocol
	Metadata *Metadata
	// Schema is the shape of the rows, partition columns included.
	Schema *arrow.Schema
	// Timestamp is the greatest commitInfo timestamp seen, in milliseconds.
	Timestamp int64

	files   layered[*Add]
	removed layered[*Remove]
	txns    layered[Txn]
	// head is the commit file of Version as it was read or written, nil after
	// loading from a checkpoint. A table that was dropped and made again has
	// another one under the same name.
	head []byte
	// checkpoint is the version of the newest checkpoint that is known.
	checkpoint int64
}

// NoVersion is the version of a table that does not exist.
const NoVersion = -1

func noTable() *Snapshot { return &Snapshot{Version: NoVersion, checkpoint: NoVersion} }

// Txn is what the table remembers of an application.
func (s *Snapshot) Txn(appID string) (Txn, bool) { return s.txns.get(appID) }

// Txns calls f for every application, in order of their ids, until f says
// false.
func (s *Snapshot) Txns(prefix string, f func(Txn) bool) {
	for _, id := range s.txns.keys() {
		if !strings.HasPrefix(id, prefix) {
			continue
		}
		t, _ := s.txns.get(id)
		if !f(t) {
			return
		}
	}
}

// Files lists the active data files in the order of their paths.
func (s *Snapshot) Files() []*Add {
	out := make([]*Add, 0, s.files.len())
	for _, p := range s.files.keys() {
		a, _ := s.files.get(p)
		out = append(out, a)
	}
	return out
}

// NumFiles is the number of active data files.
func (s *Snapshot) NumFiles() int { return s.files.len() }

// File finds an active data file by its path in the log.
func (s *Snapshot) File(path string) (*Add, bool) { return s.files.get(path) }

// apply gives the snapshot after one more commit.
func (s *Snapshot) apply(version int64, actions []Action, body []byte) (*Snapshot, error) {
	out := *s
	out.Version, out.head = version, body
	c := changes{add: map[string]*Add{}, remove: map[string]*Remove{}, txn: map[string]Txn{}}
	for _, a := range actions {
		out.one(a, &c)
	}
	out.files = s.files.with(c.add)
	out.removed = s.removed.with(c.remove)
	out.txns = s.txns.with(c.txn)
	if out.Metadata != s.Metadata {
		sc, err := ArrowSchema(out.Metadata.SchemaString)
		if err != nil {
			return nil, err
		}
		out.Schema = sc
	}
	return &out, nil
}

// changes gathers the effect of actions; a nil value takes the key away.
type changes struct {
	add    map[string]*Add
	remove map[string]*Remove
	txn    map[string]Txn
}

func (s *Snapshot) one(a Action, c *changes) {
	switch {
	case a.Protocol != nil:
		s.Protocol = a.Protocol
	case a.Metadata != nil:
		s.Metadata = a.Metadata
	case a.Txn != nil:
		c.txn[a.Txn.AppID] = *a.Txn
	case a.Add != nil:
		c.add[a.Add.Path] = a.Add
		c.remove[a.Add.Path] = nil
	case a.Remove != nil:
		c.remove[a.Remove.Path] = a.Remove
		c.add[a.Remove.Path] = nil
	case a.CommitInfo != nil:
		s.Timestamp = max(s.Timestamp, a.CommitInfo.Timestamp)
	}
}

// layered is a map that is never changed: with gives another one that shares
// the base. The overlay is merged down when it has grown, so that a commit
// costs what it changes and not what the table holds.
type layered[V comparable] struct {
	base map[string]V
	over map[string]V // zero value: taken away
	n    int
}

// overlayMin is the size up to which an overlay is never merged down.
const overlayMin = 256

func (l layered[V]) get(k string) (V, bool) {
	var none V
	v, ok := l.over[k]
	if !ok {
		v, ok = l.base[k]
	}
	return v, ok && v != none
}

func (l layered[V]) len() int { return l.n }

func (l layered[V]) keys() []string {
	out := make([]string, 0, l.n)
	var none V
	for k, v := range l.over {
		if v != none {
			out = append(out, k)
		}
	}
	for k := range l.base {
		if _, ok := l.over[k]; !ok {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

func (l layered[V]) with(c map[string]V) layered[V] {
	if len(c) == 0 {
		return l
	}
	var none V
	out := layered[V]{base: l.base, over: maps.Clone(l.over), n: l.n}
	if out.over == nil {
		out.over = make(map[string]V, len(c))
	}
	for k, v := range c {
		_, had := out.get(k)
		switch {
		case v != none && !had:
			out.n++
		case v == none && had:
			out.n--
		}
		out.over[k] = v
	}
	if len(out.over) > max(overlayMin, len(out.base)/4) {
		base := make(map[string]V, out.n)
		for _, m := range []map[string]V{out.base, out.over} {
			for k, v := range m {
				if v == none {
					delete(base, k)
				} else {
					base[k] = v
				}
			}
		}
		out.base, out.over = base, nil
	}
	return out
}
