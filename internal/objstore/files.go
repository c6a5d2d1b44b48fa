package objstore

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weirlake/weir/internal/clock"
)

// This file is the algorithm of a store on a file system. Local runs it on
// the operating system's, Memory on one that can crash, so that what the
// crash tests prove of the one holds for the order of calls of the other.
//
// Invariants:
//
//   - A key is visible only once its whole contents are durable: contents are
//     written to a temporary file and fsynced before link or rename names it.
//   - When a write returns without error, the name is durable too: its
//     directory is fsynced, and so is the parent of every directory on the
//     way, once per process even where an earlier process made it (that one
//     may have been killed before its own fsync).
//   - "Already there" is answered only for what is durable: an entry that a
//     killed process linked but did not fsync is fsynced first.
//   - An error leaves the outcome unknown, never torn: asking again is safe.
//
// Rejected: O_CREAT|O_EXCL and write (tears), rename (overwrites another
// writer's object), O_TMPFILE (not on every file system).

// Bounds of the algorithm.
const (
	// createTries bounds how often a create starts again because its temporary
	// file or the object that was in the way was removed under it.
	createTries = 5
	// depthMax bounds List's descent, so that a loop of symbolic links ends.
	depthMax = 16
	// defaultTempAgeMax is how old a temporary file must be to be swept: far
	// older than any write takes. Sweeping a live one only makes its writer
	// try again.
	defaultTempAgeMax = 10 * time.Minute
)

// filesystem is what the algorithm needs. Paths are slash-separated and
// relative to the root, which is ".". Errors are those of io/fs and syscall.
type filesystem interface {
	// makeRoot makes the root and its missing parents, each durable.
	makeRoot() error
	rootExists() (bool, error)
	mkdir(dir string) error
	// create makes a new file for writing; it fails where one is there.
	create(name string) (file, error)
	link(from, to string) error
	rename(from, to string) error
	remove(name string) error
	read(name string) ([]byte, error)
	syncFile(name string) error
	syncDir(dir string) error
	list(dir string) ([]entry, error)
}

type file interface {
	Write(b []byte) (int, error)
	Sync() error
	Close() error
}

type entry struct {
	name     string
	dir      bool
	size     int64
	modified time.Time
}

// files is a Store on a filesystem.
type files struct {
	fs         filesystem
	location   string
	clock      clock.Clock
	tempAgeMax time.Duration

	mu sync.Mutex
	// rooted is true once the root was seen: from then on it is never made.
	rooted bool
	// ready are the directories that this process made durable and swept.
	ready map[string]bool
}

func newFiles(f filesystem, location string, c clock.Clock, tempAgeMax time.Duration) *files {
	if tempAgeMax <= 0 {
		tempAgeMax = defaultTempAgeMax
	}
	return &files{fs: f, location: location, clock: c, tempAgeMax: tempAgeMax, ready: map[string]bool{}}
}

// Location implements Store.
func (s *files) Location() string { return s.location }

// CreateOnce implements Store: temporary file, fsync, link, fsync directory.
func (s *files) CreateOnce(ctx context.Context, key string, data []byte) (bool, []byte, error) {
	if err := CheckKey(key); err != nil {
		return false, nil, err
	}
	const doing = "create once"
	dir := path.Dir(key)
	var last error
	for range createTries {
		if err := ctx.Err(); err != nil {
			return false, nil, err
		}
		temp, err := s.writeTemp(dir, data)
		if err != nil {
			return false, nil, classify(err, s.location, doing, key)
		}
		err = s.fs.link(temp, key)
		switch {
		case err == nil:
			err = s.fs.syncDir(dir)
			// Best effort: a temporary file that stays is swept later.
			_ = s.fs.remove(temp)
			if err != nil {
				return false, nil, classify(err, s.location, doing, key)
			}
			return true, nil, nil
		case errors.Is(err, fs.ErrExist):
			_ = s.fs.remove(temp)
			existing, err := s.readSettled(key)
			if err == nil {
				return false, existing, nil
			}
			if !isMissing(err) {
				return false, nil, classify(err, s.location, doing, key)
			}
			last = err // deleted between link and read: it can be ours now
		case isMissing(err):
			// Another process swept the temporary file, or the directory went.
			s.forget(dir)
			last = err
		default:
			_ = s.fs.remove(temp)
			return false, nil, classify(err, s.location, doing, key)
		}
	}
	return false, nil, classify(last, s.location, doing, key)
}

// Put implements Store: temporary file, fsync, rename, fsync directory.
func (s *files) Put(ctx context.Context, key string, data []byte) error {
	if err := CheckKey(key); err != nil {
		return err
	}
	const doing = "write"
	dir := path.Dir(key)
	var last error
	for range createTries {
		if err := ctx.Err(); err != nil {
			return err
		}
		temp, err := s.writeTemp(dir, data)
		if err != nil {
			return classify(err, s.location, doing, key)
		}
		err = s.fs.rename(temp, key)
		switch {
		case err == nil:
			return classify(s.fs.syncDir(dir), s.location, doing, key)
		case isMissing(err):
			s.forget(dir)
			last = err
		default:
			_ = s.fs.remove(temp)
			return classify(err, s.location, doing, key)
		}
	}
	return classify(last, s.location, doing, key)
}

// Get implements Store.
func (s *files) Get(ctx context.Context, key string) ([]byte, error) {
	if err := CheckKey(key); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b, err := s.fs.read(key)
	if err != nil {
		if isMissing(err) {
			err = ErrNotExist
		}
		return nil, classify(err, s.location, "read", key)
	}
	return b, nil
}

// Settle makes what is visible under key durable. A process that was killed
// between naming an object and fsyncing the directory leaves one that can be
// read and can still be lost with the power.
func (s *files) Settle(ctx context.Context, key string) error {
	if err := CheckKey(key); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	_, err := s.readSettled(key)
	if isMissing(err) {
		err = ErrNotExist
	}
	return classify(err, s.location, "settle", key)
}

// List implements Store.
func (s *files) List(ctx context.Context, prefix string) ([]Info, error) {
	if prefix != "" {
		if err := CheckKey(strings.TrimSuffix(prefix, "/")); err != nil {
			return nil, err
		}
	}
	start := "."
	if i := strings.LastIndex(prefix, "/"); i >= 0 {
		start = prefix[:i]
	}
	var out []Info
	if err := s.walk(ctx, start, 0, func(i Info) {
		if strings.HasPrefix(i.Key, prefix) {
			out = append(out, i)
		}
	}); err != nil {
		return nil, classify(err, s.location, "list", prefix)
	}
	slices.SortFunc(out, func(a, b Info) int { return strings.Compare(a.Key, b.Key) })
	return out, nil
}

func (s *files) walk(ctx context.Context, dir string, depth int, emit func(Info)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if depth > depthMax {
		return nil
	}
	entries, err := s.fs.list(dir)
	if isMissing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.name, tempPrefix) {
			continue
		}
		key := path.Join(dir, e.name)
		if !e.dir {
			emit(Info{Key: key, Size: e.size, Modified: e.modified})
			continue
		}
		if err := s.walk(ctx, key, depth+1, emit); err != nil {
			return err
		}
	}
	return nil
}

// Delete implements Store.
func (s *files) Delete(ctx context.Context, key string) error {
	if err := CheckKey(key); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	err := s.fs.remove(key)
	if isMissing(err) {
		return nil
	}
	if err == nil {
		err = s.fs.syncDir(path.Dir(key))
	}
	return classify(err, s.location, "delete", key)
}

// writeTemp leaves a durable temporary file with the contents in dir.
func (s *files) writeTemp(dir string, data []byte) (string, error) {
	var f file
	var name string
	for try := 0; ; try++ {
		if err := s.prepare(dir); err != nil {
			return "", err
		}
		name = path.Join(dir, tempPrefix+clock.Nonce())
		var err error
		if f, err = s.fs.create(name); err == nil {
			break
		}
		if !isMissing(err) || try > 0 {
			return "", err
		}
		// The directory was removed since it was prepared.
		s.forget(dir)
	}
	_, err := f.Write(data)
	if err == nil {
		// A failed fsync is final: the kernel may have dropped the pages, and
		// a second fsync of the same file would succeed without them.
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		_ = s.fs.remove(name)
		return "", err
	}
	return name, nil
}

// prepare makes dir and its parents durable, once per process, and sweeps the
// temporary files that killed processes left there.
func (s *files) prepare(dir string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready[dir] {
		return nil
	}
	there, err := s.fs.rootExists()
	if err != nil {
		return err
	}
	if s.rooted && !there {
		return ErrVanished
	}
	if !s.ready["."] {
		if err := s.fs.makeRoot(); err != nil {
			return err
		}
		s.rooted = true
		s.ready["."] = true
		s.sweep(".")
	}
	if dir == "." {
		return nil
	}
	at := "."
	for _, part := range strings.Split(dir, "/") {
		parent := at
		at = path.Join(at, part)
		if s.ready[at] {
			continue
		}
		if err := s.fs.mkdir(at); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := s.fs.syncDir(parent); err != nil {
			return err
		}
		s.ready[at] = true
		s.sweep(at)
	}
	return nil
}

// forget makes the next write prepare the directory and its parents again.
func (s *files) forget(dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d := dir; d != "."; d = path.Dir(d) {
		delete(s.ready, d)
	}
	if dir == "." {
		delete(s.ready, ".")
	}
}

// sweep removes old temporary files of dir; best effort.
func (s *files) sweep(dir string) {
	entries, err := s.fs.list(dir)
	if err != nil {
		return
	}
	now := s.clock.Now()
	for _, e := range entries {
		if !e.dir && strings.HasPrefix(e.name, tempPrefix) && now.Sub(e.modified) > s.tempAgeMax {
			_ = s.fs.remove(path.Join(dir, e.name))
		}
	}
}

// readSettled reads an object after making it durable. A read-only mount
// cannot be fsynced and loses nothing either.
func (s *files) readSettled(key string) ([]byte, error) {
	if err := s.fs.syncFile(key); err != nil && !errors.Is(err, syscall.EROFS) {
		return nil, err
	}
	if err := s.fs.syncDir(path.Dir(key)); err != nil && !errors.Is(err, syscall.EROFS) {
		return nil, err
	}
	return s.fs.read(key)
}

// isMissing also knows the error for a path through a file.
func isMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}
