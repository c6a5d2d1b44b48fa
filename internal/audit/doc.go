// Package audit counts, independently, whether a table holds exactly the
// records of its Kafka topic.
//
// It shares no code with the engine, the sinks, the checkpoint, the operators
// or the shared table access (a test holds that): a mistake there must not be
// able to hide itself here. Table metadata is read with encoding/json and a
// plain Avro reader, data files column by column with the low-level Parquet
// readers, Kafka with raw fetch requests.
//
// What is judged. The truth is the set of offsets that a read_committed reader
// of the topic gets in [log start, end). End is the offset vector that the
// pinned snapshot (or the markers in the same metadata) says was reached, or
// one that the caller gives. Offsets below the log start can no longer be
// compared: they are checked for duplicates, and gaps there are reported as
// unverifiable, never as exact or as lost.
//
// An audit pins one metadata file. When the catalog has moved on by the end,
// the audit begins again, a bounded number of times; after that it stands only
// if the newer metadata descends from the pinned snapshot.
//
// Memory is bounded: offsets are kept as bitmaps (50 million contiguous
// offsets are about 7 MB), event ids as 16-byte digests in several passes of
// at most maxIDsPerPass each.
package audit
