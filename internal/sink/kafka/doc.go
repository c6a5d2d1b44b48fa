// Package kafka is the sink over a topic: exactly once for a read_committed
// reader.
//
// # What Kafka remembers
//
// The marker is the newest committed record of a compacted topic of the query's
// own, <topic>.weir.<query>. It is produced in the same transaction as the rows, so
// that a read_committed reader sees both or neither.
//
// One marker topic per query, because a reader cannot see past another's open
// transaction: in a shared one a query that hangs would hide the markers of all.
// Those of other queries into the topic are found by the name's prefix.
//
// # Fencing
//
// Every start takes the transactional id of (query, topic) with InitProducerID.
// That ends whatever transaction an older process has open, and keeps it from
// committing another; so what is read of the marker topic after it cannot move
// unless somebody takes the id again. A process that was fenced does not know by
// whom: it takes the id back, reads the marker, and finds a newer epoch there, and
// stops; whoever was in possession finds its transaction aborted, takes the id,
// finds its own epoch, and does the batch again. The marker decides, never the
// producer's epoch.
//
// # Outcomes of a commit
//
// After any error the client is given up: it could heal itself and go on in a new
// transaction without the marker having been read. A new one takes the id, which
// waits for a commit that was on its way, and reads the marker.
//
// # Refused rows
//
// A row whose record is larger than the topic takes (max.message.bytes), known
// before it is sent.
package kafka
