package replay

import (
	"context"
	"net/http"
	"strconv"
	"time"
)

const (
	// writeBytes is how much is gathered before it is handed to the network.
	writeBytes = 64 << 10
	// pollMin and pollMax bound the sleeps while nothing is available.
	pollMin = 2 * time.Millisecond
	pollMax = 50 * time.Millisecond
	// orderRun is for how many frames the order of the two data centres in the
	// id stays the same.
	orderRun = 50
)

// connection plays the stream to one client. Writes block while the client is
// slow: nothing is dropped and nothing piles up.
type connection struct {
	s      *Server
	rd     reader
	w      http.ResponseWriter
	ctl    *http.ResponseController
	begin  begin
	number int64
	plain  bool // newline-delimited JSON without frames

	buf []byte
	// lastByte is when something was sent last, for heartbeats.
	lastByte time.Time
	// started is true for a data centre whose first frame was reached.
	started [2]bool
	sent    int64
}

// run sends frames until the stream's end, a fault, or the client's leaving.
func (c *connection) run(ctx context.Context) {
	clk := c.s.cfg.Clock
	opened := clk.Now()
	c.lastByte = opened
	c.buf = make([]byte, 0, writeBytes+writeBytes/4)
	if !c.plain {
		c.buf = append(c.buf, ":ok\n\n"...)
		if c.s.cfg.Retry > 0 {
			c.buf = append(c.buf, "retry: "...)
			c.buf = strconv.AppendInt(c.buf, c.s.cfg.Retry.Milliseconds(), 10)
			c.buf = append(c.buf, "\n\n"...)
		}
	}
	defer func() { c.s.stats.frames.Add(c.sent) }()
	c.s.reach(c.begin.frame)
	cut, stall := c.faults()
	n, ready := c.begin.frame, int64(0)
	for n < c.s.end {
		if n >= ready {
			if ready = c.s.available(); n >= ready {
				c.highest(n)
				if !c.flush() || !c.wait(ctx) || c.expired(opened) {
					return
				}
				continue
			}
		}
		if n == cut {
			c.abort(n)
		}
		if n == stall {
			stall += c.s.cfg.Faults.StallEvery
			c.s.stats.stalls.Add(1)
			if !c.flush() || clk.Sleep(ctx, c.s.cfg.Faults.StallFor) != nil {
				return
			}
		}
		c.frame(n)
		n++
		if len(c.buf) >= writeBytes {
			c.highest(n)
			if !c.flush() || ctx.Err() != nil || c.expired(opened) {
				return
			}
		}
	}
	c.highest(n)
	c.flush()
}

// expired reports whether the connection is as old as it may become.
func (c *connection) expired(opened time.Time) bool {
	after := c.s.cfg.CutAfter
	return after > 0 && c.s.cfg.Clock.Now().Sub(opened) >= after
}

// frame appends frame n, unless its data centre has not begun yet.
func (c *connection) frame(n int64) {
	ms, centre := c.rd.Position(n)
	mark := int64(0)
	if n == c.s.end-1 {
		ms, mark = c.s.endMillis, c.s.end
	}
	if !c.started[centre] {
		if ms < c.begin.from[centre] {
			return
		}
		c.started[centre] = true
	}
	c.sent++
	if c.plain {
		c.buf = append(c.rd.Append(c.buf, n), '\n')
		return
	}
	c.buf = append(c.buf, "event: message\nid: "...)
	c.buf = appendID(c.buf, ms+1, centre, hash(c.s.cfg.Faults.Seed, n/orderRun)&1, mark)
	c.buf = append(c.buf, "\ndata: "...)
	c.buf = append(c.rd.Append(c.buf, n), "\n\n"...)
}

// appendID appends the position after an event: its data centre by time, the
// other one at its end; after the last event the end mark as well.
func appendID(dst []byte, ms int64, centre int, first uint64, mark int64) []byte {
	dst = append(dst, '[')
	for i := range 2 {
		if i > 0 {
			dst = append(dst, ',')
		}
		this := i ^ int(first)
		dst = append(dst, `{"topic":"`...)
		dst = append(dst, centres[this]...)
		dst = append(dst, `.mediawiki.recentchange","partition":0,`...)
		if this == centre {
			dst = append(dst, `"timestamp":`...)
			dst = strconv.AppendInt(dst, ms, 10)
		} else {
			dst = append(dst, `"offset":-1`...)
		}
		dst = append(dst, '}')
	}
	if mark > 0 {
		dst = append(dst, `,{"topic":"`+endTopic+`","partition":0,"offset":`...)
		dst = append(strconv.AppendInt(dst, mark, 10), '}')
	}
	return append(dst, ']')
}

// flush hands what was gathered to the network; false where the client is gone.
func (c *connection) flush() bool {
	if len(c.buf) == 0 {
		return true
	}
	_, err := c.w.Write(c.buf)
	c.buf = c.buf[:0]
	if err == nil {
		err = c.ctl.Flush()
	}
	c.lastByte = c.s.cfg.Clock.Now()
	return err == nil
}

// wait sleeps until more may be available, with a comment as a sign of life
// where it has been quiet for long.
func (c *connection) wait(ctx context.Context) bool {
	d := pollMax
	if rate := c.s.cfg.Rate; rate > 0 {
		d = min(max(time.Duration(float64(time.Second)/rate), pollMin), pollMax)
	}
	if c.s.cfg.Clock.Sleep(ctx, d) != nil {
		return false
	}
	if h := c.s.cfg.Heartbeat; h > 0 && !c.plain && c.s.cfg.Clock.Now().Sub(c.lastByte) >= h {
		c.buf = append(c.buf, ":\n\n"...)
		return c.flush()
	}
	return true
}

// highest records that the frames before n were sent.
func (c *connection) highest(n int64) {
	for {
		h := c.s.stats.highest.Load()
		if h >= n || c.s.stats.highest.CompareAndSwap(h, n) {
			return
		}
	}
}

// faults says at which frames this connection is cut and stalls first, -1 for
// never. Both are counted from the first frame that no client has had, or a
// client that is sent its overlap again would never get on.
func (c *connection) faults() (cut, stall int64) {
	f := c.s.cfg.Faults
	fresh := max(c.begin.frame, c.s.stats.highest.Load())
	cut, stall = -1, -1
	if f.CutEvery > 0 {
		cut = fresh + f.CutEvery/2 + int64(hash(f.Seed, c.number)%uint64(f.CutEvery)) + 1
	}
	if f.StallEvery > 0 {
		stall = (fresh/f.StallEvery + 1) * f.StallEvery
	}
	return cut, stall
}

// abort breaks the connection off before frame n, half of the time within it.
// It does not return.
func (c *connection) abort(n int64) {
	c.highest(n)
	if h := hash(c.s.cfg.Faults.Seed^1, c.number); h&1 == 0 {
		before, sent := len(c.buf), c.sent
		c.frame(n)
		whole := len(c.buf) - before
		c.buf = c.buf[:before+int(h>>8%uint64(max(whole, 1)))]
		c.sent = sent
	}
	c.flush()
	c.s.stats.cuts.Add(1)
	c.s.mu.Lock()
	c.s.unavailable += c.s.cfg.Faults.Unavailable
	c.s.mu.Unlock()
	panic(http.ErrAbortHandler)
}
