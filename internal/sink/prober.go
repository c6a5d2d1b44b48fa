package sink

import "context"

// Prober is what a sink may add, for `weir validate --connect`: Probe connects
// and tries every permission that a query needs, on names of its own, and leaves
// nothing behind. A sink without it is asked for its facts, which only reads.
// The error names what is missing.
type Prober interface {
	Probe(ctx context.Context) error
}
