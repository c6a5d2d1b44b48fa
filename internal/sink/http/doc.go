// Package http is the sink that sends each batch to an HTTP API, in chunks of
// rows as NDJSON or as a JSON array.
//
// # What is promised
//
// At least once, and the same chunk always under the same Idempotency-Key:
// query id, batch id and the range of rows. A receiver that remembers keys, or
// the record key in each row, is exact; so is one that applies a chunk and the
// key in one transaction. See package foreachbatch for the record of deliveries,
// the fencing, and why a lost checkpoint stops the query.
//
// # Why the cut is written down
//
// A chunk's range is part of its key. A redelivery therefore has to cut the
// batch as the first delivery did, though chunkRows has been changed since, or
// the receiver's limit has. The note of the delivery record holds the cut: the
// settings before the first request, a split before its first half is sent, and
// a refused row before it is put aside.
//
// # What an answer means
//
//	2xx                       the chunk is applied
//	409 (settable)            it was applied before
//	413, more than one row    nothing is applied; the halves are sent
//	408, 425, 429, 5xx, no answer
//	                          unknown or not applied: sent again, after
//	                          Retry-After or a growing pause, up to a deadline;
//	                          then the query stops, safe to restart
//	3xx, 401, 403, 404, 405, 407, 410, 415
//	                          the URL or the credentials are wrong: stop
//	other 4xx                 the rows are refused and nothing of the chunk is
//	                          applied: stop, or find the refused rows by
//	                          bisection and put them aside
package http
