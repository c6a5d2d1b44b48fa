// Package sim runs the shipped engine in a world that is simulated from a seed:
// the disk, the catalog's pointers, the topic and the clock are this package's,
// everything above them (engine, checkpoint, operators, table source, sink,
// commit code) is what the binary runs.
//
// Every operation by which a process touches the world stops at a gate. When
// all goroutines of all processes wait (testing/synctest says so), the
// scheduler lets exactly one of them go on, and may kill the process before,
// within or after the operation, lose the answer, refuse it, suspend the
// process, cut the power of the whole world, or let virtual time pass. All of
// that comes from the seed, so a seed that fails can be run again:
//
//	go test ./internal/sim -run TestARandomSchedule -sim.seed N
//
// The disk forgets on a power cut what was not fsynced, and may keep torn parts
// of it (package objstore). The package has tests only.
//
// # Brokers
//
// The topic is either a table of numbers behind the source's interface, which
// is fast, or it is kept by two brokers (franz-go's kfake) and read by the
// shipped Kafka source through its client, over connections in memory. Then each
// answer of a broker stops at the gate. It may get lost with its connection, hold
// an error for one partition instead of records (not the leader, no such topic,
// offset out of range, wrong epoch …), or less than all the records that were
// there, cut within a batch. A broker may answer nothing for a while, or be
// killed; leaders move and epochs with them; transactions are committed and
// aborted; partitions are added. Where the fake brokers answer otherwise than
// Kafka does, the network mends it (brokers.mend).
//
// What repeats with a seed there, and what does not. The script repeats: at
// which decision what happens to the topic, its leaders and the brokers, and
// which answer of which kind to which process gets lost, refused or cut short.
// The order of the gates does in most seeds, not in all: the client asks from
// several goroutines, and goes through maps in an order that Go draws anew each
// time. A seed that fails fails again in most runs; try it a few times.
//
// Not in it: retention, compaction, a log that is truncated, a topic that is
// created again. In those a source has to stop or a record may rightly be gone;
// the source's own tests and weir prove have them.
package sim
