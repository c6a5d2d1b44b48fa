package objstore

import (
	"context"
	"math/rand/v2"

	"github.com/weirlake/weir/internal/clock"
)

// Memory is a store for tests: the algorithm of Local on a file system in
// memory that can lose power between any two operations.
type Memory struct {
	*files
	disk  *memFiles
	fault func(method, key string, applied bool) error
}

// NewMemory makes an empty store. The clock only dates objects.
func NewMemory(c clock.Clock) *Memory {
	disk := newMemFiles(c)
	m := &Memory{disk: disk}
	m.files = newFiles(disk, "memory:", c, 0)
	m.files.rooted = true
	return m
}

// Crash loses power and comes back: everything that was not fsynced is gone.
// With seed 0 strictly so; any other seed lets a random part of the unsynced
// writes survive, torn ones among them.
func (m *Memory) Crash(seed uint64) {
	var rng *rand.Rand
	if seed != 0 {
		rng = rand.New(rand.NewPCG(seed, seed))
	}
	m.disk.crash(rng)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ready = map[string]bool{}
}

// CrashAfter lets n more changing operations succeed; then everything fails
// with ErrCrashed until Crash is called.
func (m *Memory) CrashAfter(n int) {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	m.disk.left = n
}

// Trace calls f with every changing operation of the file system before it is
// applied ("sync offsets/~temp"; the random names of temporary files are
// replaced). An error from f is the operation's error, and it is not applied.
// nil stops tracing.
func (m *Memory) Trace(f func(op string) error) {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	m.disk.observe = f
}

// Fault calls f before (applied false) and after (applied true) each call of
// CreateOnce, Put, Get, List and Delete; an error from f is what the caller
// sees. After a call that was applied this is the answer that got lost.
func (m *Memory) Fault(f func(method, key string, applied bool) error) { m.fault = f }

// Files copies every object, Wipe removes everything with the root itself,
// and SetFiles replaces everything: what a person does to a folder.
func (m *Memory) Files(ctx context.Context) (map[string][]byte, error) {
	list, err := m.files.List(ctx, "")
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	for _, i := range list {
		if out[i.Key], err = m.files.Get(ctx, i.Key); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Wipe removes the root directory with all that is in it.
func (m *Memory) Wipe() {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	m.disk.root, m.disk.gone = newDir(), true
}

// Reopen is the same disk as a new process sees it.
func (m *Memory) Reopen() *Memory {
	out := &Memory{disk: m.disk}
	out.files = newFiles(m.disk, m.location, m.clock, m.tempAgeMax)
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	out.rooted = !m.disk.gone
	return out
}

// SetFiles makes the objects the only contents of the store, as restoring a
// copy does.
func (m *Memory) SetFiles(ctx context.Context, objects map[string][]byte) error {
	m.Wipe()
	fresh := m.Reopen()
	for key, data := range objects {
		if err := fresh.Put(ctx, key, data); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ready = map[string]bool{}
	return nil
}

// String lists what is there and what of it is synced.
func (m *Memory) String() string { return m.disk.String() }

func (m *Memory) faulty(method, key string, applied bool) error {
	if m.fault == nil {
		return nil
	}
	return m.fault(method, key, applied)
}

// CreateOnce implements Store.
func (m *Memory) CreateOnce(ctx context.Context, key string, data []byte) (bool, []byte, error) {
	if err := m.faulty("CreateOnce", key, false); err != nil {
		return false, nil, err
	}
	created, existing, err := m.files.CreateOnce(ctx, key, data)
	if ferr := m.faulty("CreateOnce", key, true); err == nil && ferr != nil {
		return false, nil, ferr
	}
	return created, existing, err
}

// Put implements Store.
func (m *Memory) Put(ctx context.Context, key string, data []byte) error {
	if err := m.faulty("Put", key, false); err != nil {
		return err
	}
	err := m.files.Put(ctx, key, data)
	if ferr := m.faulty("Put", key, true); err == nil {
		err = ferr
	}
	return err
}

// Get implements Store.
func (m *Memory) Get(ctx context.Context, key string) ([]byte, error) {
	if err := m.faulty("Get", key, false); err != nil {
		return nil, err
	}
	b, err := m.files.Get(ctx, key)
	if ferr := m.faulty("Get", key, true); err == nil && ferr != nil {
		return nil, ferr
	}
	return b, err
}

// List implements Store.
func (m *Memory) List(ctx context.Context, prefix string) ([]Info, error) {
	if err := m.faulty("List", prefix, false); err != nil {
		return nil, err
	}
	l, err := m.files.List(ctx, prefix)
	if ferr := m.faulty("List", prefix, true); err == nil && ferr != nil {
		return nil, ferr
	}
	return l, err
}

// Delete implements Store.
func (m *Memory) Delete(ctx context.Context, key string) error {
	if err := m.faulty("Delete", key, false); err != nil {
		return err
	}
	err := m.files.Delete(ctx, key)
	if ferr := m.faulty("Delete", key, true); err == nil {
		err = ferr
	}
	return err
}
