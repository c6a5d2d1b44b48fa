package prove

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/weirlake/weir/internal/audit"
)

// The assertions that are made after every scenario, over what it asserts
// itself. Those about tables need tables that a topic feeds.
const (
	standOffsets   = "offsets equal Kafka's"
	standFiles     = "no file live twice or gone"
	standIDs       = "ids distinct"
	standSums      = "batches' counts add up"
	standNewest    = "newest metadata read"
	standFolders   = "checkpoints bounded"
	standLocks     = "no lock left"
	standProcesses = "no process left"
)

// standing are all of them, in the order of the report.
var standing = []string{standOffsets, standFiles, standIDs, standSums, standNewest, standFolders, standLocks, standProcesses}

const (
	// logEntriesMax bounds each log of a checkpoint, and stateFilesMax each
	// operator's state: what the engine keeps by its documents (100 batches, ten
	// versions), and room for what stands between two rounds of table care, of which
	// there is one in 50 batches. A round that a kill has prevented is left to the
	// next: here are three of them.
	logEntriesMax = 300
	stateFilesMax = 200

	standingKey  = "standing_assertions_broken"
	standingNone = "none"
)

// stands is what came of the standing assertions.
type stands struct {
	held, broken []string
	// stale says why the reader may not have seen the newest of a table.
	stale string
}

func (s *stands) assert(name string, wrong []string) {
	if len(wrong) == 0 {
		s.held = append(s.held, name)
		return
	}
	s.broken = append(s.broken, fmt.Sprintf("%s: %s", name, strings.Join(wrong, ", ")))
}

// stand makes the standing assertions once the scenario's steps are done. The
// error is for what kept them from being made.
func (e *Env) stand(ctx context.Context, s *Scenario) (*stands, error) {
	for _, p := range e.children {
		p.abandon()
	}
	out := &stands{}
	out.assert(standProcesses, e.leftProcesses())
	if s.Differs == "" {
		if err := e.auditOnce(ctx); err != nil {
			return nil, err
		}
		if err := e.standTables(ctx, out); err != nil {
			return nil, err
		}
	} else {
		e.remarks = append(e.remarks, fmt.Sprintf("%s: its tables are not compared with the topic at the end, for %s", s.Name, s.Differs))
	}
	folders, err := checkpointFolders(e.dir)
	if err != nil {
		return nil, err
	}
	var grown, locked []string
	for _, dir := range folders {
		grown = append(grown, overgrown(dir)...)
		if isLocked(filepath.Join(dir, "lock")) {
			locked = append(locked, dir)
		}
	}
	out.assert(standLocks, locked)
	out.assert(standFolders, grown)
	e.observed[standingKey] = standingNone
	if len(out.broken) > 0 {
		e.observed[standingKey] = strings.Join(out.broken, "; ")
	}
	slices.SortFunc(out.held, func(a, b string) int { return slices.Index(standing, a) - slices.Index(standing, b) })
	e.observed["standing_assertions_held"] = strings.Join(out.held, ", ")
	return out, nil
}

// auditOnce audits the scenario's pipeline where it has not been audited and
// its tables are there.
func (e *Env) auditOnce(ctx context.Context) error {
	if e.audited != nil {
		return nil
	}
	if _, err := os.Stat(e.path(queriesFileName)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if h, err := e.peek(ctx, bronzeTable); err != nil || !h.Exists {
		return err
	}
	_, err := e.auditPipeline(ctx)
	return err
}

// standTables asserts what an audit has found of every table.
func (e *Env) standTables(ctx context.Context, out *stands) error {
	if e.audited == nil {
		return nil
	}
	var offsets, files, ids, sums []string
	counted := false
	for _, t := range e.audited.Tables {
		if len(t.Missing)+len(t.Extra) > 0 || t.Outcome == audit.Mismatch {
			offsets = append(offsets, t.Table+" ("+findings(t)+")")
		}
		files = append(append(files, t.FilesLiveTwice...), t.FilesMissing...)
		if s := t.Silver; s != nil {
			if s.DoubledEventIDs+s.NullEventIDs > 0 {
				ids = append(ids, fmt.Sprintf("%s has %d doubled and %d empty", t.Table, s.DoubledEventIDs, s.NullEventIDs))
			}
			if b := s.Balance; b != nil && b.Complete {
				counted = true
				if !b.Balanced {
					sums = append(sums, t.Table)
				}
			}
		}
		if stale, err := e.staleReader(ctx, t); err != nil {
			return err
		} else if stale != "" {
			out.stale = stale
		}
	}
	out.assert(standOffsets, offsets)
	out.assert(standFiles, files)
	out.assert(standIDs, ids)
	if counted {
		out.assert(standSums, sums)
	}
	if out.stale == "" {
		out.assert(standNewest, nil)
	}
	return nil
}

// staleReader says how the metadata that a table was judged by differs from the
// catalog's newest, now that nothing writes any more.
func (e *Env) staleReader(ctx context.Context, t *audit.TableReport) (string, error) {
	if t.MetadataLocation == "" {
		return "", nil
	}
	now, err := e.catalog.MetadataLocation(ctx, t.Table)
	var none *audit.NoTableError
	if errors.As(err, &none) {
		return "", nil // not of this catalog: a Delta table
	}
	if err != nil {
		return "", err
	}
	if now != t.MetadataLocation {
		return fmt.Sprintf("%s was judged by %s, the catalog's newest is %s", t.Table, t.MetadataLocation, now), nil
	}
	return "", nil
}

// checkpointFolders finds every checkpoint below a folder, also those that lie
// in a bucket of a store whose objects are files.
func checkpointFolders(root string) (out []string, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case !d.IsDir():
			return nil
		case d.Name() == "warehouse" || d.Name() == "kafka":
			return fs.SkipDir
		case d.Name() == "offsets":
			out = append(out, filepath.Dir(path))
			return fs.SkipDir
		}
		return nil
	})
	return out, err
}

// overgrown says which parts of a checkpoint have more entries than may be.
func overgrown(dir string) (out []string) {
	look := func(part string, most int) {
		if entries, err := os.ReadDir(filepath.Join(dir, part)); err == nil && len(entries) > most {
			out = append(out, fmt.Sprintf("%s/%s has %d entries", filepath.Base(dir), part, len(entries)))
		}
	}
	for _, log := range []string{"offsets", "commits", "staged", "superseded"} {
		look(log, logEntriesMax)
	}
	operators, err := os.ReadDir(filepath.Join(dir, "state"))
	if err != nil {
		return out // it keeps no state
	}
	for _, op := range operators {
		look(filepath.Join("state", op.Name()), stateFilesMax)
	}
	return out
}

// isLocked reports whether somebody holds a lock file.
func isLocked(path string) bool {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB), syscall.EWOULDBLOCK)
}

// leftProcesses are processes of the tested binary that work in the scenario's
// folder although every one that it started has ended.
func (e *Env) leftProcesses() (out []string) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil // not on this system
	}
	for _, d := range entries {
		pid, err := strconv.Atoi(d.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		exe, err := os.Readlink(filepath.Join("/proc", d.Name(), "exe"))
		if err != nil || exe != e.o.Binary {
			continue
		}
		cmdline, _ := os.ReadFile(filepath.Join("/proc", d.Name(), "cmdline"))
		if line := strings.ReplaceAll(string(cmdline), "\x00", " "); strings.Contains(line, e.dir+string(filepath.Separator)) {
			out = append(out, fmt.Sprintf("pid %d (%s)", pid, strings.TrimSpace(line)))
		}
	}
	return out
}
