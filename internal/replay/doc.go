// Package replay is a local stand-in for Wikimedia's EventStreams: a seeded
// generator of events in the shape of recentchange, and a server that sends
// them, or a file's, as server-sent events with the habits and the faults of
// the real service.
//
// # What is deterministic
//
// A Generator is a pure function of its configuration: frame n has the same
// bytes in every process, and is computed without computing the ones before
// it. So a server that was killed goes on where its client asks, a verifier in
// another process knows what must have arrived, and Counts says how many
// events of which kind the first n frames hold, without reading them.
//
// # Words
//
//   - A frame is one message of the stream, numbered from 0 in stream order.
//   - A base event is an ordinary one. Base events come in loops of SampleSize,
//     each with exactly SampleEditNew edits and new pages; every loop has fresh
//     ids.
//   - Specials stand between base events, spread over blocks of BlockSize base
//     events: canaries, contract violations, duplicates (an earlier event once
//     more), late events (fresh, with an event time long past).
//   - An event is a frame that is not a duplicate.
//
// # Positions
//
// The position of a frame is a time in milliseconds, as in EventStreams: the
// frame's id names position + 1 for the data centre in use and offset -1 for
// the other. Positions repeat and, for a small share of frames, go backwards.
// A resume at time t begins at the first frame with a position of at least t,
// in stream order, and goes on from there: what a Kafka look-up by time does.
// Late and resent events have the position of their arrival.
package replay
