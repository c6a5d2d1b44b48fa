package objstore

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/weirlake/weir/internal/failure"
)

// Sentinels beside ErrNotExist. They stand in the chain of the classified
// error that a store returns, so that a caller can tell them apart by
// errors.Is and a user by the class's exit code.
var (
	// ErrFull says that the store has no room (disk or quota). Safe to restart
	// once there is room: nothing half-written is visible.
	ErrFull = errors.New("no space left")
	// ErrReadOnly says that the store does not take writes: mounted read-only,
	// or not permitted to this user.
	ErrReadOnly = errors.New("store is not writable")
	// ErrNoHardLinks says that the file system cannot link, and so cannot
	// create once without tearing.
	ErrNoHardLinks = errors.New("file system has no hard links")
	// ErrVanished says that the store's root was there and is gone. It is not
	// made again: what was in it would be missing without anybody noticing.
	ErrVanished = errors.New("root directory has vanished")
	// ErrBadKey says that a key is not a clean, relative, slash-separated path.
	ErrBadKey = errors.New("not a usable key")
	// ErrCrashed is what a Memory answers between CrashAfter's point and Crash.
	ErrCrashed = errors.New("simulated crash")
)

// classify wraps err with what was being done to which object, as the class
// that says what a user can do about it.
func classify(err error, location, doing, key string) error {
	if err == nil {
		return nil
	}
	what := doing + " " + key + " in " + location
	var known *failure.Error
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return failure.Wrap(failure.Unreachable, fmt.Errorf("%w: %w", ErrFull, err), "%s", what).
			WithHint("free space (or raise the quota) under %s and start again; nothing half-written is visible", location)
	case errors.Is(err, syscall.EROFS):
		return failure.Wrap(failure.Config, fmt.Errorf("%w: %w", ErrReadOnly, err), "%s", what).
			WithHint("%s is mounted read-only: mount it writable, or move the checkpoint location", location)
	case errors.Is(err, fs.ErrPermission):
		return failure.Wrap(failure.Config, fmt.Errorf("%w: %w", ErrReadOnly, err), "%s", what).
			WithHint("give this user write permission on %s", location)
	case errors.Is(err, ErrNoHardLinks):
		return failure.Wrap(failure.Config, err, "%s", what).
			WithHint("put the checkpoint location on a local file system with hard links (ext4, xfs, btrfs, zfs, apfs) or on an object store")
	case errors.Is(err, ErrVanished):
		return failure.Wrap(failure.Checkpoint, err, "%s", what).
			WithHint("%s was removed while in use; start again: the run decides from the markers in the sinks", location)
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
}
