// Package engine runs a streaming query: the numbered protocol, and nothing
// else. It is the only package that sees a source, sinks and a checkpoint
// together.
//
// # Starting
//
//	lock    the checkpoint's file lock; another instance's live marker refuses
//	decide  a pure function of checkpoint facts, markers and source facts
//	claim   every sink: our epoch, committed as a zero-file snapshot
//
// The claim moves each table's head, so every commit that was prepared before
// it fails on the head that it asserts: that, not the lock, is what fences a
// zombie. Fencing therefore works when the checkpoint folder is gone.
//
// # One micro-batch
//
// batch.go holds the steps in this order, top to bottom. The names are those
// of the crash points (package fault) and of docs/PROTOCOL.md.
//
//	1 plan       offsets/N, create-once        after commits/N-1 is durable
//	2 read       rows of [start, end)          after 1
//	3 transform  rows, counters, watermark     no clock but the plan's batch time
//	4 stage      data files, state version N   durable, referenced by nothing
//	             sum check                     read = emitted + filtered +
//	                                           duplicate + late + dead-lettered,
//	                                           rows in files = rows emitted
//	5 commit     side sinks, then the main     rows and marker in one step,
//	                                           asserting the head; unknown
//	                                           outcomes are resolved by reading
//	6 done       commits/N, create-once        after 5 in every sink
//	7 report     progress row, group offset    never read back
//
// A crash before 5 leaves orphans and a plan: the batch is run again with the
// same id, offsets, batch time and watermark. A crash after the main sink's
// commit and before 6 is found by the marker: commits/N is written from it.
// A crash between two sinks runs the sinks that lack N.
//
// # Stopping
//
// A stop that arrives before 5 abandons the batch (the plan stays, the next
// start runs it again). From 5 on the batch is finished first, under a
// deadline of its own. A stop never tears a batch.
package engine
