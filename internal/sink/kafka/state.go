package kafka

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
)

// metadataAge is how old the client's view of the topics may be.
const metadataAge = 200 * time.Millisecond

// entry is the value of a record of a marker topic; its key is the query's name.
type entry struct {
	Format int `json:"format"`
	// Topic is the id of the target that the marker speaks of: a topic that was
	// deleted and made again is another one.
	Topic   string          `json:"topic_id"`
	Version int64           `json:"version"`
	Marker  json.RawMessage `json:"marker"`
}

const entryFormat = 1

// stored is what Kafka remembers of the target.
type stored struct {
	exists   bool // the topic
	identity string
	live     bool // the marker speaks of this topic
	version  int64
	marker   *marker.Marker
	others   map[string]*marker.Marker
}

// known: some query has claimed the topic, this very one.
func (st *stored) known() bool { return st.live || (st.exists && len(st.others) > 0) }

func (s *Sink) client(more ...kgo.Opt) (*kgo.Client, error) {
	// kadm answers from the client's cache: a topic that was just made would stay
	// unknown for seconds.
	opts := append([]kgo.Opt{kgo.MetadataMinAge(metadataAge)}, s.opts.Client...)
	cl, err := kgo.NewClient(append(opts, more...)...)
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "%s: the Kafka client", s.who())
	}
	return cl, nil
}

// readState reads the target, our marker and those of other queries. fenced: the
// transactional id is ours, so that all of the marker topic is decided and is
// waited for; else only what is decided by now is read.
func (s *Sink) readState(ctx context.Context, fenced bool) (*stored, error) {
	cl, err := s.client()
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	topics, err := adm.ListTopics(ctx)
	if err != nil {
		return nil, err
	}
	st := &stored{others: map[string]*marker.Marker{}}
	if t, ok := topics[s.opts.Topic]; ok && t.Err == nil {
		st.exists, st.identity = true, t.ID.String()
	}
	if t, ok := topics[s.markerTopic()]; ok && t.Err == nil {
		e, m, err := s.newest(ctx, adm, s.markerTopic(), s.opts.Query, fenced)
		if err != nil {
			return nil, err
		}
		if m != nil {
			st.version, st.live = e.Version, st.exists && e.Topic == st.identity
		}
		if st.live {
			st.marker = m
		}
	}
	others := s.otherQueries(topics.Names())
	for _, topic := range sorted(others) {
		e, m, err := s.newest(ctx, adm, topic, others[topic], false)
		if err != nil {
			return nil, err
		}
		if m != nil && e.Topic == st.identity && m.Kind == marker.KindStream {
			st.others[m.QueryName] = m
		}
	}
	return st, nil
}

// newest is the last committed entry of a marker topic, nil where there is none.
func (s *Sink) newest(ctx context.Context, adm *kadm.Client, topic, query string, whole bool) (*entry, *marker.Marker, error) {
	list := adm.ListCommittedOffsets
	if whole {
		list = adm.ListEndOffsets
	}
	ends, err := list(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("find the end of topic %s: %w", topic, err)
	}
	starts, err := adm.ListStartOffsets(ctx, topic)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("find the start of topic %s: %w", topic, err)
	}
	end, _ := ends.Lookup(topic, 0)
	start, _ := starts.Lookup(topic, 0)
	if start.Offset >= end.Offset {
		return nil, nil, nil
	}
	value, err := s.last(ctx, topic, query, start.Offset, end.Offset)
	if err != nil || value == nil {
		return nil, nil, err
	}
	e := &entry{}
	if err := json.Unmarshal(value, e); err != nil || e.Format < 1 || e.Format > entryFormat {
		return nil, nil, failure.New(failure.Checkpoint, "topic %s: its newest record is no marker that this version can read (format %d)", topic, e.Format).
			WithHint("run the version of weir that wrote it, or a newer one")
	}
	m, err := marker.Decode(string(e.Marker))
	if err != nil || m.QueryName != query {
		return nil, nil, failure.New(failure.Checkpoint, "topic %s: the marker of query %s cannot be read (%v)", topic, query, err)
	}
	return e, m, nil
}

// last reads a partition up to end and gives the value of its last record with
// the key, committed ones only.
func (s *Sink) last(ctx context.Context, topic, key string, start, end int64) (value []byte, err error) {
	cl, err := s.client(
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(start)}}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), // without them the end could not be seen
	)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	for next := start; next < end; {
		fs := cl.PollFetches(ctx)
		if err := fs.Err(); err != nil {
			return nil, fmt.Errorf("read topic %s: %w", topic, err)
		}
		fs.EachRecord(func(r *kgo.Record) {
			if next = r.Offset + 1; !r.Attrs.IsControl() && r.Offset < end && string(r.Key) == key {
				value = r.Value
			}
		})
	}
	return value, nil
}

// entryRecord is the record that writes a marker.
func (s *Sink) entryRecord(m *marker.Marker, version int64, identity string) (*kgo.Record, error) {
	m.BaseSequence = version
	text, err := m.Encode()
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(entry{Format: entryFormat, Topic: identity, Version: version + 1, Marker: json.RawMessage(text)})
	if err != nil {
		return nil, fmt.Errorf("encode the marker's record: %w", err)
	}
	return &kgo.Record{Topic: s.markerTopic(), Key: []byte(m.QueryName), Value: b}, nil
}

// Facts implements sink.Sink.
func (s *Sink) Facts(ctx context.Context, queryName string) (sink.Facts, error) {
	if queryName != s.opts.Query {
		return sink.Facts{}, failure.New(failure.Config, "sink %s belongs to query %s, not %s", s.Name(), s.opts.Query, queryName)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var st *stored
	err := s.look(ctx, func(ctx context.Context) (err error) {
		st, err = s.readState(ctx, false)
		return err
	})
	if err != nil {
		return sink.Facts{}, s.explain(err, "read the marker of query "+queryName)
	}
	if !st.known() {
		return sink.Facts{}, nil
	}
	return sink.Facts{Exists: true, Identity: st.identity, Marker: st.marker, Others: st.others, HeadID: st.version, HeadSequence: st.version, Handle: st}, nil
}

// look is retry for what only reads: the producer stays.
func (s *Sink) look(ctx context.Context, f func(ctx context.Context) error) error {
	producer, state, open := s.producer, s.state, s.open
	s.producer = nil
	defer func() { s.producer, s.state, s.open = producer, state, open }()
	return s.retry(ctx, f)
}

// ensure makes the topics that are missing and gives the target's id.
func (s *Sink) ensure(ctx context.Context) (identity string, err error) {
	cl, err := s.client()
	if err != nil {
		return "", err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	partitions := s.opts.Partitions
	if partitions == 0 {
		partitions = -1 // the broker's default
	}
	compact := "compact"
	for _, t := range []struct {
		name       string
		partitions int32
		config     map[string]*string
	}{{s.opts.Topic, partitions, nil}, {s.markerTopic(), 1, map[string]*string{"cleanup.policy": &compact}}} {
		r, err := adm.CreateTopic(ctx, t.partitions, -1, t.config, t.name)
		if err == nil {
			err = r.Err
		}
		if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			return "", fmt.Errorf("make topic %s: %w", t.name, err)
		}
	}
	for {
		topics, err := adm.ListTopics(ctx, s.opts.Topic, s.markerTopic())
		if err != nil {
			return "", err
		}
		t, m := topics[s.opts.Topic], topics[s.markerTopic()]
		if t.Err == nil && m.Err == nil && len(t.Partitions) > 0 && len(m.Partitions) > 0 {
			if len(m.Partitions) != 1 {
				return "", failure.New(failure.Config, "topic %s holds the query's marker and must have one partition, it has %d", s.markerTopic(), len(m.Partitions))
			}
			return t.ID.String(), s.checkMarkerTopic(ctx, adm)
		}
		if err := s.opts.Clock.Sleep(ctx, metadataAge); err != nil {
			return "", err
		}
	}
}

// checkMarkerTopic refuses a marker topic that forgets: one that deletes by time
// or size instead of keeping the newest record of each key.
func (s *Sink) checkMarkerTopic(ctx context.Context, adm *kadm.Client) error {
	if policy := topicConfig(ctx, adm, s.markerTopic(), "cleanup.policy"); policy != "" && policy != "compact" {
		return failure.New(failure.Config, "topic %s holds the query's marker and has cleanup.policy=%s: it would forget it", s.markerTopic(), policy).
			WithHint("set cleanup.policy=compact on it")
	}
	return nil
}

// topicConfig is a setting of a topic, empty where it cannot be read.
func topicConfig(ctx context.Context, adm *kadm.Client, topic, key string) string {
	all, err := adm.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return ""
	}
	one, err := all.On(topic, nil)
	if err != nil {
		return ""
	}
	for _, c := range one.Configs {
		if c.Key == key {
			return c.MaybeValue()
		}
	}
	return ""
}

// messageBytes is the largest batch that the topic takes.
func (s *Sink) messageBytes(ctx context.Context, cl *kgo.Client) int32 {
	n, err := strconv.ParseInt(topicConfig(ctx, kadm.NewClient(cl), s.opts.Topic, "max.message.bytes"), 10, 32)
	if err != nil || n < recordOverhead {
		return defaultMessageBytes
	}
	return int32(n)
}

func isAuthorization(err error) bool {
	for _, e := range []error{kerr.TopicAuthorizationFailed, kerr.TransactionalIDAuthorizationFailed, kerr.ClusterAuthorizationFailed, kerr.SaslAuthenticationFailed} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
