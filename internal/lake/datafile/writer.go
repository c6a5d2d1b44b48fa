package datafile

import (
	"context"
	"errors"

	"github.com/apache/arrow-go/v18/arrow"
)

var errUnfinished = errors.New("datafile: writer is not available in this build")

// Writer writes the rows of one attempt of one batch.
type Writer struct{}

// NewWriter opens a writer. Files are named namePrefix + a running number;
// onFile, if set, is called after each file has become durable, from one
// goroutine at a time.
func NewWriter(spec Spec, namePrefix string, onFile func()) (*Writer, error) {
	return nil, errUnfinished
}

// Write takes over rec and queues it for encoding. It may block, and reports
// the first error of any file of this writer.
func (w *Writer) Write(rec arrow.RecordBatch) error { return errUnfinished }

// Close finishes every file and describes them, in the order in which they
// were begun. After an error the files that exist are orphans.
func (w *Writer) Close(ctx context.Context) ([]File, error) { return nil, errUnfinished }

// Abort stops background work; finished files stay behind as orphans. It is
// harmless after Close.
func (w *Writer) Abort() {}
