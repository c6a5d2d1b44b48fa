// Package failure is the closed set of error classes that a user, a supervisor
// or a script can act on. Each class has one exit code; the codes are part of
// the public contract and listed in docs/REFERENCE.md.
package failure

import (
	"errors"
	"fmt"
)

// Class says what kind of failure an error is, and so what to do about it.
type Class int

// The classes, in the order of their exit codes.
const (
	Runtime        Class = 1  // anything else; safe to restart
	Config         Class = 2  // usage or configuration; do not restart
	SourceChanged  Class = 3  // source data loss or a changed source
	Mismatch       Class = 4  // audit mismatch, or a proof that was violated
	Fenced         Class = 5  // another instance holds the query
	CommitUnknown  Class = 6  // commit outcome unknown after the deadline
	Checkpoint     Class = 7  // checkpoint missing, incompatible or corrupt, or sink rewound
	Unreachable    Class = 8  // store, catalog or broker unreachable past the deadline; safe to restart
	SchemaConflict Class = 9  // schema conflict or dead-letter limit
	Inconclusive   Class = 10 // a proof whose fault did not land where it was meant to
)

// String is the class's name as it stands in logs and JSON.
func (c Class) String() string {
	switch c {
	case Config:
		return "configuration"
	case SourceChanged:
		return "source-changed"
	case Mismatch:
		return "mismatch"
	case Fenced:
		return "fenced"
	case CommitUnknown:
		return "commit-unknown"
	case Checkpoint:
		return "checkpoint"
	case Unreachable:
		return "unreachable"
	case SchemaConflict:
		return "schema-conflict"
	case Inconclusive:
		return "inconclusive"
	default:
		return "runtime"
	}
}

// Retry says that starting the same command again is safe and may help. For the
// other classes somebody has to decide or to change something first.
func (c Class) Retry() bool {
	switch c {
	case Runtime, CommitUnknown, Unreachable, Inconclusive:
		return true
	default:
		return false
	}
}

// Error is a classified error: what happened, to what, and the way out.
type Error struct {
	Class Class
	// Message names the thing that failed and what is wrong with it.
	Message string
	// Hint is the way out: a command, a setting, a place to look. May be empty.
	Hint string
	// Cause is the wrapped error, if any.
	Cause error
}

// Error implements error; the hint follows on its own line.
func (e *Error) Error() string {
	s := e.Message
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	if e.Hint != "" {
		s += "\n  hint: " + e.Hint
	}
	return s
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Cause }

// New makes a classified error.
func New(c Class, format string, args ...any) *Error {
	return &Error{Class: c, Message: fmt.Sprintf(format, args...)}
}

// Wrap classifies err, with what was being done to what.
func Wrap(c Class, err error, format string, args ...any) *Error {
	return &Error{Class: c, Message: fmt.Sprintf(format, args...), Cause: err}
}

// WithHint returns the error with the way out set.
func (e *Error) WithHint(format string, args ...any) *Error {
	out := *e
	out.Hint = fmt.Sprintf(format, args...)
	return &out
}

// ClassOf is the class of the outermost classified error in err's chain,
// Runtime where there is none.
func ClassOf(err error) Class {
	var e *Error
	if errors.As(err, &e) {
		return e.Class
	}
	return Runtime
}

// Is reports whether err is classified as c.
func Is(err error, c Class) bool {
	var e *Error
	return errors.As(err, &e) && e.Class == c
}
