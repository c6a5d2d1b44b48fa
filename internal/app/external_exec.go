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
	record, err := a.deliveries(ctx, q)
	if err != nil {
		return nil, err
	}
	return sinkexec.New(sinkexec.Options{
		Name: e.Target(), Query: q.Name, Shape: shape, Command: e.Command, Shell: e.Shell, Dir: e.Dir, Env: reveal(e.Env),
		Format: e.Format, AckRows: e.AckRows, Timeout: e.Timeout, Deadline: e.Deadline, Grace: e.Grace, Key: recordKey(q, e.RecordKey),
		Record: record, Clock: a.opts.Clock, Logger: a.opts.Logger, Stopping: a.stopping.channel(), BatchBytes: int64(e.MaxBatchBytes),
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
		return deliveryTime + q.To.HTTP.Deadline
	case q.To.Exec != nil:
		e := q.To.Exec
		return e.Deadline + e.Timeout + e.Grace + time.Minute
	}
	return 0
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
