package delta

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/objstore"
)

const (
	logFolder      = "_delta_log/"
	lastCheckpoint = logFolder + "_last_checkpoint"
	versionDigits  = 20

	// trustedFor is how long a version that was read, or that was committed, may
	// be taken for one whose successor has not been cleaned up: far less than any
	// log retention. Beyond it the log is listed. Without this a process that
	// slept through the retention would find version+1 free again.
	trustedFor = time.Hour
)

// ErrNoTable says that there is no Delta table in the folder.
var ErrNoTable = errors.New("no Delta table")

func commitKey(version int64) string {
	return fmt.Sprintf("%s%0*d.json", logFolder, versionDigits, version)
}

func checkpointKey(version int64) string {
	return fmt.Sprintf("%s%0*d.checkpoint.parquet", logFolder, versionDigits, version)
}

// logFile tells what a file of the log is; parts is 0 for a commit.
func logFile(key string) (version int64, part, parts int, ok bool) {
	name := strings.TrimPrefix(key, logFolder)
	if len(name) < versionDigits+1 || name[versionDigits] != '.' {
		return 0, 0, 0, false
	}
	version, err := strconv.ParseInt(name[:versionDigits], 10, 64)
	if err != nil {
		return 0, 0, 0, false
	}
	rest := name[versionDigits+1:]
	switch {
	case rest == "json":
		return version, 0, 0, true
	case rest == "checkpoint.parquet":
		return version, 1, 1, true
	}
	words := strings.Split(rest, ".")
	if len(words) != 4 || words[0] != "checkpoint" || words[3] != "parquet" {
		return 0, 0, 0, false
	}
	part, err1 := strconv.Atoi(words[1])
	parts, err2 := strconv.Atoi(words[2])
	return version, part, parts, err1 == nil && err2 == nil && part >= 1 && part <= parts
}

// Options of a Table.
type Options struct {
	Clock clock.Clock
	// Engine stands in engineInfo of every commit.
	Engine string
	// Warn is told what went wrong without harm to the commit: a log checkpoint
	// or a clean-up that the next commit makes up for. May be nil.
	Warn func(error)
}

// Table reads and writes one table. It is safe for concurrent use and keeps the
// last snapshot that it has seen.
type Table struct {
	storage Storage
	opts    Options

	mu     sync.Mutex
	last   *Snapshot
	lastAt time.Time // when it was read
}

// Open gives access to a table folder; nothing is read yet, and the table need
// not exist.
func Open(s Storage, o Options) *Table {
	if o.Clock == nil {
		o.Clock = clock.System{}
	}
	if o.Engine == "" {
		o.Engine = "weir"
	}
	if o.Warn == nil {
		o.Warn = func(error) {}
	}
	return &Table{storage: s, opts: o}
}

// Location is the table's folder, for messages.
func (t *Table) Location() string { return t.storage.Location() }

// Storage is the table's folder.
func (t *Table) Storage() Storage { return t.storage }

func (t *Table) nowMillis() int64 { return t.opts.Clock.Now().UnixMilli() }

// Snapshot reads the newest version, or ErrNoTable.
func (t *Table) Snapshot(ctx context.Context) (*Snapshot, error) {
	s, err := t.refresh(ctx)
	if err != nil {
		return nil, err
	}
	if s.Version == NoVersion {
		return nil, fmt.Errorf("%w in %s", ErrNoTable, t.Location())
	}
	return s, checkProtocol(t.Location(), s.Protocol, s.Metadata)
}

// refresh reads the newest version; without a table the version is NoVersion.
func (t *Table) refresh(ctx context.Context) (*Snapshot, error) {
	t.mu.Lock()
	last := t.last
	if !t.recent(t.lastAt) {
		last = nil
	}
	t.mu.Unlock()
	s, err := t.forward(ctx, last)
	if err != nil {
		return nil, err
	}
	t.keep(s)
	return s, nil
}

// keep remembers the newest snapshot.
func (t *Table) keep(s *Snapshot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last, t.lastAt = s, t.opts.Clock.Now()
}

func (t *Table) recent(at time.Time) bool {
	age := t.opts.Clock.Now().Sub(at)
	return age > -trustedFor && age < trustedFor
}

// forward reads what follows a snapshot that was read before, or everything
// where that version is no longer the same.
func (t *Table) forward(ctx context.Context, last *Snapshot) (*Snapshot, error) {
	if last != nil && last.Version >= 0 && last.head != nil {
		body, err := t.storage.Get(ctx, commitKey(last.Version))
		if err == nil && bytes.Equal(body, last.head) {
			return t.replay(ctx, last, -1)
		}
		if err != nil && !errors.Is(err, objstore.ErrNotExist) {
			return nil, t.unreachable(err)
		}
	}
	return t.load(ctx, -1)
}

func (t *Table) unreachable(err error) error {
	var classified *failure.Error
	if errors.As(err, &classified) {
		return err
	}
	return fmt.Errorf("read the log of Delta table %s: %w", t.Location(), err)
}

// replay applies the commits after s, up to and including version upTo, or all
// for a negative upTo.
func (t *Table) replay(ctx context.Context, s *Snapshot, upTo int64) (*Snapshot, error) {
	for v := s.Version + 1; upTo < 0 || v <= upTo; v++ {
		body, err := t.storage.Get(ctx, commitKey(v))
		if errors.Is(err, objstore.ErrNotExist) {
			break
		}
		if err != nil {
			return nil, t.unreachable(err)
		}
		actions, err := decodeCommit(body)
		if err == nil {
			s, err = s.apply(v, actions, body)
		}
		if err != nil {
			return nil, t.corrupt(v, err)
		}
	}
	return s, nil
}

func (t *Table) corrupt(version int64, err error) error {
	return failure.Wrap(failure.Checkpoint, err, "Delta table %s: version %d of its log cannot be read", t.Location(), version).
		WithHint("restore the file from a backup; if it is the newest one and cut off, the engine that wrote it did not make it durable, and removing it takes the table back by one commit")
}

// load reads the table from its newest usable checkpoint, up to and including
// version upTo, or all for a negative upTo.
func (t *Table) load(ctx context.Context, upTo int64) (*Snapshot, error) {
	if upTo < 0 {
		s, err := t.loadHinted(ctx)
		if s != nil || err != nil {
			return s, err
		}
	}
	list, err := t.storage.List(ctx, logFolder)
	if err != nil {
		return nil, t.unreachable(err)
	}
	commits, first, newest := map[int64]bool{}, int64(-1), int64(-1)
	found := map[int64]map[int]int{} // checkpoint version → parts → seen
	for _, i := range list {
		v, _, parts, ok := logFile(i.Key)
		switch {
		case !ok || (upTo >= 0 && v > upTo):
		case parts == 0:
			commits[v] = true
			newest = max(newest, v)
			if first < 0 || v < first {
				first = v
			}
		default:
			if found[v] == nil {
				found[v] = map[int]int{}
			}
			found[v][parts]++
		}
	}
	if len(commits) == 0 && len(found) == 0 {
		return noTable(), nil
	}
	s, err := t.fromCheckpoints(ctx, found)
	if err != nil {
		return nil, err
	}
	if s == nil {
		if !commits[0] {
			return nil, t.corrupt(0, errors.New("no checkpoint can be read and the first commit is gone"))
		}
		s = noTable()
	}
	s, err = t.replay(ctx, s, upTo)
	if err != nil {
		return nil, err
	}
	if s.Version < newest {
		return nil, t.corrupt(s.Version+1, fmt.Errorf("it is missing, but version %d is there", newest))
	}
	if upTo >= 0 && s.Version != upTo {
		return nil, fmt.Errorf("%w: version %d of Delta table %s", ErrNoVersion, upTo, t.Location())
	}
	return t.whole(s)
}

// ErrNoVersion says that a version was never committed or that its log has been
// cleaned up.
var ErrNoVersion = errors.New("no such version")

// whole refuses a state without protocol or metadata.
func (t *Table) whole(s *Snapshot) (*Snapshot, error) {
	if s.Version >= 0 && (s.Protocol == nil || s.Metadata == nil) {
		return nil, t.corrupt(s.Version, errors.New("the log has no protocol or no metadata up to it"))
	}
	return s, nil
}

// fromCheckpoints reads the newest whole checkpoint, nil if there is none.
func (t *Table) fromCheckpoints(ctx context.Context, found map[int64]map[int]int) (*Snapshot, error) {
	var last error
	for len(found) > 0 {
		v := int64(-1)
		for k := range found {
			v = max(v, k)
		}
		for parts, seen := range found[v] {
			if seen < parts {
				continue
			}
			s, err := t.readCheckpoint(ctx, v, parts)
			if err == nil {
				return s, nil
			}
			if ctx.Err() != nil {
				return nil, err
			}
			last = err
		}
		delete(found, v)
	}
	if last != nil {
		t.opts.Warn(last)
	}
	return nil, nil
}

// hint is _last_checkpoint.
type hint struct {
	Version       int64 `json:"version"`
	Size          int64 `json:"size"`
	Parts         *int  `json:"parts,omitempty"`
	SizeInBytes   int64 `json:"sizeInBytes,omitempty"`
	NumOfAddFiles int64 `json:"numOfAddFiles,omitempty"`
}

func (t *Table) readHint(ctx context.Context) (h hint, ok bool, err error) {
	b, err := t.storage.Get(ctx, lastCheckpoint)
	if errors.Is(err, objstore.ErrNotExist) {
		return h, false, nil
	}
	if err != nil {
		return h, false, t.unreachable(err)
	}
	return h, json.Unmarshal(b, &h) == nil, nil
}

// loadHinted avoids listing the log: the hint names a checkpoint, commits
// follow without a gap. An old hint only means more commits to read; a wrong one
// is ignored (nil). It is only taken where the last commit that it leads to is
// recent: after an old one, younger commits may have been cleaned up behind a
// checkpoint that the hint does not know.
func (t *Table) loadHinted(ctx context.Context) (*Snapshot, error) {
	h, ok, err := t.readHint(ctx)
	if err != nil || !ok {
		return nil, err
	}
	parts := 1
	if h.Parts != nil {
		parts = *h.Parts
	}
	s, err := t.readCheckpoint(ctx, h.Version, parts)
	if err != nil {
		return nil, ctx.Err()
	}
	// Commits after an old hint may have been cleaned up behind a newer
	// checkpoint; then only the list tells.
	body, err := t.storage.Get(ctx, commitKey(h.Version))
	switch {
	case err == nil:
		s.head = body
	case errors.Is(err, objstore.ErrNotExist):
		return nil, nil
	default:
		return nil, t.unreachable(err)
	}
	if s, err = t.replay(ctx, s, -1); err != nil {
		return nil, err
	}
	if i, err := t.storage.Stat(ctx, commitKey(s.Version)); err != nil || !t.recent(i.Modified) {
		return nil, ctx.Err()
	}
	return t.whole(s)
}

// SnapshotAt reads an older version, or ErrNoVersion.
func (t *Table) SnapshotAt(ctx context.Context, version int64) (*Snapshot, error) {
	if version < 0 {
		return nil, fmt.Errorf("%w: version %d of Delta table %s", ErrNoVersion, version, t.Location())
	}
	s, err := t.load(ctx, version)
	if err != nil {
		return nil, err
	}
	if s.Version != version {
		return nil, fmt.Errorf("%w: version %d of Delta table %s", ErrNoVersion, version, t.Location())
	}
	return s, checkProtocol(t.Location(), s.Protocol, s.Metadata)
}

// CommitAt reads the actions of one commit, or ErrNoVersion where it was cleaned
// up.
func (t *Table) CommitAt(ctx context.Context, version int64) ([]Action, error) {
	body, err := t.storage.Get(ctx, commitKey(version))
	if errors.Is(err, objstore.ErrNotExist) {
		return nil, fmt.Errorf("%w: version %d of Delta table %s", ErrNoVersion, version, t.Location())
	}
	if err != nil {
		return nil, t.unreachable(err)
	}
	actions, err := decodeCommit(body)
	if err != nil {
		return nil, t.corrupt(version, err)
	}
	return actions, nil
}

// infoOf is the commitInfo of a commit, nil if it has none.
func infoOf(actions []Action) *CommitInfo {
	for _, a := range actions {
		if a.CommitInfo != nil {
			return a.CommitInfo
		}
	}
	return nil
}

func millis(t time.Time) int64 { return t.UnixMilli() }
