// Package checkpoint keeps what a query knows of itself between two runs, and
// decides from that and from the sinks' markers what a start has to do.
//
// The checkpoint is a folder (or an object-store prefix):
//
//	metadata              who it belongs to: query id, name, instance, sinks
//	offsets/N             the plan of batch N, written once, before it is read
//	commits/N             batch N is in every sink, written once, from the marker
//	staged/N              the files of batch N, before the first of several sinks commits
//	superseded/…          plans and commits that an adoption put aside
//	state/<operator>/…    operator state (package state)
//	lock                  the file lock of the running instance
//
// Each file starts with a line that names its format version ("v1"), then holds
// one JSON document with the query id in it.
//
// Who is authoritative: for what was delivered, the marker in the sink, which
// was written in the same commit as the rows. For what is about to be
// delivered, the plan: a batch that was planned is run as planned or not at
// all. commits/N is a convenience that the next start checks against the
// marker. So losing the folder loses no row and repeats none, as long as the
// sinks can be read (OutcomeAdopt).
//
// Three parts, kept apart: Log does the I/O of one file at a time, Log.Gather
// reads the folder into Facts without judging them, and Decide, a pure
// function, judges.
package checkpoint
