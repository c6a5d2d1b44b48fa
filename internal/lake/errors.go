package lake

import "errors"

// ErrConflict says that a commit was certainly not made because the table is
// no longer the one that it was built on. It does not wrap the library's
// ErrCommitFailed on purpose: the library would replay the commit on the new
// head without asking whose marker stands there.
var ErrConflict = errors.New("the table has moved under the commit")

// ErrUnknown says that a commit may or may not have been made: only loading
// the table again can tell.
var ErrUnknown = errors.New("the outcome of the commit is unknown")

// ErrNoTable says that there is no such table in the catalog.
var ErrNoTable = errors.New("the table does not exist")

// ErrNoCatalog says that a catalog that is only to be read does not exist.
var ErrNoCatalog = errors.New("no table was made there")
