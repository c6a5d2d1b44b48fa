package http

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/foreachbatch"
	"github.com/weirlake/weir/internal/sink/rowjson"
)

const noteFormat = 1

// note is what is remembered of a batch from its first delivery on.
type note struct {
	Format int    `json:"format"`
	Body   string `json:"body"`
	Rows   int    `json:"chunk_rows"`
	Bytes  int64  `json:"chunk_bytes"`
	// Split are the ranges that are sent as two halves, and Rejected the rows
	// that are not sent at all.
	Split    []span     `json:"split,omitempty"`
	Rejected []rejected `json:"rejected,omitempty"`
}

// rejected is a row that the receiver refuses, with the answer's status.
type rejected struct {
	Row    int64  `json:"row"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
}

// span is the rows [From, To) of a batch.
type span struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

func (s span) rows() int64 { return s.To - s.From }

// halves splits a span of two rows or more.
func (s span) halves() [2]span {
	mid := s.From + s.rows()/2
	return [2]span{{s.From, mid}, {mid, s.To}}
}

func (n note) encode() json.RawMessage {
	b, err := json.Marshal(n)
	if err != nil {
		panic(err) // numbers and strings
	}
	return b
}

// cutting is the note of the batch under way, shared by its chunks.
type cutting struct {
	mu   sync.Mutex
	d    foreachbatch.Delivery
	note note
	max  int
}

func newCutting(d foreachbatch.Delivery, rejectedMax int) (*cutting, error) {
	c := &cutting{d: d, max: rejectedMax}
	if err := json.Unmarshal(d.Note, &c.note); err != nil || c.note.Format != noteFormat || c.note.Rows < 1 {
		return nil, failure.New(failure.Checkpoint, "query %s, batch %d: what the record of deliveries says of it is not for this version of the HTTP sink", d.QueryName, d.BatchID).
			WithHint("run the version of weir that began the batch")
	}
	for _, r := range d.Decided {
		if !c.isRejected(r.Row) {
			c.note.Rejected = append(c.note.Rejected, rejected{Row: r.Row, Status: statusOf(r.Reason), Detail: r.Detail})
		}
	}
	return c, nil
}

// reasonPrefix and the status make the reason of a rejection.
const reasonPrefix = "http-"

func statusOf(reason string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(reason, reasonPrefix))
	return n
}

func (c *cutting) isSplit(s span) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(c.note.Split, s)
}

func (c *cutting) isRejected(row int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.note.Rejected, func(r rejected) bool { return r.Row == row })
}

// holdsRejected: a row of s has been refused by itself, so s was sent in halves.
func (c *cutting) holdsRejected(s span) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.note.Rejected, func(r rejected) bool { return r.Row >= s.From && r.Row < s.To })
}

// split remembers that s is sent in halves.
func (c *cutting) split(ctx context.Context, s span) error {
	return c.change(ctx, func() error {
		c.note.Split = append(c.note.Split, s)
		return nil
	})
}

// reject remembers refused rows.
func (c *cutting) reject(ctx context.Context, rows []rejected) error {
	return c.change(ctx, func() error {
		for _, r := range rows {
			if slices.ContainsFunc(c.note.Rejected, func(x rejected) bool { return x.Row == r.Row }) {
				continue
			}
			if c.d.Decided != nil {
				return failure.New(failure.SchemaConflict, "query %s, batch %d: the receiver refuses row %d, which it did not refuse when the batch's rejected rows were committed: %s",
					c.d.QueryName, c.d.BatchID, r.Row, r.Detail).WithHint("make the receiver take the row, as it did before")
			}
			c.note.Rejected = append(c.note.Rejected, r)
		}
		if len(c.note.Rejected) > c.max {
			return failure.New(failure.SchemaConflict, "query %s, batch %d: the receiver refuses more than %d rows, the last because: %s",
				c.d.QueryName, c.d.BatchID, c.max, rows[len(rows)-1].Detail).
				WithHint("find out why; then start again, or raise rejectedMax")
		}
		return nil
	})
}

func (c *cutting) change(ctx context.Context, f func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := f(); err != nil {
		return err
	}
	return c.d.Keep(ctx, c.note.encode())
}

// refusals are the refused rows in order.
func (c *cutting) refusals() []sink.Rejection {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]sink.Rejection, 0, len(c.note.Rejected))
	for _, r := range c.note.Rejected {
		out = append(out, sink.Rejection{Row: r.Row, Reason: reasonPrefix + strconv.Itoa(r.Status), Detail: r.Detail})
	}
	slices.SortFunc(out, func(a, b sink.Rejection) int { return cmp.Compare(a.Row, b.Row) })
	return out
}

// rows gives a batch's rows by their number.
type rows struct {
	records []arrow.RecordBatch
	starts  []int64
	enc     *rowjson.Encoder
	n       int64
}

func newRows(d foreachbatch.Delivery, shape *arrow.Schema, key *rowjson.Key) (*rows, error) {
	enc, err := rowjson.New(shape, key, d.Position.Vector())
	if err != nil {
		return nil, err
	}
	r := &rows{records: d.Records, enc: enc}
	for _, rec := range d.Records {
		r.starts = append(r.starts, r.n)
		r.n += rec.NumRows()
	}
	return r, nil
}

func (r *rows) append(dst []byte, row int64) []byte {
	i, found := slices.BinarySearch(r.starts, row)
	if !found {
		i--
	}
	return r.enc.AppendRow(dst, r.records[i], int(row-r.starts[i]))
}

// chunks calls f with each chunk's span as the note cuts the batch.
func (r *rows) chunks(n note, f func(span) error) error {
	var buf []byte
	s := span{}
	size := int64(0)
	for row := range r.n {
		buf = r.append(buf[:0], row)
		if s.rows() > 0 && (s.rows() >= int64(n.Rows) || size+int64(len(buf))+1 > n.Bytes) {
			if err := f(s); err != nil {
				return err
			}
			s, size = span{row, row}, 0
		}
		s.To = row + 1
		size += int64(len(buf)) + 1
	}
	return f(s)
}

// body writes the rows of a span.
func (r *rows) body(format string, s span) []byte {
	var out []byte
	if format == JSON {
		out = append(out, '[')
	}
	for row := s.From; row < s.To; row++ {
		if format == JSON && row > s.From {
			out = append(out, ',')
		}
		out = r.append(out, row)
		if format == NDJSON {
			out = append(out, '\n')
		}
	}
	if format == JSON {
		out = append(out, ']')
	}
	return out
}
