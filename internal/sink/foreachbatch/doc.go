// Package foreachbatch is the sink that hands each batch to a function of the
// user's.
//
// # What is promised
//
// At least once, and always the same: a batch that was handed over and is not
// known to be done comes again under the same query id and batch id, with the
// same rows in the same order. A function that keys what it writes on these two
// is exact. No sink can promise more for a function whose effects it cannot
// see.
//
// # What is written down
//
// A record of deliveries, beside the checkpoint and not in it, so that it
// outlives the checkpoint: numbered files, each made create-once after the one
// before it was read. The newest one counts.
//
//	claim   a start, with its epoch: whoever read the record before it fails
//	begun   batch N is about to be handed over
//	done    the function has returned for batch N, without an error and with
//	        the right number of rows
//
// A crash before begun, or between begun and done, hands N over again (the plan
// is in the checkpoint). A crash after done and before commits/N does not: the
// record is asked first. A batch without rows is done without being handed over.
//
// # Why the record is no marker
//
// It is written after the function has returned, not in one step with what the
// function did. So nothing is adopted from it: with the checkpoint the plan of
// the batch under way is lost, and the same id would come with other rows, which
// a receiver that knows the id drops. A query whose checkpoint knows less than
// its record therefore stops. See package checkpoint, SinkFacts.Record.
//
// # Fencing
//
// A run that was overtaken is refused at its next look at the record: before it
// hands a batch over, and after. A function that is running in the meantime
// cannot be called back; it has the same ids and rows as its successor, and the
// epoch, for a store that can compare it.
package foreachbatch
