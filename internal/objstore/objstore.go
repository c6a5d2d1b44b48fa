// Package objstore is the small storage interface that checkpoints stand on:
// read, list, create-once, replace. Local disk with fsync, a crashable memory
// for tests; object stores with conditional writes come behind the same
// interface. Each implementation runs the conformance suite in objstoretest.
package objstore

import (
	"context"
	"errors"
	"time"
)

// ErrNotExist says that there is no object under the key.
var ErrNotExist = errors.New("object does not exist")

// Store is one prefix of a store. Keys are slash-separated and relative.
type Store interface {
	// CreateOnce makes the object durable under key unless something is there
	// already. created is true when it was ours; else existing has the contents
	// that are there. It never tears: a crash leaves the whole object or none.
	CreateOnce(ctx context.Context, key string, data []byte) (created bool, existing []byte, err error)
	// Put creates or replaces the object, durable when it returns; a crash
	// leaves the old contents or the new.
	Put(ctx context.Context, key string, data []byte) error
	// Get reads the object whole, or ErrNotExist.
	Get(ctx context.Context, key string) ([]byte, error)
	// List gives the objects under prefix in key order.
	List(ctx context.Context, prefix string) ([]Info, error)
	// Delete removes the object; a missing one is no error.
	Delete(ctx context.Context, key string) error
	// Location is the store's address for messages.
	Location() string
}

// Info describes one object.
type Info struct {
	Key      string
	Size     int64
	Modified time.Time
}

// Settler is a Store where a visible object may not be durable yet, because
// the process that wrote it was killed half-way. Recovery settles what it is
// going to build on. Stores whose acknowledged writes are durable and whose
// unacknowledged ones are invisible or durable need not implement it.
type Settler interface {
	Settle(ctx context.Context, key string) error
}

// Settle makes what is visible under key durable, where the store needs that.
func Settle(ctx context.Context, s Store, key string) error {
	if st, ok := s.(Settler); ok {
		return st.Settle(ctx, key)
	}
	return nil
}
