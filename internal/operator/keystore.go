package operator

import "errors"

// KeyStore keeps packed values of an operator by key between batches. Bytes that it
// gives are the store's, and valid until its next call.
//
// What is set is final with Settle: the operator keeps a batch's changes to itself
// until the next batch begins, so a store never has to take anything back but what
// Due did.
type KeyStore interface {
	// Get gives the value of a key, nil for none.
	Get(key []byte) ([]byte, error)
	// Set replaces it; an empty value removes the key. A key is set once before a
	// Settle. due may be later than the time that the key stands under: then it
	// stays there.
	Set(key, value []byte, due int64) error
	// Due offers the keys that stand under a time up to the watermark, until f says
	// no more. It sets nothing meanwhile.
	Due(watermark int64, f DueFunc) error
	// Undo takes back what Due did since Settle.
	Undo()
	// Settle makes everything final, together with a few bytes of the operator's.
	Settle(meta []byte) error
	// Each gives every key, in no order.
	Each(f func(key, value []byte) error) error
	// Bytes is the memory that it takes.
	Bytes() int64
	// Reset forgets everything.
	Reset()
	// Resume, after a Reset or at the beginning, takes up what an earlier process
	// left: it gives the bytes of its last Settle, nil where there is nothing.
	Resume() ([]byte, error)
	// Close lets go of files and locks. The store is usable again afterwards, as
	// after a Reset.
	Close() error
}

// DueFunc is offered a key. next is when it wants to see the key again: where that
// is later than the watermark, the key is put there; else it is set before Settle.
type DueFunc func(key, value []byte) (next int64, more bool, err error)

// Version names a saved state: the path of its file and its checksum. The zero
// value is none.
type Version struct {
	Path   string `json:"path"`
	SHA256 string `json:"sha256"`
}

// Resumer is a Stateful whose memory can outlast the process.
type Resumer interface {
	// Resume takes up what an earlier process left, and says which version it is;
	// none leaves the operator empty.
	Resume() (Version, error)
	// Loaded says that the memory is now that of a version.
	Loaded(v Version) error
	// Saved says under which name the last batch was saved.
	Saved(v Version)
}

// keeper is a Stateful whose keys may lie in another KeyStore than memory.
type keeper interface{ keepIn(s KeyStore) }

// KeepIn moves the memory of a transform's operators into stores, by the names of
// the operators. It is called before the first batch; operators that are small
// enough for memory stay there.
func KeepIn(t Transform, store func(operatorName string) KeyStore) {
	for _, op := range t.State() {
		if k, ok := op.(keeper); ok {
			k.keepIn(store(op.Name()))
		}
	}
}

// Release lets go of the files and locks of a transform's memory. What lies in them
// is afterwards as after a Reset.
func Release(t Transform) error {
	var errs []error
	for _, op := range t.State() {
		if k, ok := op.(interface{ release() error }); ok {
			errs = append(errs, k.release())
		}
	}
	return errors.Join(errs...)
}

// versions tells which version the settled part of a memory is, and which the one
// of the batch under way will be.
type versions struct {
	settled, next Version
	running       bool
}

// begin starts a batch: the last one, if there was one, is settled.
func (v *versions) begin() Version {
	if v.running {
		v.settled, v.next = v.next, Version{}
	}
	v.running = true
	return v.settled
}

func (v *versions) rollback() { v.running, v.next = false, Version{} }
