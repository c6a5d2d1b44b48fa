package pipeline

import (
	"fmt"
	"maps"
	"time"
)

// Defaults of table care; those of package maintain and package lake.
const (
	DefaultCompactTo      = Size(64 << 20)
	DefaultCompactFrom    = 8
	DefaultKeepSnapshots  = 200
	DefaultKeepForReaders = 2_000
	DefaultGrace          = time.Hour
	DefaultOrphanAge      = 7 * 24 * time.Hour
)

// Care says what is done to a query's Iceberg tables between its batches.
type Care struct {
	Compaction Compaction `yaml:"compaction"`
	Expiry     Expiry     `yaml:"expiry"`
	Orphans    Orphans    `yaml:"orphans"`
}

// Compaction puts small files together, and small manifests.
type Compaction struct {
	Enabled       bool     `yaml:"enabled"`
	TargetBytes   Size     `yaml:"targetBytes" weir:"min=1048576,max=268435456"`
	MinInputFiles int      `yaml:"minInputFiles" weir:"min=2,max=1000"`
	SortBy        []string `yaml:"sortBy" weir:"min=1"`
}

// Expiry takes old snapshots out of the metadata.
type Expiry struct {
	Enabled       bool `yaml:"enabled"`
	KeepSnapshots int  `yaml:"keepSnapshots" weir:"min=2,max=100000"`
	// KeepForReaders bounds what slow readers hold back.
	KeepForReaders int `yaml:"keepForReaders" weir:"min=2,max=100000"`
}

// Orphans removes files that nothing refers to.
type Orphans struct {
	Enabled   bool          `yaml:"enabled"`
	Grace     time.Duration `yaml:"grace" weir:"min=1m"`
	OlderThan time.Duration `yaml:"olderThan" weir:"min=168h"`
}

func (c *Care) setDefaults() {
	c.Compaction.setDefaults()
	c.Expiry.setDefaults()
	c.Orphans.setDefaults()
}

func (c *Compaction) setDefaults() {
	c.Enabled, c.TargetBytes, c.MinInputFiles = true, DefaultCompactTo, DefaultCompactFrom
}

func (e *Expiry) setDefaults() {
	e.Enabled, e.KeepSnapshots, e.KeepForReaders = true, DefaultKeepSnapshots, DefaultKeepForReaders
}

func (o *Orphans) setDefaults() {
	o.Enabled, o.Grace, o.OlderThan = true, DefaultGrace, DefaultOrphanAge
}

// sortable are the types that rows can be ordered by.
var sortable = map[string]bool{
	TypeInt: true, TypeLong: true, TypeFloat: true, TypeDouble: true, TypeString: true, TypeDate: true, TypeTimestamp: true, TypeTimestamptz: true,
}

func (l *loader) checkCare(q *Query, key string) {
	at := key + ".care.expiry.keepForReaders"
	if e := q.Care.Expiry; e.KeepForReaders < e.KeepSnapshots && !l.isBroken(at) {
		if _, given := l.places[at]; given {
			l.faultKey(at, "keepForReaders is %d, less than keepSnapshots (%d)", e.KeepForReaders, e.KeepSnapshots)
		}
	}
	for i, name := range q.Care.Compaction.SortBy {
		at := fmt.Sprintf("%s.care.compaction.sortBy[%d]", key, i)
		switch c, ok := q.column(name); {
		case l.isBroken(at):
		case !ok:
			l.unknownColumn(q, at, "sortBy", name)
		case !sortable[c.Type] && !IsDecimal(c.Type):
			l.faultKey(at, "sortBy: %q is a %s, which has no order here", name, c.Type)
		}
	}
}

func init() { maps.Copy(descriptions, careDescriptions) }

var careDescriptions = map[string]string{
	"Query.care":               "What is done to the query's Iceberg tables between its batches, in small steps. Everything is on by default; no step changes a row.",
	"Care.compaction":          "Small files of a partition are put together, and small manifests.",
	"Care.expiry":              "Old snapshots are taken out of the table's metadata.",
	"Care.orphans":             "Files that no snapshot refers to any more, or never did, are removed.",
	"Compaction.enabled":       "Whether files are put together.",
	"Compaction.targetBytes":   "Size up to which files of a partition are put together. `weir compact` makes larger ones.",
	"Compaction.minInputFiles": "How many files of about the same size it takes.",
	"Compaction.sortBy":        "Columns by which the rows of a new file are ordered. Default: as they come.",
	"Expiry.enabled":           "Whether snapshots expire. Without it the metadata grows with every batch.",
	"Expiry.keepSnapshots":     "How many of the newest snapshots stay. Tags and branches, and the last snapshot of each query, stay in any case.",
	"Expiry.keepForReaders":    "How many stay at most because a query that reads the table is behind.",
	"Orphans.enabled":          "Whether files are removed.",
	"Orphans.grace":            "How long a file stays after the last snapshot with it has expired. Set it to more than a reader of a snapshot takes.",
	"Orphans.olderThan":        "How old a data file must be that never was in the table, left by an attempt that died.",
}
