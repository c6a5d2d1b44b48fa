package pebblestate

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/operator"
)

// Options of a folder.
type Options struct {
	// Dir is the folder; it is made where it is missing, and everything in it is
	// Pebble's.
	Dir string
	// Query is whose state it is: for messages and crash points.
	Query string
	// CacheBytes bounds what Pebble keeps in memory: blocks and memtables.
	CacheBytes int64
	Logger     *slog.Logger
}

// Shares of the memory.
const (
	// memTables is how many memtables there are at most: one is written to, the
	// others are being flushed.
	memTables       = 2
	memTableShare   = 8
	memTableMin     = 1 << 20
	memTableMax     = 64 << 20
	blockCacheMin   = 1 << 20
	openFilesMax    = 256
	filterBitsAKey  = 10
	l0CompactionAt  = 4
	l0StopWritesAt  = 24
	targetFileBytes = 8 << 20
)

// Folder is one query's database. It is opened with the first use of one of its
// stores and closed by any of them.
type Folder struct {
	opts Options
	// mu guards db: operators of a query are used by one goroutine, the page
	// that shows their sizes by another.
	mu     sync.Mutex
	db     *pebble.DB
	lock   *pebble.Lock
	stores []*store
	// doubtful says that reading failed: the folder is emptied before it is used
	// again.
	doubtful bool
}

// New makes a folder; nothing is opened yet.
func New(opts Options) *Folder {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	return &Folder{opts: opts}
}

// Store gives the store of an operator.
func (f *Folder) Store(operatorName string) operator.KeyStore {
	s := newStore(f, operatorName)
	f.stores = append(f.stores, s)
	return s
}

// open gives the database.
func (f *Folder) open() (*pebble.DB, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.db != nil {
		return f.db, nil
	}
	if err := os.MkdirAll(f.opts.Dir, 0o755); err != nil {
		return nil, f.unusable(err)
	}
	lock, err := pebble.LockDirectory(f.opts.Dir, vfs.Default)
	if err != nil {
		return nil, failure.Wrap(failure.Fenced, err, "query %s: the folder of its state, %s, is in use by another process", f.opts.Query, f.opts.Dir).
			WithHint("stop the other one, or give this one another folder: state.folder")
	}
	if f.doubtful {
		if err := f.empty(); err != nil {
			return nil, errors.Join(f.unusable(err), lock.Close())
		}
	}
	db, err := f.openLocked(lock)
	if err != nil {
		// Scratch that cannot be read is emptied, and filled from the checkpoint.
		f.opts.Logger.Warn("the folder of the state cannot be opened; it is emptied", "query", f.opts.Query, "folder", f.opts.Dir, "error", err)
		if err := f.empty(); err != nil {
			return nil, errors.Join(f.unusable(err), lock.Close())
		}
		if db, err = f.openLocked(lock); err != nil {
			return nil, errors.Join(f.unusable(err), lock.Close())
		}
	}
	f.db, f.lock, f.doubtful = db, lock, false
	return db, nil
}

func (f *Folder) unusable(err error) error {
	return failure.Wrap(failure.Config, err, "query %s: the folder of its state, %s", f.opts.Query, f.opts.Dir).
		WithHint("state.folder names a local folder that this user may write to")
}

func (f *Folder) openLocked(lock *pebble.Lock) (*pebble.DB, error) {
	table := uint64(min(max(f.opts.CacheBytes/memTableShare, memTableMin), memTableMax))
	cache := pebble.NewCache(max(f.opts.CacheBytes-memTables*int64(table), blockCacheMin))
	defer cache.Unref()
	opts := &pebble.Options{
		Lock: lock, Cache: cache, MemTableSize: table, MemTableStopWritesThreshold: memTables,
		FormatMajorVersion: pebble.FormatNewest, MaxOpenFiles: openFilesMax,
		L0CompactionThreshold: l0CompactionAt, L0StopWritesThreshold: l0StopWritesAt,
		Logger: logger{f},
	}
	opts.TargetFileSizes[0] = targetFileBytes
	for i := range opts.Levels {
		opts.Levels[i].FilterPolicy = bloom.FilterPolicy(filterBitsAKey)
	}
	opts.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionFastest })
	db, err := pebble.Open(f.opts.Dir, opts)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", f.opts.Dir, err)
	}
	return db, nil
}

// empty removes what is in the folder, but for the lock.
func (f *Folder) empty() error {
	entries, err := os.ReadDir(f.opts.Dir)
	for _, e := range entries {
		if e.Name() != "LOCK" {
			err = errors.Join(err, os.RemoveAll(filepath.Join(f.opts.Dir, e.Name())))
		}
	}
	return err
}

// Close closes the database. Its stores are then as after a Reset.
func (f *Folder) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.db == nil {
		return nil
	}
	for _, s := range f.stores {
		s.forget()
	}
	err := errors.Join(f.db.Close(), f.lock.Close())
	f.db, f.lock = nil, nil
	if err != nil {
		return fmt.Errorf("close %s: %w", f.opts.Dir, err)
	}
	return nil
}

// bytes is the memory of blocks and memtables.
func (f *Folder) bytes() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.db == nil {
		return 0
	}
	m := f.db.Metrics()
	return m.BlockCache.Size + int64(m.MemTable.Size)
}

// failed says what went wrong; the folder is not trusted afterwards.
func (f *Folder) failed(err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.doubtful = true
	return failure.Wrap(failure.Unreachable, err, "query %s: the state in %s", f.opts.Query, f.opts.Dir)
}

// logger passes on what Pebble has to say that a person should know.
type logger struct{ f *Folder }

func (l logger) Infof(string, ...any) {}

func (l logger) Errorf(format string, args ...any) {
	l.f.opts.Logger.Warn("state folder: "+fmt.Sprintf(format, args...), "query", l.f.opts.Query, "folder", l.f.opts.Dir)
}

// Fatalf ends the process, as Pebble demands it where its log cannot be written.
// That is a crash like any other: the folder is scratch.
func (l logger) Fatalf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "weir: query %s: the state in %s cannot be written: %s\n", l.f.opts.Query, l.f.opts.Dir, fmt.Sprintf(format, args...))
	os.Exit(int(failure.Unreachable))
}
