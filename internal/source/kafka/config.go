package kafka

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirlake/weir/internal/broker"
	"github.com/weirlake/weir/internal/failure"
)

// Values of Config.StartingOffsets that are not JSON.
const (
	Earliest = "earliest"
	Latest   = "latest"
)

// Strategies of Config.StartingOffsetsByTimestampStrategy.
const (
	StrategyError  = "error"
	StrategyLatest = "latest"
)

// Offsets of a JSON in StartingOffsets that are not offsets, as in Spark.
const (
	offsetLatest   = -1
	offsetEarliest = -2
)

// UnreachableAfterDefault is how long a broker may be away before a plan or a
// read gives up with Unreachable.
const UnreachableAfterDefault = 2 * time.Minute

// Config of a Kafka source. Names are Spark's where Spark has one.
type Config struct {
	Client broker.Config
	// Topics to read; exclusive with TopicPattern.
	Topics []string
	// TopicPattern is a regular expression (RE2) that has to match a whole
	// topic name: subscribePattern. Internal topics never match.
	TopicPattern string
	// Partitions limits the source to some partitions of every topic:
	// "0-15,18". Empty means all, later ones included.
	Partitions string

	// StartingOffsets is where a fresh query starts: earliest (default),
	// latest, or {"topic":{"0":23,"1":-2,"2":-1}} with every partition named.
	StartingOffsets string
	// StartingTimestamp is milliseconds since 1970 for all partitions.
	StartingTimestamp string
	// StartingOffsetsByTimestamp is {"topic":{"0":1700000000000}}.
	StartingOffsetsByTimestamp string
	// StartingOffsetsByTimestampStrategy says what happens where no record is
	// that young: error (default) or latest.
	StartingOffsetsByTimestampStrategy string

	// TolerateDataLoss is failOnDataLoss: false. It forgives records that
	// retention removed, and nothing else.
	TolerateDataLoss bool
	// GroupID receives the offsets for lag tools; empty reports nothing.
	GroupID string
	// UnreachableAfter is how long a broker may be away; default 2 minutes.
	UnreachableAfter time.Duration
}

// partitionOffsets is Spark's JSON: topic, partition, offset or timestamp.
type partitionOffsets map[string]map[int32]int64

// settings is a validated Config.
type settings struct {
	pattern    *regexp.Regexp
	partitions []partitionRange // empty: all
	offsets    partitionOffsets // from StartingOffsets
	start      string           // Earliest, Latest or "" where one of the maps or millis is set
	millis     int64            // from StartingTimestamp, noMillis if none
	byMillis   partitionOffsets // from StartingOffsetsByTimestamp
	latestElse bool             // strategy latest
}

const noMillis = math.MinInt64

type partitionRange struct{ from, to int32 } // both included

func (s *settings) has(p int32) bool {
	if len(s.partitions) == 0 {
		return true
	}
	return slices.ContainsFunc(s.partitions, func(r partitionRange) bool { return r.from <= p && p <= r.to })
}

// Validate names every fault of the configuration at once.
func (c Config) Validate() error {
	_, err := c.parse()
	return err
}

func (c Config) parse() (*settings, error) {
	s := &settings{millis: noMillis}
	var faults []string
	add := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if err := c.Client.Validate(); err != nil {
		add("%s", err)
	}
	c.parseTopics(s, add)
	c.parseStart(s, add)
	if c.UnreachableAfter < 0 {
		add("unreachableAfter is negative")
	}
	if len(faults) > 0 {
		return nil, failure.New(failure.Config, "kafka source: %s", strings.Join(faults, "; "))
	}
	return s, nil
}

func (c Config) parseTopics(s *settings, add func(string, ...any)) {
	switch {
	case len(c.Topics) == 0 && c.TopicPattern == "":
		add("neither topics nor a topic pattern is given")
	case len(c.Topics) > 0 && c.TopicPattern != "":
		add("topics and a topic pattern exclude each other")
	case c.TopicPattern != "":
		re, err := regexp.Compile("^(?:" + c.TopicPattern + ")$")
		if err != nil {
			add("topic pattern: %v", err)
		}
		s.pattern = re
	}
	seen := map[string]bool{}
	for _, t := range c.Topics {
		if t == "" {
			add("a topic name is empty")
		}
		if seen[t] {
			add("topic %q is given twice", t)
		}
		seen[t] = true
	}
	ranges, err := parsePartitions(c.Partitions)
	if err != nil {
		add("partitions: %v", err)
	}
	s.partitions = ranges
}

func (c Config) parseStart(s *settings, add func(string, ...any)) {
	given := 0
	if c.StartingOffsets != "" {
		given++
		switch v := strings.ToLower(strings.TrimSpace(c.StartingOffsets)); v {
		case Earliest, Latest:
			s.start = v
		default:
			m, err := parsePartitionOffsets(c.StartingOffsets, offsetEarliest)
			if err != nil {
				add("startingOffsets: %v", err)
			}
			s.offsets = m
		}
	}
	if c.StartingTimestamp != "" {
		given++
		ms, err := strconv.ParseInt(strings.TrimSpace(c.StartingTimestamp), 10, 64)
		if err != nil || ms < 0 {
			add("startingTimestamp: %q is not a number of milliseconds since 1970", c.StartingTimestamp)
		}
		s.millis = ms
	}
	if c.StartingOffsetsByTimestamp != "" {
		given++
		m, err := parsePartitionOffsets(c.StartingOffsetsByTimestamp, 0)
		if err != nil {
			add("startingOffsetsByTimestamp: %v", err)
		}
		s.byMillis = m
	}
	switch {
	case given == 0:
		s.start = Earliest
	case given > 1:
		add("only one of startingOffsets, startingTimestamp and startingOffsetsByTimestamp can be given")
	}
	switch c.StartingOffsetsByTimestampStrategy {
	case "", StrategyError:
	case StrategyLatest:
		s.latestElse = true
	default:
		add("startingOffsetsByTimestampStrategy: %q is neither %s nor %s", c.StartingOffsetsByTimestampStrategy, StrategyError, StrategyLatest)
	}
}

// parsePartitions reads "0-15,18".
func parsePartitions(v string) ([]partitionRange, error) {
	if strings.TrimSpace(v) == "" {
		return nil, nil
	}
	var out []partitionRange
	for _, item := range strings.Split(v, ",") {
		lo, hi, ranged := strings.Cut(strings.TrimSpace(item), "-")
		if !ranged {
			hi = lo
		}
		from, err1 := strconv.ParseInt(strings.TrimSpace(lo), 10, 32)
		to, err2 := strconv.ParseInt(strings.TrimSpace(hi), 10, 32)
		if err1 != nil || err2 != nil || from < 0 || to < from {
			return nil, fmt.Errorf("%q is neither a partition nor a range like 0-15", item)
		}
		out = append(out, partitionRange{int32(from), int32(to)})
	}
	return out, nil
}

func parsePartitionOffsets(v string, least int64) (partitionOffsets, error) {
	var raw map[string]map[string]int64
	if err := json.Unmarshal([]byte(v), &raw); err != nil {
		return nil, fmt.Errorf(`want {"topic":{"0":23}}: %w`, err)
	}
	out := partitionOffsets{}
	for topic, parts := range raw {
		out[topic] = map[int32]int64{}
		for p, o := range parts {
			n, err := strconv.ParseInt(p, 10, 32)
			if err != nil || n < 0 {
				return nil, fmt.Errorf("%q is not a partition of topic %s", p, topic)
			}
			if o < least {
				return nil, fmt.Errorf("%s-%d: %d is less than %d", topic, n, o, least)
			}
			out[topic][int32(n)] = o
		}
	}
	return out, nil
}
