package objstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
)

// Local is a directory on a local file system. Every write is durable (file
// and directory fsynced) when it returns.
type Local struct{ *files }

// LocalOptions of OpenLocal; the zero value is usable.
type LocalOptions struct {
	// Clock judges the age of temporary files; clock.System by default.
	Clock clock.Clock
	// TempAgeMax is how old a temporary file must be before a write into its
	// directory removes it; 10 minutes by default.
	TempAgeMax time.Duration
}

// OpenLocal opens a directory. It writes nothing: the directory is made,
// durably, by the first write. One that is there now, or was made, is never
// made again by this value (ErrVanished).
func OpenLocal(root string, o LocalOptions) (*Local, error) {
	abs, err := filepath.Abs(root)
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "directory %q", root)
	}
	if o.Clock == nil {
		o.Clock = clock.System{}
	}
	osfs := &osFiles{root: abs}
	there, err := osfs.rootExists()
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "directory %s", abs).
			WithHint("the location must be a directory that this user can read, or not exist yet")
	}
	s := newFiles(osfs, abs, o.Clock, o.TempAgeMax)
	s.rooted = there
	return &Local{files: s}, nil
}

// MakeDir makes a directory and its missing parents, each durable in the one
// above it.
func MakeDir(dir string) error {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	return (&osFiles{root: abs}).makeRoot()
}

// osFiles is the operating system's file system below a root.
type osFiles struct{ root string }

func (o *osFiles) abs(p string) string { return filepath.Join(o.root, filepath.FromSlash(p)) }

func (o *osFiles) rootExists() (bool, error) {
	fi, err := os.Stat(o.root)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case !fi.IsDir():
		return false, fmt.Errorf("%s is not a directory: %w", o.root, syscall.ENOTDIR)
	}
	return true, nil
}

// makeRoot fsyncs the parent of every directory that it makes, and the root's
// own parent always.
func (o *osFiles) makeRoot() error {
	var missing []string
	for dir := o.root; ; dir = filepath.Dir(dir) {
		_, err := os.Stat(dir)
		if err == nil {
			break
		}
		if !errors.Is(err, os.ErrNotExist) {
			return err
		}
		missing = append(missing, dir)
		if dir == filepath.Dir(dir) {
			break
		}
	}
	for i := len(missing) - 1; i >= 0; i-- {
		if err := os.Mkdir(missing[i], 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		if err := fsync(filepath.Dir(missing[i])); err != nil {
			return err
		}
	}
	if len(missing) > 0 {
		return nil
	}
	// An existing root may lie in a directory that this user cannot read
	// (/var/lib); then whoever made it answers for its durability.
	if err := fsync(filepath.Dir(o.root)); err != nil && !errors.Is(err, os.ErrPermission) {
		return err
	}
	return nil
}

func (o *osFiles) mkdir(dir string) error { return os.Mkdir(o.abs(dir), 0o755) }

func (o *osFiles) create(name string) (file, error) {
	f, err := os.OpenFile(o.abs(name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (o *osFiles) link(from, to string) error {
	err := os.Link(o.abs(from), o.abs(to))
	switch {
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.ENOTSUP), errors.Is(err, syscall.ENOSYS):
		// link(2) answers EPERM where the file system has no hard links.
		return fmt.Errorf("%w: %w", ErrNoHardLinks, err)
	}
	return err
}

func (o *osFiles) rename(from, to string) error     { return os.Rename(o.abs(from), o.abs(to)) }
func (o *osFiles) read(name string) ([]byte, error) { return os.ReadFile(o.abs(name)) }
func (o *osFiles) syncFile(name string) error       { return fsync(o.abs(name)) }
func (o *osFiles) syncDir(dir string) error         { return fsync(o.abs(dir)) }

// remove unlinks files only: os.Remove would also take an empty directory.
func (o *osFiles) remove(name string) error {
	if err := syscall.Unlink(o.abs(name)); err != nil {
		return &os.PathError{Op: "unlink", Path: o.abs(name), Err: err}
	}
	return nil
}

// list follows symbolic links: a user may have moved a directory to another
// disk, and Get would find what a listing then misses.
func (o *osFiles) list(dir string) ([]entry, error) {
	des, err := os.ReadDir(o.abs(dir))
	if err != nil {
		return nil, err
	}
	out := make([]entry, 0, len(des))
	for _, de := range des {
		fi, err := os.Stat(filepath.Join(o.abs(dir), de.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue // removed since, or a link to nowhere
		}
		if err != nil {
			return nil, err
		}
		if !fi.IsDir() && !fi.Mode().IsRegular() {
			continue
		}
		out = append(out, entry{name: de.Name(), dir: fi.IsDir(), size: fi.Size(), modified: fi.ModTime()})
	}
	return out, nil
}

// fsync makes a file's contents or a directory's entries durable.
func fsync(p string) error {
	f, err := os.Open(p)
	if err != nil {
		return err
	}
	err = f.Sync()
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
