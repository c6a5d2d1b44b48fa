// Package kafka reads topics of a Kafka-compatible broker as a source.
//
// What it promises, and how:
//
//   - Exactly the records that a read_committed reader gets. Partitions are
//     assigned directly, without a consumer group; the consumer never resets
//     an offset by itself, and whatever it reports as data loss ends the query
//     as SourceChanged.
//   - The same range gives the same rows. A batch's end is the last stable
//     offset at most, so nothing before it can change its mind later.
//   - A range is read to its end even where its last offsets are transaction
//     markers or were compacted away: control records are fetched too, and
//     where nothing comes a probe asks the broker whether anything is left.
//   - Completeness is proved fetch by fetch: every fetch begins where the one
//     before it ended, and a broker refuses an offset below its log start
//     instead of skipping it. Retention that overtakes a plan is thus found
//     while reading. Retention that comes after the records were fetched lost
//     nothing and does not stop the query (comparing the log start with the
//     plan's start after the read would stop it for no reason, and the restart
//     would then find its position gone: a loss made by the check).
//
// The order of emitted rows: within a partition by offset, always. A batch of
// up to sortBytesMax is emitted in order of topic and partition too; in a larger
// one runs of different partitions follow each other as they were fetched,
// because waiting for one partition to end before the next is emitted would
// keep the whole batch in memory and the sink idle. A record batch may hold
// runs of several partitions.
//
// Memory: one record batch being built (chunkBytes), the records of one poll,
// one round of fetches behind it (fetchBytesTotal on the wire,
// fetchValueBytesTotal decompressed, over all brokers), and records beyond the batch's end up to pendingBytesMax.
package kafka
