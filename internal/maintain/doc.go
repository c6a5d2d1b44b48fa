// Package maintain keeps Iceberg tables small, readable and clean while they are
// written: it expires snapshots, puts small files together, merges manifests and
// removes files that nothing refers to any more.
//
// # Between the batches
//
// Care.Step is called by a table's writer between two of its batches. What one
// step does is bounded (Limits), so that the next commit is never late; what is
// left over is done by the steps that follow. The files that take the place of
// small ones are written while batches go on, and only their commit (Settle) stands
// between two of them. Every change is a commit that
// asserts the head it was prepared on, so a step that loses against another
// writer did nothing, and a writer that loses against a step tries again as
// after any other conflict. No step changes a row or moves a marker.
//
// # Removing files
//
// A file is removed only when it is known that nobody can need it again:
//
//   - no snapshot of the table's metadata reaches it, whatever branch or tag or
//     slow reader keeps that snapshot;
//   - it has been so for the grace period, which is meant to be longer than any
//     reader reads one snapshot;
//   - the head has moved since it was first found unreachable. A writer that is
//     about to commit a file asserts the head that it looked at before, so it
//     fails, looks again and finds the file too old (package sink/iceberg);
//   - a data file that was never in the table, the orphan of an attempt, is also
//     older than the orphan age, and no checkpoint holds it as staged.
//
// Files outside of the table's own metadata and data folders are never looked at.
package maintain
