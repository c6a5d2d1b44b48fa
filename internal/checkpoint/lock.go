package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/objstore"
)

// Lock keeps two instances on one machine (or one shared file system) from
// running a query on the same checkpoint. It saves them from taking the query
// from each other for ever; correctness does not stand on it, that is the
// epoch's part.
//
// It is a flock on the file "lock": the kernel drops it when the process is
// gone, however it went, and it is not inherited by child processes (the
// descriptor is closed on exec). The file stays; removing it would let two
// processes lock two files of the same name.
type Lock struct {
	f *os.File
	// TakenOver is who held the lock when it was ignored (--take-over), or nil.
	TakenOver *Holder
}

// Holder is what the lock file says of its owner.
type Holder struct {
	InstanceID string `json:"instance_id"`
	PID        int    `json:"pid"`
	Host       string `json:"host"`
}

// lockTries bounds how often a lock file that was replaced is opened again.
const lockTries = 5

// Acquire locks the checkpoint in a local directory, making the directory where
// it is missing. A live lock of another process is refused (class Fenced),
// naming the process, unless takeOver is set: then the file is left as it is and
// the returned lock holds nothing.
func Acquire(dir, instanceID string, takeOver bool) (*Lock, error) {
	if err := objstore.MakeDir(dir); err != nil {
		return nil, failure.Wrap(failure.Config, err, "checkpoint directory %s", dir).WithHint("the location must be writable by this user")
	}
	path := LockPath(dir)
	for range lockTries {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644) // close-on-exec is Go's default
		if err != nil {
			return nil, failure.Wrap(failure.Config, err, "lock file %s", path).WithHint("the location must be writable by this user")
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if errors.Is(err, syscall.EWOULDBLOCK) {
			h := holder(f)
			_ = f.Close()
			if takeOver {
				return &Lock{TakenOver: &h}, nil
			}
			return nil, failure.New(failure.Fenced, "the checkpoint %s is in use by process %d on %s (instance %s)", dir, h.PID, h.Host, h.InstanceID).
				WithHint("stop that process; or start with --take-over, which fences it")
		}
		if err != nil {
			_ = f.Close()
			return nil, failure.Wrap(failure.Config, err, "lock file %s", path).WithHint("the file system must support flock")
		}
		if !stillThere(f, path) {
			_ = f.Close() // removed between open and lock: lock the new one
			continue
		}
		if err := sign(f, instanceID); err != nil {
			_ = f.Close()
			return nil, failure.Wrap(failure.Unreachable, err, "lock file %s", path)
		}
		return &Lock{f: f}, nil
	}
	return nil, failure.New(failure.Runtime, "lock file %s is removed again and again", path)
}

// Release gives the lock back; the file stays.
func (l *Lock) Release() error {
	if l.f == nil {
		return nil
	}
	err := l.f.Close()
	l.f = nil
	return err
}

// Held reports whether the lock is really held (it is not after a take-over).
func (l *Lock) Held() bool { return l.f != nil }

func holder(f *os.File) Holder {
	h := Holder{InstanceID: "unknown", Host: "unknown host"}
	// The owner may be just about to write it: then it stays unknown.
	_ = json.NewDecoder(f).Decode(&h)
	return h
}

func sign(f *os.File, instanceID string) error {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	b, err := json.Marshal(Holder{InstanceID: instanceID, PID: os.Getpid(), Host: host})
	if err != nil {
		return fmt.Errorf("encode lock: %w", err)
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = f.WriteAt(append(b, '\n'), 0)
	return err
}

func stillThere(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(path)
	return err == nil && os.SameFile(a, b)
}
