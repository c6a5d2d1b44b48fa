package pipeline

// Size is a number of bytes: 4096, 64KiB, 20MB.
type Size int64

// Millis is a point in time in milliseconds since 1970 UTC.
type Millis int64

// Partitions is a set of partition numbers as ascending, disjoint ranges.
type Partitions []PartitionRange

// PartitionRange is From to To, both included.
type PartitionRange struct{ From, To int32 }

// Contains reports whether the set holds partition p; the empty set holds all.
func (ps Partitions) Contains(p int32) bool {
	for _, r := range ps {
		if r.From <= p && p <= r.To {
			return true
		}
	}
	return len(ps) == 0
}

// Starting offset modes.
const (
	Earliest = "earliest"
	Latest   = "latest"
	// Specific is the mode where Offsets lists topics and partitions.
	Specific = "specific"
)

// Offsets with a meaning of their own in StartingOffsets.Offsets, as in Spark.
const (
	OffsetLatest   = int64(-1)
	OffsetEarliest = int64(-2)
)

// StartingOffsets is where a fresh query begins.
type StartingOffsets struct {
	// Mode is Earliest, Latest or Specific.
	Mode string
	// Offsets is by topic and partition; OffsetEarliest and OffsetLatest stand
	// for the log's ends.
	Offsets map[string]map[int32]int64
}
