// Package erase takes rows out of a table on purpose (legal erasure), while its
// queries run.
//
// # One commit
//
// The files that hold such rows are written again without them, and exchanged in
// one commit that asserts the head which they were found on. The same commit adds
// to the table property of declared deletes (package marker) what was taken: the
// erasure's id and the offsets of exactly those rows. So no reader sees rows gone
// that are not declared, or declared that are not gone; and an erasure that is
// repeated after a crash or a lost answer finds its id and does nothing.
//
// A table of which nothing is taken gets the commit as well. It moves the head,
// and a query that is about to commit rows which it read before the erasure finds
// the id, and reads them again (package sink/iceberg). That holds because tables
// are gone through in the order in which rows flow: what is read again is gone
// above.
//
// # What it races with
//
// Appends add files that hold later offsets: what was written is kept, the commit
// is tried again. A compaction takes files away that were read: everything is
// read again. A compaction that was prepared before finds its files gone and
// gives up (package maintain).
package erase
