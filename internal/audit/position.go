package audit

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The keys that are read here are the public ones of the contract. They are
// parsed again, on purpose, instead of sharing the marker package's types.
const (
	keyOffsets     = "weir.offsets"
	keyPosition    = "weir.position"
	keyMarker      = "weir.marker"
	propertyPrefix = "weir.query."
	// propertyRebuilt says which batches a rebuild has made void.
	propertyRebuilt = "weir.rebuilt"
	kindStream      = "stream"
)

// Sources of the end that a table is judged by.
const (
	endSnapshot = "snapshot"
	endProperty = "table-property"
	endExplicit = "explicit"
	endLog      = "log-end"
)

// vector is an offset vector as markers write it.
type vector struct {
	ClusterID string                 `json:"cluster_id"`
	Topics    map[string]topicVector `json:"topics"`
}

type topicVector struct {
	ID         string                    `json:"id"`
	Partitions map[int32]partitionVector `json:"partitions"`
}

type partitionVector struct {
	NextOffset int64  `json:"next_offset"`
	HandedTo   string `json:"handed_to"`
}

type position struct {
	Kafka *vector `json:"kafka"`
	Table *struct {
		Upstream *vector `json:"upstream"`
	} `json:"table"`
}

func (p position) vector() *vector {
	if p.Table != nil {
		return p.Table.Upstream
	}
	return p.Kafka
}

// marker is what an audit needs of a query's marker.
type marker struct {
	Kind      string   `json:"kind"`
	QueryName string   `json:"query_name"`
	QueryID   string   `json:"query_id"`
	BatchID   int64    `json:"batch_id"`
	Claim     bool     `json:"claim"`
	Position  position `json:"position"`
	Counters  counters `json:"counters"`
	Watermark struct {
		Micros int64 `json:"micros"`
	} `json:"watermark"`
}

type counters struct {
	Read         int64 `json:"read"`
	Emitted      int64 `json:"emitted"`
	Filtered     int64 `json:"filtered"`
	Duplicate    int64 `json:"duplicate"`
	Late         int64 `json:"late"`
	DeadLettered int64 `json:"dead_lettered"`
}

// markers are those of the table's properties, by query name.
func (m *metadata) markers() (map[string]marker, error) {
	out := map[string]marker{}
	for k, v := range m.Properties {
		name, ok := strings.CutPrefix(k, propertyPrefix)
		if !ok {
			continue
		}
		var mk marker
		if err := json.Unmarshal([]byte(v), &mk); err != nil {
			return nil, fmt.Errorf("table property %s is not readable: %w", k, err)
		}
		out[name] = mk
	}
	return out, nil
}

// end is how far the table says that it has come with a topic.
type end struct {
	clusterID, topicID string
	offsets            map[int32]int64
	source             string
}

// end reads the vector of the nearest snapshot that has one, starting at the
// current one, and raises it by the markers of the same metadata file: a table
// that was rolled back still says in its properties what it once held, and
// must be judged by that.
func (m *metadata) end(topic string) (end, error) {
	out := end{offsets: map[int32]int64{}}
	for s, hops := m.current(), 0; s != nil && hops <= len(m.Snapshots); hops++ {
		v, err := summaryVector(s)
		if err != nil {
			return out, err
		}
		if v != nil && out.raise(v, topic) {
			out.source = endSnapshot
			break
		}
		if s.ParentID == nil {
			break
		}
		s = m.snapshot(*s.ParentID)
	}
	byName, err := m.markers()
	if err != nil {
		return out, err
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		mk := byName[name]
		if mk.Kind != "" && mk.Kind != kindStream {
			continue
		}
		if out.raise(mk.Position.vector(), topic) {
			out.source = cmp.Or(out.source, endProperty)
		}
	}
	return out, nil
}

func summaryVector(s *snapshot) (*vector, error) {
	if raw := s.Summary[keyOffsets]; raw != "" {
		v := &vector{}
		if err := json.Unmarshal([]byte(raw), v); err != nil {
			return nil, fmt.Errorf("snapshot %d, %s is not readable: %w", s.ID, keyOffsets, err)
		}
		return v, nil
	}
	if raw := s.Summary[keyPosition]; raw != "" {
		var p position
		if err := json.Unmarshal([]byte(raw), &p); err != nil {
			return nil, fmt.Errorf("snapshot %d, %s is not readable: %w", s.ID, keyPosition, err)
		}
		return p.vector(), nil
	}
	return nil, nil
}

// raise lifts e to v's offsets of the topic; it reports whether v had any.
func (e *end) raise(v *vector, topic string) bool {
	if v == nil {
		return false
	}
	t, ok := v.Topics[topic]
	if !ok {
		return false
	}
	e.clusterID, e.topicID = cmp.Or(e.clusterID, v.ClusterID), cmp.Or(e.topicID, t.ID)
	for p, o := range t.Partitions {
		// A tombstone still says that everything below it was delivered here.
		if old, ok := e.offsets[p]; !ok || old < o.NextOffset {
			e.offsets[p] = o.NextOffset
		}
	}
	return true
}

// sameTopicID compares a topic id as text, a UUID or Kafka's base 64, with the
// broker's.
func sameTopicID(text string, id [16]byte) bool {
	uuid := uuidText(id)
	switch text {
	case uuid, strings.ReplaceAll(uuid, "-", ""),
		base64.RawURLEncoding.EncodeToString(id[:]), base64.StdEncoding.EncodeToString(id[:]):
		return true
	}
	return strings.EqualFold(text, uuid)
}

func sortedKeys[V any](m map[int32]V) []int32 { return slices.Sorted(maps.Keys(m)) }
