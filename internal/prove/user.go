package prove

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/pipeline"
)

const (
	groupUser = "pipeline"

	// DefaultRecords is how many of the newest records of each topic are copied.
	DefaultRecords = 20_000
	// copyMax bounds the copying.
	copyMax = 3 * time.Minute
)

// User is a pipeline of the user's own that is proved on a copy.
type User struct {
	// File is its path; Pipeline what it says.
	File     string
	Pipeline *pipeline.Pipeline
	// Kafka reaches the cluster that the records are copied from. Nothing is
	// written there.
	Kafka []kgo.Opt
	// Records is how many of the newest records of each topic are copied; 0 is
	// DefaultRecords.
	Records int64

	copied map[string][]*kgo.Record
}

// userState is what the scenario of one query knows.
type userState struct {
	query   string
	records []copiedRecord // of all topics, in the order in which they are published
	next    int
	client  *kgo.Client
	killed  []string
	missed  []string
}

type copiedRecord struct {
	topic string
	rec   *kgo.Record
}

// scenarios are one for each query whose table can be counted.
func (u *User) scenarios() ([]Scenario, error) {
	var out []Scenario
	for _, q := range u.Pipeline.Queries {
		if q.To.Iceberg == nil && q.To.Delta == nil {
			continue
		}
		out = append(out, u.scenario(q))
	}
	if len(out) == 0 {
		return nil, failure.New(failure.Config, "%s has no query that writes a table: there is nothing to count", filepath.Base(u.File))
	}
	return out, nil
}

func (u *User) scenario(q pipeline.Query) Scenario {
	const kills = "publish, SIGKILL at a step, start again: at every step that the query has"
	return Scenario{
		Name: "pipeline-" + q.Name, Group: groupUser,
		Claim: fmt.Sprintf("Query %s of %s, killed at every step of its protocol and robbed of its checkpoints, leaves every table of the pipeline exact.", q.Name, filepath.Base(u.File)),
		Steps: []Step{
			{"copy records and make the isolated pipeline", func(ctx context.Context, e *Env) error { return u.prepare(ctx, e, q) }},
			{"publish a part, and run to the end", func(ctx context.Context, e *Env) error {
				st := e.state.(*userState)
				if err := st.publish(ctx, len(st.records)/4); err != nil {
					return err
				}
				_, err := e.runOnce(ctx)
				return err
			}},
			{kills, func(ctx context.Context, e *Env) error { return userKills(ctx, e) }},
			{"remove the checkpoints, publish the rest, and run to the end", func(ctx context.Context, e *Env) error {
				if err := os.RemoveAll(e.checkpointDir()); err != nil {
					return err
				}
				st := e.state.(*userState)
				if err := st.publish(ctx, len(st.records)); err != nil {
					return err
				}
				_, err := e.runOnce(ctx)
				return err
			}},
			{"count", userCount},
		},
		GuardAfter: kills,
		Guard: func(e *Env) string {
			if st := e.state.(*userState); len(st.killed) == 0 {
				return "no step was reached: " + strings.Join(st.missed, "; ")
			}
			return ""
		},
		Expect: func(e *Env) []Check {
			return []Check{{"tables_that_are_not_exact", "tables that are not exact", ""}, {"audit", "audit of the pipeline", audit.Exact}}
		},
	}
}

// prepare copies records into topics of the scenario's own and writes the
// pipeline file of the copy.
func (u *User) prepare(ctx context.Context, e *Env, q pipeline.Query) error {
	st := &userState{query: q.Name}
	e.state = st
	if err := u.copy(ctx); err != nil {
		return err
	}
	names := map[string]string{}
	for topic, recs := range u.copied {
		partitions := int32(1)
		for _, r := range recs {
			partitions = max(partitions, r.Partition+1)
			st.records = append(st.records, copiedRecord{e.topic(topic), r})
		}
		if err := e.createTopic(ctx, topic, partitions); err != nil {
			return err
		}
		names[topic] = e.topic(topic)
	}
	// Each partition keeps its order: times only grow where they did before.
	slices.SortStableFunc(st.records, func(a, b copiedRecord) int {
		if a.topic == b.topic && a.rec.Partition == b.rec.Partition {
			return int(a.rec.Offset - b.rec.Offset)
		}
		return a.rec.Timestamp.Compare(b.rec.Timestamp)
	})
	if len(st.records) == 0 {
		return failure.New(failure.Inconclusive, "the topics of %s hold no records to copy", filepath.Base(u.File))
	}
	var err error
	if st.client, err = kgo.NewClient(kgo.SeedBrokers(e.broker.bootstrap...), kgo.RecordPartitioner(kgo.ManualPartitioner())); err != nil {
		return err
	}
	e.cleanup = append(e.cleanup, st.client.Close)
	left, err := u.isolate(e.dir, e.broker.bootstrap, names)
	e.remarks = append(e.remarks, left...)
	e.remarks = append(e.remarks, fmt.Sprintf("%d records were copied, the newest of each topic", len(st.records)))
	return err
}

// copy reads the newest records of every topic, once for all scenarios.
func (u *User) copy(ctx context.Context) error {
	if u.copied != nil {
		return nil
	}
	if u.Records <= 0 {
		u.Records = DefaultRecords
	}
	ctx, cancel := context.WithTimeout(ctx, copyMax)
	defer cancel()
	cl, err := kgo.NewClient(append(u.Kafka[:len(u.Kafka):len(u.Kafka)], kgo.FetchIsolationLevel(kgo.ReadCommitted()))...)
	if err != nil {
		return failure.Wrap(failure.Config, err, "Kafka client of %s", filepath.Base(u.File))
	}
	defer cl.Close()
	topics, err := u.topics(ctx, kadm.NewClient(cl))
	if err != nil {
		return err
	}
	copied := map[string][]*kgo.Record{}
	for _, topic := range topics {
		if copied[topic], err = u.newest(ctx, cl, topic); err != nil {
			return failure.Wrap(failure.Unreachable, err, "read the newest records of topic %s", topic)
		}
	}
	u.copied = copied
	return nil
}

// topics are those that the queries read, patterns resolved.
func (u *User) topics(ctx context.Context, admin *kadm.Client) (out []string, err error) {
	all, err := admin.ListTopics(ctx)
	if err != nil {
		return nil, failure.Wrap(failure.Unreachable, err, "list the topics of %s", filepath.Base(u.File))
	}
	for _, q := range u.Pipeline.Queries {
		if q.From.Kafka == nil {
			continue
		}
		for _, t := range all.Sorted() {
			if matchesTopic(q.From.Kafka, t.Topic) && !slices.Contains(out, t.Topic) {
				out = append(out, t.Topic)
			}
		}
	}
	if len(out) == 0 {
		return nil, failure.New(failure.Config, "none of the topics of %s exists", filepath.Base(u.File))
	}
	return out, nil
}

// newest reads the last records of a topic, shared over its partitions.
func (u *User) newest(ctx context.Context, cl *kgo.Client, topic string) ([]*kgo.Record, error) {
	admin := kadm.NewClient(cl)
	starts, err := admin.ListStartOffsets(ctx, topic)
	if err != nil {
		return nil, err
	}
	ends, err := admin.ListCommittedOffsets(ctx, topic) // the last stable offsets
	if err != nil {
		return nil, err
	}
	share := max(u.Records/int64(max(len(ends[topic]), 1)), 1)
	from, left := map[int32]kgo.Offset{}, map[int32]int64{}
	for p, end := range ends[topic] {
		at := max(starts[topic][p].Offset, end.Offset-share)
		if at < end.Offset {
			from[p], left[p] = kgo.NewOffset().At(at), end.Offset
		}
	}
	cl.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: from})
	defer cl.PurgeTopicsFromConsuming(topic)
	var out []*kgo.Record
	for len(left) > 0 {
		// Offsets without a record at the end keep a partition waiting: it is
		// given up after a pause without any.
		pause, cancel := context.WithTimeout(ctx, 3*time.Second)
		fetched := cl.PollFetches(pause)
		cancel()
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if fetched.NumRecords() == 0 {
			if errors.Is(fetched.Err(), context.DeadlineExceeded) {
				break
			}
			return nil, fetched.Err()
		}
		fetched.EachRecord(func(r *kgo.Record) {
			if end, ok := left[r.Partition]; ok && r.Offset < end {
				out = append(out, r)
				if r.Offset == end-1 {
					delete(left, r.Partition)
				}
			}
		})
	}
	return out, nil
}

// isolate writes the copy's pipeline file: the user's own, with a catalog,
// warehouse, checkpoints and topics of the scenario's, and without what acts on
// the world outside. left says what was left out.
func (u *User) isolate(dir string, brokers []string, names map[string]string) (left []string, err error) {
	raw, err := os.ReadFile(u.File)
	if err != nil {
		return nil, err
	}
	doc := map[string]any{}
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return nil, fmt.Errorf("read %s again: %w", u.File, err)
	}
	for _, key := range []string{"ingest", "gold", "checks", "jobs", "alerts", "stores"} {
		if _, ok := doc[key]; ok {
			left = append(left, fmt.Sprintf("%s of the pipeline file is left out", key))
			delete(doc, key)
		}
	}
	doc["catalog"] = map[string]any{"type": "sql", "name": "weir", "uri": "sqlite:" + filepath.Join(dir, "catalog.db")}
	doc["warehouse"] = filepath.Join(dir, "warehouse")
	doc["checkpointLocation"] = filepath.Join(dir, "checkpoints")
	doc["kafka"] = map[string]any{"bootstrapServers": brokers}
	doc["status"] = map[string]any{"listen": "none"}
	queries, _ := doc["queries"].([]any)
	var kept []any
	for i, one := range queries {
		q, ok := one.(map[string]any)
		if !ok || i >= len(u.Pipeline.Queries) {
			continue
		}
		def := u.Pipeline.Queries[i]
		if def.To.Iceberg == nil && def.To.Delta == nil {
			left = append(left, fmt.Sprintf("query %s writes outside and is left out", def.Name))
			continue
		}
		delete(q, "checkpointLocation")
		isolateQuery(dir, def, q, names)
		kept = append(kept, q)
	}
	doc["queries"] = kept
	b, err := yaml.Marshal(doc)
	if err != nil {
		return left, err
	}
	path := filepath.Join(dir, queriesFileName)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		return left, err
	}
	if _, faults := pipeline.Load(path, os.LookupEnv); len(faults) > 0 {
		return left, failure.Wrap(failure.Inconclusive, faults[0], "the isolated copy of %s is refused", filepath.Base(u.File))
	}
	return left, nil
}

func isolateQuery(dir string, def pipeline.Query, q map[string]any, names map[string]string) {
	if from, ok := q["from"].(map[string]any); ok && def.From.Kafka != nil {
		if k, ok := from["kafka"].(map[string]any); ok {
			topics := []string{}
			for topic, own := range names {
				if matchesTopic(def.From.Kafka, topic) {
					topics = append(topics, own)
				}
			}
			slices.Sort(topics)
			for _, key := range []string{"topicPattern", "startingOffsetsByTimestamp", "startingTimestamp", "partitions", "groupId"} {
				delete(k, key)
			}
			k["topics"], k["startingOffsets"] = topics, pipeline.Earliest
		}
	}
	to, _ := q["to"].(map[string]any)
	if d, ok := to["delta"].(map[string]any); ok {
		if _, ok := d["path"]; ok {
			d["path"] = filepath.Join(dir, "delta", def.Name)
		}
	}
}

// publish sends the records up to a place.
func (st *userState) publish(ctx context.Context, to int) error {
	to = min(to, len(st.records))
	var recs []*kgo.Record
	for ; st.next < to; st.next++ {
		c := st.records[st.next]
		recs = append(recs, &kgo.Record{Topic: c.topic, Partition: c.rec.Partition, Key: c.rec.Key, Value: c.rec.Value, Headers: c.rec.Headers, Timestamp: c.rec.Timestamp})
	}
	if err := st.client.ProduceSync(ctx, recs...).FirstErr(); err != nil {
		return failure.Wrap(failure.Unreachable, err, "publish the copied records")
	}
	return nil
}

// userKills kills the query at each of its steps, one after the other.
func userKills(ctx context.Context, e *Env) error {
	st := e.state.(*userState)
	points := fault.Points()
	for i, p := range points {
		if !ofBatch(p) {
			continue
		}
		// What is left after the first quarter, but for a last part.
		from := len(st.records) / 4
		if err := st.publish(ctx, from+(len(st.records)*9/10-from)*(i+1)/len(points)); err != nil {
			return err
		}
		proc, why, err := e.hold(ctx, st.query+"/"+p.Name, 1, "run", e.path(queriesFileName), "--once")
		if err != nil {
			return err
		}
		if proc == nil {
			if why = strings.SplitN(why, "\n", 2)[0]; why != "the armed run ended with exit 0" {
				return violated("%s, armed at %s: %s", st.query, p.Name, why)
			}
			st.missed = append(st.missed, p.Name)
			continue
		}
		if err := proc.kill9(); err != nil {
			return err
		}
		e.kills++
		e.mark("kill", "process", 0, "SIGKILL at "+p.Name)
		st.killed = append(st.killed, p.Name)
		if _, err := e.runOnce(ctx); err != nil {
			return err
		}
	}
	e.observed["killed_at"] = strings.Join(st.killed, ", ")
	if len(st.missed) > 0 {
		e.remarks = append(e.remarks, "steps that the query does not have, or that these records did not bring about: "+strings.Join(st.missed, ", "))
	}
	return nil
}

// userCount asks the audit, which shares no code with what is counted.
func userCount(ctx context.Context, e *Env) error {
	report, err := e.auditPipeline(ctx)
	if err != nil {
		return err
	}
	var wrong []string
	e.observed["audit"] = audit.Exact
	for _, t := range report.Tables {
		e.observed["rows_of_"+t.Table] = t.Rows
		if t.Outcome != audit.Exact {
			wrong = append(wrong, t.Table+": "+findings(t))
			e.observed["audit"] = t.Outcome
		}
	}
	e.observed["tables_that_are_not_exact"] = strings.Join(wrong, "; ")
	return nil
}

// matchesTopic reports whether a query reads the topic.
func matchesTopic(k *pipeline.KafkaSource, topic string) bool {
	if k.TopicPattern == "" {
		return slices.Contains(k.Topics, topic)
	}
	re, err := regexp.Compile("^(?:" + k.TopicPattern + ")$")
	return err == nil && re.MatchString(topic)
}
