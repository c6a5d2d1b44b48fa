package objstore

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weirlake/weir/internal/clock"
)

// memFiles is a file system in memory that can lose power. It holds two views
// of every file and directory: what a process sees, and what is on the disk.
// fsync of a file moves its contents over, fsync of a directory its entries;
// nothing else ever does. This is harsher than ext4, which orders more than
// POSIX asks for; code that is right here is right there.
type memFiles struct {
	mu    sync.Mutex
	root  *node
	gone  bool // the root directory itself was removed
	clock clock.Clock
	// observe sees every changing operation before it is applied; an error
	// stops it.
	observe func(op string) error
	// left is how many more operations succeed; negative for no limit.
	left int
}

// node is a file or a directory.
type node struct {
	dir      bool
	entries  map[string]*node // directory: as seen
	synced   map[string]*node // directory: on the disk
	data     []byte           // file: as seen
	durable  []byte           // file: on the disk
	modified time.Time
}

func newDir() *node {
	return &node{dir: true, entries: map[string]*node{}, synced: map[string]*node{}}
}

func newMemFiles(c clock.Clock) *memFiles {
	return &memFiles{root: newDir(), clock: c, left: -1}
}

// step counts and reports one changing operation. The caller holds mu.
func (m *memFiles) step(verb string, names ...string) error {
	if m.left == 0 {
		return ErrCrashed
	}
	shown := make([]string, len(names))
	for i, n := range names {
		shown[i] = n
		if strings.HasPrefix(path.Base(n), tempPrefix) {
			shown[i] = path.Join(path.Dir(n), "~temp")
		}
	}
	if m.observe != nil {
		if err := m.observe(verb + " " + strings.Join(shown, " ")); err != nil {
			return err
		}
	}
	if m.left > 0 {
		m.left--
	}
	return nil
}

// find walks to a node as a process sees it. The caller holds mu.
func (m *memFiles) find(p string) (*node, error) {
	if m.gone {
		return nil, fs.ErrNotExist
	}
	n := m.root
	if p == "." {
		return n, nil
	}
	for _, part := range strings.Split(p, "/") {
		if !n.dir {
			return nil, syscall.ENOTDIR
		}
		next, ok := n.entries[part]
		if !ok {
			return nil, fs.ErrNotExist
		}
		n = next
	}
	return n, nil
}

// place gives the directory that name lies in. The caller holds mu.
func (m *memFiles) place(name string) (*node, string, error) {
	n, err := m.find(path.Dir(name))
	if err == nil && !n.dir {
		err = syscall.ENOTDIR
	}
	return n, path.Base(name), err
}

func (m *memFiles) rootExists() (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.gone, nil
}

func (m *memFiles) makeRoot() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.gone {
		return nil
	}
	if err := m.step("mkdir", "."); err != nil {
		return err
	}
	m.root, m.gone = newDir(), false
	return nil
}

func (m *memFiles) mkdir(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	parent, base, err := m.place(dir)
	if err != nil {
		return err
	}
	if _, ok := parent.entries[base]; ok {
		return fs.ErrExist
	}
	if err := m.step("mkdir", dir); err != nil {
		return err
	}
	parent.entries[base] = newDir()
	return nil
}

func (m *memFiles) create(name string) (file, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	parent, base, err := m.place(name)
	if err != nil {
		return nil, err
	}
	if _, ok := parent.entries[base]; ok {
		return nil, fs.ErrExist
	}
	if err := m.step("create", name); err != nil {
		return nil, err
	}
	n := &node{modified: m.clock.Now()}
	parent.entries[base] = n
	return &memFile{fs: m, n: n, name: name}, nil
}

// memFile is an open file; it writes to its node whatever name that has now.
type memFile struct {
	fs   *memFiles
	n    *node
	name string
}

func (f *memFile) Write(b []byte) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.fs.step("write", f.name); err != nil {
		return 0, err
	}
	f.n.data = append(f.n.data, b...)
	return len(b), nil
}

func (f *memFile) Sync() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.fs.step("sync", f.name); err != nil {
		return err
	}
	f.n.durable = bytes.Clone(f.n.data)
	return nil
}

func (f *memFile) Close() error { return nil }

func (m *memFiles) link(from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(from)
	if err != nil {
		return err
	}
	parent, base, err := m.place(to)
	if err != nil {
		return err
	}
	if _, ok := parent.entries[base]; ok {
		return fs.ErrExist
	}
	if err := m.step("link", from, to); err != nil {
		return err
	}
	parent.entries[base] = n
	return nil
}

func (m *memFiles) rename(from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(from)
	if err != nil {
		return err
	}
	old, oldBase, err := m.place(from)
	if err != nil {
		return err
	}
	parent, base, err := m.place(to)
	if err != nil {
		return err
	}
	if there, ok := parent.entries[base]; ok && there.dir {
		return syscall.EISDIR
	}
	if err := m.step("rename", from, to); err != nil {
		return err
	}
	delete(old.entries, oldBase)
	parent.entries[base] = n
	return nil
}

func (m *memFiles) remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	parent, base, err := m.place(name)
	if err != nil {
		return err
	}
	n, ok := parent.entries[base]
	if !ok {
		return fs.ErrNotExist
	}
	if n.dir {
		return syscall.EISDIR
	}
	if err := m.step("remove", name); err != nil {
		return err
	}
	delete(parent.entries, base)
	return nil
}

func (m *memFiles) read(name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left == 0 {
		return nil, ErrCrashed
	}
	n, err := m.find(name)
	if err != nil {
		return nil, err
	}
	if n.dir {
		return nil, syscall.EISDIR
	}
	return append([]byte{}, n.data...), nil
}

func (m *memFiles) syncFile(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(name)
	if err != nil {
		return err
	}
	if n.dir {
		return syscall.EISDIR
	}
	if err := m.step("sync", name); err != nil {
		return err
	}
	n.durable = bytes.Clone(n.data)
	return nil
}

func (m *memFiles) syncDir(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(dir)
	if err != nil {
		return err
	}
	if !n.dir {
		return syscall.ENOTDIR
	}
	if err := m.step("syncdir", dir); err != nil {
		return err
	}
	n.synced = maps.Clone(n.entries)
	return nil
}

func (m *memFiles) list(dir string) ([]entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left == 0 {
		return nil, ErrCrashed
	}
	n, err := m.find(dir)
	if err != nil {
		return nil, err
	}
	if !n.dir {
		return nil, syscall.ENOTDIR
	}
	var out []entry
	for _, name := range slices.Sorted(maps.Keys(n.entries)) {
		e := n.entries[name]
		out = append(out, entry{name: name, dir: e.dir, size: int64(len(e.data)), modified: e.modified})
	}
	return out, nil
}

// crash loses power: what was not fsynced is gone. With a random source each
// unsynced directory entry may have reached the disk all the same, and each
// unsynced file may hold any prefix of its contents, or that prefix and zeros.
func (m *memFiles) crash(rng *rand.Rand) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left = -1
	if !m.gone {
		m.root.lose(rng)
	}
}

func (n *node) lose(rng *rand.Rand) {
	if !n.dir {
		n.data = n.survivor(rng)
		n.durable = bytes.Clone(n.data)
		return
	}
	names := maps.Clone(n.entries)
	maps.Copy(names, n.synced)
	kept := map[string]*node{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		e := n.synced[name]
		if seen := n.entries[name]; seen != e && rng != nil && rng.IntN(2) == 0 {
			e = seen
		}
		if e != nil {
			kept[name] = e
		}
	}
	n.entries, n.synced = kept, maps.Clone(kept)
	for _, name := range slices.Sorted(maps.Keys(kept)) {
		kept[name].lose(rng)
	}
}

// survivor is what a file holds after the power came back.
func (n *node) survivor(rng *rand.Rand) []byte {
	if rng == nil || bytes.Equal(n.data, n.durable) {
		return bytes.Clone(n.durable)
	}
	switch rng.IntN(4) {
	case 0:
		return bytes.Clone(n.durable)
	case 1:
		return bytes.Clone(n.data)
	case 2:
		return bytes.Clone(n.data[:rng.IntN(len(n.data)+1)])
	default: // the length reached the disk, the blocks did not
		torn := make([]byte, len(n.data))
		copy(torn, n.data[:rng.IntN(len(n.data)+1)])
		return torn
	}
}

// String lists both views, for messages of failing tests.
func (m *memFiles) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var b strings.Builder
	m.root.print(&b, ".")
	return b.String()
}

func (n *node) print(b *strings.Builder, at string) {
	for _, name := range slices.Sorted(maps.Keys(n.entries)) {
		e := n.entries[name]
		fmt.Fprintf(b, "%s (%d bytes, entry synced %v, contents synced %v)\n",
			path.Join(at, name), len(e.data), n.synced[name] == e, e.dir || bytes.Equal(e.data, e.durable))
		if e.dir {
			e.print(b, path.Join(at, name))
		}
	}
}
