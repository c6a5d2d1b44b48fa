// Package delta is the sink over a Delta table.
//
// # What the table remembers
//
// Each commit of a query carries its marker as txn actions, which Delta keeps
// in its log checkpoints for ever. A txn is a name and a whole number:
//
//	weir/<query id>                              batch id
//	weir/<query id>/epoch                        number of the epoch
//	weir/<query id>/pos/<topic id>/<partition>   next offset
//	weir/<query id>/watermark                    microseconds
//	weir/<query id>/name/<query name>            number of the epoch; of two lineages
//	                                             under one name the greater one is current
//	weir/<query id>/commit                       version of the commit that wrote them
//	weir/<query id>/marker                       first 8 bytes of the SHA-256 of the
//	                                             whole marker
//
// The whole marker (attempt, plan hash, state files, …) does not fit into
// numbers. It lies beside the table as _weir/<query id>/<batch>-<hash>.json,
// durable before the commit that names it by its hash, and once more in the
// commit's own commitInfo, which lives as long as the commit's file does. The
// numbers decide: a marker that contradicts them is refused. See
// docs/adr/0010-delta-markers.md.
//
// # Why a claim fences
//
// A commit makes version v+1 create-once after reading v, and on every retry
// reads all txn actions again. A claim is a commit of nothing but txn actions: it
// takes v+1, so whoever prepared v+1 before it fails, reads again, and meets the
// newer epoch.
//
// # Outcomes of a commit
//
// As in package sink/iceberg: after any error the table is read again and
// asked. A data file is never deleted here.
//
// # Going backwards
//
// RESTORE leaves txn actions as they are and takes the rows away: the one way
// in which the marker and the rows of a Delta table part. It is a commit of its
// own, looked for between the marker's commit and the head.
package delta
