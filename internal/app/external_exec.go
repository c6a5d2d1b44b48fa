package app

import (
	"context"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/sink"
	sinkexec "github.com/weirlake/weir/internal/sink/exec"
)

func (a *App) execSink(ctx context.Context, q pipeline.Query, e *pipeline.ExecSink, shape *arrow.Schema) (sink.Sink, error) {
	d, err := a.delivery(ctx, q, shape, e.RecordKey)
	if err != nil {
		return nil, err
	}
	return ExecSink(d, e)
}

// ExecSink makes the sink over a program.
func ExecSink(d Delivery, e *pipeline.ExecSink) (sink.Sink, error) {
	return sinkexec.New(sinkexec.Options{
		Name: e.Target(), Query: d.Query, Shape: d.Shape, Command: e.Command, Shell: e.Shell, Dir: e.Dir, Env: reveal(e.Env),
		Format: e.Format, AckRows: e.AckRows, Timeout: e.Timeout, Deadline: e.Deadline, Grace: e.Grace, Key: d.Key,
		Record: d.Record, Clock: d.Clock, Logger: d.Logger, Stopping: d.Stopping, BatchBytes: int64(e.MaxBatchBytes),
	})
}

// deliveryTime is how long all chunks of a batch may take together: a batch under
// way is finished, and only its tries are bounded one by one.
const deliveryTime = time.Hour

// commitDeadline bounds the commit of a query whose sink takes its own time; 0 is
// the engine's default.
func commitDeadline(q pipeline.Query) time.Duration {
	switch {
	case q.To.HTTP != nil:
		return HTTPCommitDeadline(q.To.HTTP.Deadline)
	case q.To.Exec != nil:
		return ExecCommitDeadline(q.To.Exec)
	}
	return 0
}

// HTTPCommitDeadline bounds all requests of a batch; deadline is that of a chunk.
func HTTPCommitDeadline(deadline time.Duration) time.Duration { return deliveryTime + deadline }

// ExecCommitDeadline bounds all runs of a program for a batch.
func ExecCommitDeadline(e *pipeline.ExecSink) time.Duration {
	return max(e.Deadline, sinkexec.DefaultDeadline) + max(e.Timeout, sinkexec.DefaultTimeout) + max(e.Grace, sinkexec.DefaultGrace) + time.Minute
}

// stopping is closed when a run begins to end: who waits to try again gives up.
type stopping struct {
	mu     sync.Mutex
	ch     chan struct{}
	closed bool
}

func (s *stopping) channel() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch == nil {
		s.ch = make(chan struct{})
	}
	return s.ch
}

func (s *stopping) begin() {
	ch := s.channel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if ch != nil && !s.closed {
		s.closed = true
		close(s.ch)
	}
}

// on begins with the end of ctx.
func (s *stopping) on(ctx context.Context) (undo func() bool) { return context.AfterFunc(ctx, s.begin) }
