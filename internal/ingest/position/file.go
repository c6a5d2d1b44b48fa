package position

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
)

// FileName is the position's name in its folder.
const FileName = "position.json"

const (
	lockName    = "lock"
	scope       = "ingest"
	maxFileSize = 64 << 20
)

// File is the position on disk. It is replaced as a whole: a reader sees the
// old one or the new one, and a new one is durable when Save returns.
type File struct {
	path string
	lock *os.File
}

// Open opens the file's folder, makes it where it is missing, and locks it
// against a second ingestion. path may name the folder or the file in it.
func Open(path string) (*File, error) {
	if !strings.HasSuffix(path, ".json") {
		path = filepath.Join(path, FileName)
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, failure.Wrap(failure.Config, err, "the folder of the position, %s, cannot be made", dir)
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "the folder of the position, %s, cannot be written to", dir)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		return nil, failure.Wrap(failure.Fenced, err, "another ingestion uses the position in %s", dir).
			WithHint("stop it first, or give this one another position and another topic")
	}
	// What a crash left between writing and renaming is of no use to anybody.
	left, _ := filepath.Glob(path + ".tmp-*")
	for _, l := range left {
		_ = os.Remove(l)
	}
	return &File{path: path, lock: lock}, nil
}

// Path is where the position lies.
func (f *File) Path() string { return f.path }

// Close releases the lock.
func (f *File) Close() { _ = f.lock.Close() }

// Load reads the position; nil where there is none yet.
func (f *File) Load() (*State, error) {
	info, err := os.Stat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && info.Size() > maxFileSize {
		return nil, failure.New(failure.Checkpoint, "%s is %d bytes long and not a position", f.path, info.Size())
	}
	var b []byte
	if err == nil {
		b, err = os.ReadFile(f.path)
	}
	if err != nil {
		return nil, failure.Wrap(failure.Checkpoint, err, "the position %s cannot be read", f.path)
	}
	return Decode(b, f.path)
}

// Decode reads a stored state; where names it in errors.
func Decode(b []byte, where string) (*State, error) {
	const way = "restore it from a copy, or remove it to begin anew (then set sse.since to a time before the gap)"
	var s State
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(&s); err != nil {
		return nil, failure.Wrap(failure.Checkpoint, err, "the position in %s cannot be understood", where).WithHint(way)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, failure.New(failure.Checkpoint, "the position in %s is followed by something else", where).WithHint(way)
	}
	if s.Version != StateVersion {
		return nil, failure.New(failure.Checkpoint, "the position in %s has format version %d; this build reads version %d", where, s.Version, StateVersion).
			WithHint("use the build that wrote it, or a newer one")
	}
	return &s, nil
}

// Save replaces the position and returns when it is durable.
func (f *File) Save(s *State) error {
	b, err := s.Encode()
	if err != nil {
		return failure.Wrap(failure.Runtime, err, "encode the position")
	}
	tmp := f.path + ".tmp-" + clock.Nonce()
	if err := writeSynced(tmp, append(b, '\n')); err != nil {
		_ = os.Remove(tmp)
		return failure.Wrap(failure.Unreachable, err, "the position %s cannot be saved", f.path)
	}
	fault.Reach(scope, fault.IngestSaveTemp)
	if err := os.Rename(tmp, f.path); err != nil {
		return failure.Wrap(failure.Unreachable, err, "the position %s cannot be saved", f.path)
	}
	if err := syncDir(filepath.Dir(f.path)); err != nil {
		return failure.Wrap(failure.Unreachable, err, "the position %s cannot be saved", f.path)
	}
	fault.Reach(scope, fault.IngestSaved)
	return nil
}

func writeSynced(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// StreamURL is the identity of a stream: its URL without what only chooses
// where to begin or who reads.
func StreamURL(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return raw
	}
	u.User, u.Fragment = nil, ""
	q := u.Query()
	q.Del("since")
	u.RawQuery = q.Encode()
	return u.String()
}

// Belongs refuses a state of another stream or topic.
func (s *State) Belongs(streamURL, topic, where string) error {
	if s.URL == StreamURL(streamURL) && s.Topic == topic {
		return nil
	}
	return failure.New(failure.Checkpoint, "the position in %s belongs to stream %s and topic %s, not to %s and %s",
		where, s.URL, s.Topic, StreamURL(streamURL), topic).
		WithHint("give this ingestion a position of its own; if the stream only moved to another address, set the field url (or topic) in the saved position")
}
