// Package objstore is the small storage interface that checkpoints stand on:
// read, list, create-once, replace. Local disk with fsync, a crashable memory
// for tests; object stores with conditional writes come behind the same
// interface. Each implementation runs the conformance suite in this package's
// tests.
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
