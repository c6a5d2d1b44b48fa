// Package pebblestate keeps the memory of operators in a Pebble database in a local
// folder, for state that is larger than memory.
//
// The folder is scratch. What counts is the chain of snapshots and deltas that the
// commit's marker vouches for (package state); the folder only spares the reading of
// it. Each operator has its own range of keys:
//
//	<operator> 0 k <key>             due time (8 bytes, big endian), value
//	<operator> 0 d <due time> <key>  nothing: the index by due time
//	<operator> 0 m                   the operator's meta: which version this is
//
// Invariants:
//   - what one Settle writes is one Pebble batch, the meta included: the range holds
//     one version whole, and says which, or it says none;
//   - a range without meta is being loaded, and may be cut into batches; it is
//     emptied before anything else is made of it;
//   - every key stands once in the index, under the due time of its record.
//
// A Settle is synced: without that the end of Pebble's log stays in the process, and
// the versions in it are lost with a kill. What is lost all the same, by a machine
// without power whose disk lies, is the end of the log: what is left is an older
// version, whole. The start compares the version with the chain: where it is in it,
// only the deltas after it are read; anything else empties the range.
package pebblestate
