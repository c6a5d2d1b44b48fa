package maintain

import (
	"context"
	"time"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/lake"
)

// Defaults.
const (
	DefaultTargetBytes = 64 << 20
	DefaultMinFiles    = 8
	DefaultGrace       = time.Hour
	DefaultOrphanAge   = 7 * 24 * time.Hour
	// DefaultListEvery is how often the folders are listed for files that nobody
	// remembers: those of attempts that died, and those that were waiting to be
	// removed when the process ended.
	DefaultListEvery = 6 * time.Hour
	// smallManifests is from how many small manifests on they are merged, within
	// one class of size: well below the hundred at which a commit merges them by
	// itself and is slower for it.
	smallManifests = 16
)

// Limits bound one step.
type Limits struct {
	// StepBytes are the bytes of data files that are written again.
	StepBytes int64
	// StepFiles are the data files that are replaced.
	StepFiles int
	// Reads are the manifests and manifest lists that are read.
	Reads int
	// Removes are the files that are removed.
	Removes int
	// StepTime is from when on nothing further is begun.
	StepTime time.Duration
	// ManifestBytes is the size of a table's metadata tree above which its files
	// are only put together by hand: the commit reads all of it.
	ManifestBytes int64
}

// DefaultLimits keep a step well below a second on a local disk.
func DefaultLimits() Limits {
	return Limits{StepBytes: 64 << 20, StepFiles: 1_000, Reads: 400, Removes: 1_000, StepTime: 500 * time.Millisecond, ManifestBytes: 64 << 20}
}

// Settings say what is done to a table. The zero value does everything, with
// the defaults.
type Settings struct {
	Retention lake.Retention
	// OldestReader, if set, gives the sequence number of the oldest snapshot that
	// a reader of the table still needs, 0 for none.
	OldestReader func(ctx context.Context) (int64, error)
	NoExpiry     bool

	NoCompaction bool
	NoManifests  bool
	// TargetBytes is the size that files are put together to, MinFiles how many
	// of about the same size it takes.
	TargetBytes int64
	MinFiles    int
	// Beside lets a step only begin a rewrite: its files are written while batches
	// go on, and Settle commits them between two of them.
	Beside bool
	// Sort are columns by which the rows of a new file are ordered.
	Sort []string

	NoOrphans bool
	// Grace is how long a file stays that a snapshot once referred to, from when
	// the last one is gone. OrphanAge is how old one must be that none ever did.
	Grace     time.Duration
	OrphanAge time.Duration
	ListEvery time.Duration
	// Staged, if set, names the files that a batch may still commit.
	Staged func(ctx context.Context) ([]string, error)

	Limits Limits
	Clock  clock.Clock
	// Scope is under which a crash point is reached: the query's name.
	Scope string
}

func (s Settings) withDefaults() Settings {
	if s.TargetBytes <= 0 {
		s.TargetBytes = DefaultTargetBytes
	}
	if s.MinFiles < 2 {
		s.MinFiles = DefaultMinFiles
	}
	if s.Grace <= 0 {
		s.Grace = DefaultGrace
	}
	if s.OrphanAge <= 0 {
		s.OrphanAge = DefaultOrphanAge
	}
	if s.ListEvery <= 0 {
		s.ListEvery = DefaultListEvery
	}
	if s.Clock == nil {
		s.Clock = clock.System{}
	}
	d := DefaultLimits()
	l := &s.Limits
	if l.StepBytes <= 0 {
		l.StepBytes = d.StepBytes
	}
	if l.StepFiles <= 0 {
		l.StepFiles = d.StepFiles
	}
	if l.Reads <= 0 {
		l.Reads = d.Reads
	}
	if l.Removes <= 0 {
		l.Removes = d.Removes
	}
	if l.StepTime <= 0 {
		l.StepTime = d.StepTime
	}
	if l.ManifestBytes <= 0 {
		l.ManifestBytes = d.ManifestBytes
	}
	return s
}
