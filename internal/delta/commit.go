package delta

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/objstore"
)

// Limits bound a commit.
type Limits struct {
	// Conflicts is how often another writer may take the version.
	Conflicts int
	// Errors is how often the storage may fail.
	Errors int
}

// DefaultLimits are the limits of a zero Limits.
func DefaultLimits() Limits { return Limits{Conflicts: 500, Errors: 20} }

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	if l.Conflicts <= 0 {
		l.Conflicts = d.Conflicts
	}
	if l.Errors <= 0 {
		l.Errors = d.Errors
	}
	return l
}

const (
	pauseMin = 2 * time.Millisecond
	pauseMax = 500 * time.Millisecond
)

// Build makes the actions of a commit on a snapshot. It is called once for
// every version that the commit is tried on, and checks on each what it relies
// on: transaction markers before all. Version NoVersion means that there is no
// table. An error ends the commit and is returned as it is.
type Build func(ctx context.Context, s *Snapshot) ([]Action, error)

// Reads says what a commit has read, and so what another commit may not have
// changed meanwhile. The zero value is a blind append: nothing was read but the
// table's shape, and Build has looked at that again.
type Reads struct {
	// Base is the version that was read; its successors are looked through.
	Base int64
	// Files are the paths that the commit replaces: a concurrent removal of one
	// is a conflict.
	Files map[string]bool
	// Added is asked about data files that others added meanwhile; true means
	// that it may hold rows that the commit should have read. nil for a commit
	// that changes no rows.
	Added func(*Add) bool
	// Shape makes a concurrent change of protocol or metadata a conflict, where
	// Build cannot adapt staged files to it.
	Shape bool
}

func (r Reads) blind() bool { return len(r.Files) == 0 && r.Added == nil && !r.Shape }

// ErrConflict says that another commit changed what a commit had read. Nothing
// was committed; the work has to be done again on the new version.
var ErrConflict = errors.New("the table changed under the commit")

// CommitOptions of Commit.
type CommitOptions struct {
	Operation  string
	Parameters map[string]any
	// Metrics are operationMetrics; Extra is commitInfo's weir object.
	Metrics map[string]any
	Extra   map[string]string
	Reads   Reads
	Limits  Limits
	// Nonce names the commit; made up where empty. A commit with the same nonce
	// is taken for this one.
	Nonce string
	// Before is called when the actions are built and nothing is written yet.
	Before func(s *Snapshot)
	// Info may change commitInfo before it is written; may be nil.
	Info func(s *Snapshot, i *CommitInfo)
}

// Result of a commit that was made.
type Result struct {
	Version  int64
	Snapshot *Snapshot
	// Found is true where the answer to the commit was lost and the commit was
	// found in the log.
	Found     bool
	Conflicts int
}

// GaveUp is the error of a commit that used up its limits.
type GaveUp struct {
	Conflicts int
	Errors    int
	// Unknown is true where a try failed and the log could not be read since:
	// the commit may have been made.
	Unknown bool
	Cause   error
}

// Error implements error.
func (g *GaveUp) Error() string {
	what := "nothing was committed"
	if g.Unknown {
		what = "the outcome is unknown"
	}
	return fmt.Sprintf("%s after %d errors and %d conflicts: %v", what, g.Errors, g.Conflicts, g.Cause)
}

// Unwrap gives the last error.
func (g *GaveUp) Unwrap() error { return g.Cause }

// Commit makes one version of the table. Every try reads the newest version,
// checks it against Reads, builds, and makes the version after it create-once.
func Commit(ctx context.Context, t *Table, build Build, o CommitOptions) (Result, error) {
	o.Limits = o.Limits.withDefaults()
	if o.Nonce == "" {
		o.Nonce = clock.Nonce()
	}
	c := &commit{t: t, build: build, o: o, tried: NoVersion, checked: o.Reads.Base}
	for n := 1; ; n++ {
		r, err := c.try(ctx)
		if r != nil {
			t.maintainLog(context.WithoutCancel(ctx), r.Snapshot)
			return *r, nil
		}
		var again *tryAgain
		if !errors.As(err, &again) {
			return Result{}, err
		}
		if c.errors >= o.Limits.Errors || c.conflicts >= o.Limits.Conflicts || c.pause(ctx, n) != nil {
			return Result{}, &GaveUp{Conflicts: c.conflicts, Errors: c.errors, Unknown: c.unknown, Cause: again.cause}
		}
	}
}

// Again wraps an error of a Build after which the commit may be tried again: the
// storage failed, not the judgement.
func Again(err error) error { return &tryAgain{err} }

// tryAgain wraps the error of a try that may be repeated.
type tryAgain struct{ cause error }

func (e *tryAgain) Error() string { return e.cause.Error() }
func (e *tryAgain) Unwrap() error { return e.cause }

type commit struct {
	t     *Table
	build Build
	o     CommitOptions

	conflicts, errors int
	// tried is the version whose creation failed with an error: it may be ours.
	tried   int64
	unknown bool
	// checked is the version up to which commits were held against Reads.
	checked int64
}

func (c *commit) pause(ctx context.Context, n int) error { return c.t.pause(ctx, n, c.o.Nonce) }

// pause waits longer with every try; a first conflict is tried again at once.
// Writers that lost together must not come back together: the nonce spreads
// them over the second half of the pause.
func (t *Table) pause(ctx context.Context, n int, nonce string) error {
	if n <= 1 {
		return ctx.Err()
	}
	d := min(pauseMin<<min(n-2, 10), pauseMax)
	spread := time.Duration(nonce[len(nonce)-1]%16) * d / 32
	return t.opts.Clock.Sleep(ctx, d/2+spread)
}

func (c *commit) fail(err error) error {
	var classified *failure.Error
	if errors.As(err, &classified) && classified.Class != failure.Unreachable {
		return err
	}
	c.errors++
	return &tryAgain{err}
}

func (c *commit) try(ctx context.Context) (*Result, error) {
	t := c.t
	read := t.opts.Clock.Now()
	s, err := t.refresh(ctx)
	if err != nil {
		return nil, c.fail(err)
	}
	if r, err := c.found(ctx, s); r != nil || err != nil {
		return r, err
	}
	if err := c.check(ctx, s); err != nil {
		return nil, err
	}
	actions, err := c.build(ctx, s)
	if err != nil {
		var again *tryAgain
		if errors.As(err, &again) {
			return nil, c.fail(again.cause)
		}
		return nil, err
	}
	if err := t.guard(s, actions); err != nil {
		return nil, err
	}
	if c.o.Before != nil {
		c.o.Before(s)
	}
	if err := c.settle(ctx, s); err != nil {
		return nil, c.fail(err)
	}
	return c.create(ctx, s, c.info(s, actions), read)
}

// found looks for our commit in a version whose creation ended in an error.
func (c *commit) found(ctx context.Context, s *Snapshot) (*Result, error) {
	if c.tried == NoVersion {
		return nil, nil
	}
	if s.Version < c.tried {
		c.unknown = false // it is not there; the next try asks for the same version
		return nil, nil
	}
	actions, err := c.t.CommitAt(ctx, c.tried)
	if err != nil && !errors.Is(err, ErrNoVersion) {
		return nil, c.fail(err)
	}
	if i := infoOf(actions); i != nil && i.TxnID == c.o.Nonce {
		return &Result{Version: c.tried, Snapshot: s, Found: true, Conflicts: c.conflicts}, nil
	}
	c.conflicts++
	c.tried, c.unknown = NoVersion, false
	return nil, nil
}

// check holds what others committed since against what this commit read.
func (c *commit) check(ctx context.Context, s *Snapshot) error {
	if s.Version >= 0 {
		if err := checkProtocol(c.t.Location(), s.Protocol, s.Metadata); err != nil {
			return err
		}
		if err := checkSettings(c.t.Location(), s.Metadata); err != nil {
			return err
		}
	}
	r := c.o.Reads
	if r.blind() {
		return nil
	}
	for path := range r.Files {
		if _, ok := s.File(path); !ok {
			return fmt.Errorf("%w: data file %s was removed", ErrConflict, path)
		}
	}
	for v := c.checked + 1; v <= s.Version; v++ {
		actions, err := c.t.CommitAt(ctx, v)
		if errors.Is(err, ErrNoVersion) {
			return fmt.Errorf("%w: version %d has been cleaned up", ErrConflict, v)
		}
		if err != nil {
			return c.fail(err)
		}
		for _, a := range actions {
			switch {
			case r.Shape && (a.Metadata != nil || a.Protocol != nil):
				return fmt.Errorf("%w: version %d changed its protocol or metadata", ErrConflict, v)
			case a.Add != nil && a.Add.DataChange && r.Added != nil && r.Added(a.Add):
				return fmt.Errorf("%w: version %d added %s", ErrConflict, v, a.Add.Path)
			}
		}
	}
	c.checked = s.Version
	return nil
}

// guard refuses actions that the table's settings forbid.
func (t *Table) guard(s *Snapshot, actions []Action) error {
	if s.Version == NoVersion {
		return nil
	}
	for _, a := range actions {
		if a.Remove != nil && a.Remove.DataChange && s.Metadata.Configuration[PropAppendOnly] == "true" {
			return failure.New(failure.Config, "Delta table %s is append-only (%s): rows cannot be changed or deleted", t.Location(), PropAppendOnly)
		}
	}
	return nil
}

// settle makes the commit durable that ours will stand on, where another engine
// wrote it: not every engine fsyncs.
func (c *commit) settle(ctx context.Context, s *Snapshot) error {
	if s.Version < 0 || s.head == nil {
		return nil
	}
	err := c.t.storage.Settle(ctx, commitKey(s.Version))
	if errors.Is(err, objstore.ErrNotExist) {
		return nil // cleaned up; a checkpoint holds it
	}
	return err
}

// info puts commitInfo in front of the actions.
func (c *commit) info(s *Snapshot, actions []Action) []Action {
	i := &CommitInfo{Timestamp: max(c.t.nowMillis(), s.Timestamp), Operation: c.o.Operation, OperationParameters: c.o.Parameters,
		OperationMetrics: c.o.Metrics, EngineInfo: c.t.opts.Engine, TxnID: c.o.Nonce, Weir: c.o.Extra,
		IsolationLevel: "WriteSerializable"}
	if s.Version >= 0 {
		read := s.Version
		i.ReadVersion = &read
	}
	blind := c.o.Reads.blind()
	i.IsBlindAppend = &blind
	if c.o.Info != nil {
		c.o.Info(s, i)
	}
	return slices.Concat([]Action{{CommitInfo: i}}, actions)
}

// create makes the version after s.
func (c *commit) create(ctx context.Context, s *Snapshot, actions []Action, read time.Time) (*Result, error) {
	t := c.t
	body, err := encodeCommit(actions)
	if err != nil {
		return nil, err
	}
	version := s.Version + 1
	if !t.recent(read) {
		// The process slept since it read the version: read again.
		c.errors++
		return nil, &tryAgain{fmt.Errorf("version %d of Delta table %s was read too long ago", s.Version, t.Location())}
	}
	created, existing, err := t.storage.CreateOnce(ctx, commitKey(version), body)
	if err != nil {
		c.tried, c.unknown = version, true
		return nil, c.fail(fmt.Errorf("commit version %d of Delta table %s: %w", version, t.Location(), err))
	}
	found := false
	if !created {
		theirs, err := decodeCommit(existing)
		if err != nil {
			return nil, t.corrupt(version, err)
		}
		if i := infoOf(theirs); i == nil || i.TxnID != c.o.Nonce {
			c.conflicts++
			return nil, &tryAgain{fmt.Errorf("version %d of Delta table %s was committed by another writer", version, t.Location())}
		}
		// An earlier try of ours whose answer was lost: what it said counts.
		found, body, actions = true, existing, theirs
	}
	if !t.recent(read) {
		if err := c.verifyLate(ctx, version, body); err != nil {
			return nil, err
		}
	}
	after, err := s.apply(version, actions, body)
	if err != nil {
		return nil, t.corrupt(version, err)
	}
	t.keep(after)
	return &Result{Version: version, Snapshot: after, Found: found, Conflicts: c.conflicts}, nil
}

// verifyLate handles a creation that took longer than versions are trusted: the
// process may have slept while others committed the same version, wrote a
// checkpoint and cleaned it up, so that the name was free again. Such a commit
// lies before the newest checkpoint with a gap after it, no reader sees it, and
// it is taken away again.
func (c *commit) verifyLate(ctx context.Context, version int64, body []byte) error {
	t := c.t
	list, err := t.storage.List(ctx, logFolder)
	if err != nil {
		c.tried, c.unknown = version, true
		return c.fail(t.unreachable(err))
	}
	newest, newestCheckpoint, next := int64(-1), int64(-1), false
	for _, i := range list {
		v, _, parts, ok := logFile(i.Key)
		switch {
		case !ok:
		case parts > 0:
			newestCheckpoint = max(newestCheckpoint, v)
		default:
			newest = max(newest, v)
			next = next || v == version+1
		}
	}
	if next || (newest == version && newestCheckpoint <= version) {
		return nil // what follows, follows on it
	}
	if err := t.storage.Delete(ctx, commitKey(version)); err != nil {
		return c.fail(err)
	}
	c.conflicts++
	return &tryAgain{fmt.Errorf("version %d of Delta table %s had been committed and cleaned up (%d bytes taken back)", version, t.Location(), len(body))}
}

// newID makes a table's identity.
func newID() string { return uuid.NewString() }
