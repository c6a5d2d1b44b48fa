// Package event reads one JSON document strictly and in a single pass.
//
// A Program is a set of compiled JSON paths. A Scanner walks a document once,
// without building a tree, checks all of it against RFC 8259 (every byte, not
// only the extracted fields) and notes where the values of the paths stand.
// Decoding a value (string, integer, time) is a separate, lazy step.
//
// What is refused, each with its own reason: anything that is not one JSON
// text, invalid UTF-8, escapes that name half a surrogate pair, a key that
// occurs twice in one object (compared by its decoded bytes, at every level),
// and nesting beyond a limit. A byte order mark is not JSON. An escaped NUL is
// an ordinary character.
//
// Rejected: a general decoder (encoding/json folds key case and lets the last
// duplicate win; the fast decoders accept some invalid documents), and a hash
// as the only comparison of keys.
package event

import "fmt"

// Reason is a stable code for what is wrong with a document or a value. The
// codes are stored in dead-letter tables; users query them.
type Reason string

// The reasons.
const (
	// OK is the absence of a fault.
	OK Reason = ""

	InvalidJSON      Reason = "invalid_json"
	InvalidUTF8      Reason = "invalid_utf8"
	LoneSurrogate    Reason = "lone_surrogate"
	DuplicateKey     Reason = "duplicate_key"
	TooDeep          Reason = "too_deep"
	NumberOutOfRange Reason = "number_out_of_range"
	TypeMismatch     Reason = "type_mismatch"
	BadTimestamp     Reason = "bad_timestamp"
)

// Error says why a document was refused and where.
type Error struct {
	Reason Reason
	// Offset is the byte at which it was noticed.
	Offset int
	// Detail is for people; it is valid UTF-8 and short.
	Detail string
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("%s at byte %d: %s", e.Reason, e.Offset, e.Detail)
}
