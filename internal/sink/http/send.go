package http

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	nethttp "net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/foreachbatch"
)

// ownHeaders are the ones that say what a request is.
var ownHeaders = []string{"Idempotency-Key", "Content-Type", "Content-Encoding", "Content-Length", "Weir-Query-Id", "Weir-Query-Name",
	"Weir-Batch-Id", "Weir-Epoch", "Weir-Attempt", "Weir-First-Row", "Weir-Rows", "Weir-Position"}

// positionHeaderMax bounds the header with the position: servers limit theirs.
const positionHeaderMax = 4 << 10

// sender is the function of the sink.
type sender struct {
	o      Options
	client *nethttp.Client
}

// deliver sends a batch, every chunk of it.
func (s *sender) deliver(ctx context.Context, d foreachbatch.Delivery) (int64, error) {
	cut, err := newCutting(d, s.o.RejectedMax)
	if err != nil {
		return 0, err
	}
	all, err := newRows(d, s.o.Shape, s.o.Key)
	if err != nil {
		return 0, err
	}
	first := cut.note // the chunks change it while they are cut
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(s.o.Concurrency)
	err = all.chunks(first, func(sp span) error {
		if gctx.Err() != nil {
			return gctx.Err()
		}
		g.Go(func() error { return s.chunk(gctx, d, cut, all, first.Body, sp) })
		return nil
	})
	if sent := g.Wait(); sent != nil {
		return 0, sent
	}
	if err != nil {
		return 0, err
	}
	d.Refuse(cut.refusals())
	return all.n, nil
}

// chunk sends a span, or its halves where it has to be smaller.
func (s *sender) chunk(ctx context.Context, d foreachbatch.Delivery, cut *cutting, all *rows, format string, sp span) error {
	switch {
	case s.o.RowResults: // refused rows were part of chunks that are applied
	case sp.rows() == 1 && cut.isRejected(sp.From):
		return nil
	case cut.holdsRejected(sp):
		return s.halves(ctx, d, cut, all, format, sp)
	}
	if cut.isSplit(sp) {
		return s.halves(ctx, d, cut, all, format, sp)
	}
	a, err := s.untilAnswered(ctx, d, format, sp, all.body(format, sp))
	if err != nil {
		return err
	}
	if a.applied {
		fault.Reach(s.o.Query, fault.DeliverChunk)
		return s.rowResults(ctx, d, cut, sp, a)
	}
	if a.status != nethttp.StatusRequestEntityTooLarge && s.o.OnRejected == sink.RejectFail {
		return s.refused(d, sp, a.status, a.text)
	}
	if sp.rows() > 1 {
		if err := cut.split(ctx, sp); err != nil {
			return err
		}
		return s.halves(ctx, d, cut, all, format, sp)
	}
	if s.o.OnRejected == sink.RejectFail {
		return s.refused(d, sp, a.status, a.text)
	}
	return cut.reject(ctx, []rejected{{Row: sp.From, Status: a.status, Detail: a.text}})
}

func (s *sender) halves(ctx context.Context, d foreachbatch.Delivery, cut *cutting, all *rows, format string, sp span) error {
	for _, h := range sp.halves() {
		if err := s.chunk(ctx, d, cut, all, format, h); err != nil {
			return err
		}
	}
	return nil
}

func (s *sender) refused(d foreachbatch.Delivery, sp span, status int, text string) error {
	return failure.New(failure.SchemaConflict, "query %s, batch %d: %s refuses rows %d to %d of the batch with status %d: %s",
		d.QueryName, d.BatchID, s.place(), sp.From, sp.To-1, status, text).
		WithHint("correct the rows or the receiver; or set onRejected: deadLetter, which puts the refused rows aside and goes on")
}

// rowResults takes the refused rows from an answer that says "applied".
func (s *sender) rowResults(ctx context.Context, d foreachbatch.Delivery, cut *cutting, sp span, a answer) error {
	if !s.o.RowResults {
		return nil
	}
	var body struct {
		Rejected []struct {
			Row   *int64 `json:"row"`
			Error string `json:"error"`
		} `json:"rejected"`
	}
	err := json.Unmarshal(a.body, &body)
	var out []rejected
	for _, r := range body.Rejected {
		if r.Row == nil || *r.Row < 0 || *r.Row >= sp.rows() {
			err = errors.New("it names a row that the chunk does not have")
			break
		}
		out = append(out, rejected{Row: sp.From + *r.Row, Status: a.status, Detail: s.redact(r.Error)})
	}
	if err != nil {
		return failure.Wrap(failure.Mismatch, err, "query %s, batch %d: the answer of %s (status %d) does not say which rows were refused", d.QueryName, d.BatchID, s.place(), a.status).
			WithHint(`with rowResults every answer that says "applied", a repeated one too, has the body {"rejected":[…]}`)
	}
	switch {
	case len(out) == 0:
		return nil
	case s.o.OnRejected == sink.RejectFail:
		return s.refused(d, span{out[0].Row, out[0].Row + 1}, a.status, out[0].Detail)
	}
	return cut.reject(ctx, out)
}

// answer is what a receiver finally said.
type answer struct {
	status  int
	applied bool
	again   bool // worth another try
	wait    time.Duration
	text    string
	body    []byte
}

// untilAnswered sends a chunk until the answer is one.
func (s *sender) untilAnswered(ctx context.Context, d foreachbatch.Delivery, format string, sp span, body []byte) (answer, error) {
	if s.o.Gzip {
		body = compress(body)
	}
	until := s.o.Clock.Now().Add(s.o.Deadline)
	pause := backoffMin
	for try := 1; ; try++ {
		a, err := s.once(ctx, d, format, sp, body)
		if err == nil && !a.again {
			return a, s.misdirected(d, a)
		}
		if ctx.Err() != nil {
			return a, fmt.Errorf("query %s, batch %d: stopped while sending to %s: %w", d.QueryName, d.BatchID, s.place(), ctx.Err())
		}
		if err == nil {
			err = fmt.Errorf("status %d: %s", a.status, a.text)
		}
		wait := max(pause, a.wait)
		pause = min(2*pause, backoffMax)
		if s.o.Clock.Now().Add(wait).After(until) {
			return a, failure.Wrap(failure.Unreachable, err, "query %s, batch %d: %s has not taken rows %d to %d in %d tries within %s", d.QueryName, d.BatchID, s.place(), sp.From, sp.To-1, try, s.o.Deadline).
				WithHint("the same rows come again under the same Idempotency-Key with the next start")
		}
		s.o.Logger.Warn("the receiver did not take a chunk, it is sent again", "query", d.QueryName, "batch_id", d.BatchID, "to", s.place(), "try", try, "wait", wait, "error", err)
		if err := s.sleep(ctx, wait); err != nil {
			return a, fmt.Errorf("query %s, batch %d: not sent again, because of a stop (%w); the last error was: %w", d.QueryName, d.BatchID, context.Canceled, err)
		}
	}
}

// sleep waits, unless the query is stopping.
func (s *sender) sleep(ctx context.Context, wait time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if s.o.Stopping != nil {
		go func() {
			select {
			case <-s.o.Stopping:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	return s.o.Clock.Sleep(ctx, wait)
}

// once sends one request.
func (s *sender) once(ctx context.Context, d foreachbatch.Delivery, format string, sp span, body []byte) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, s.o.RequestTimeout)
	defer cancel()
	req, err := nethttp.NewRequestWithContext(ctx, s.o.Method, s.o.URL, bytes.NewReader(body))
	if err != nil {
		return answer{}, s.cause(err)
	}
	s.setHeaders(req.Header, d, format, sp)
	resp, err := s.client.Do(req)
	if err != nil {
		return answer{}, s.cause(err)
	}
	defer func() { _ = resp.Body.Close() }()
	a := answer{status: resp.StatusCode}
	a.body, err = io.ReadAll(io.LimitReader(resp.Body, answerMax))
	if err != nil {
		if a.status/100 == 2 && !s.o.RowResults {
			return answer{status: a.status, applied: true}, nil // what was cut off is not needed
		}
		return answer{}, s.cause(err)
	}
	a.text = s.redact(string(a.body[:min(len(a.body), messageMax)]))
	if loc := resp.Header.Get("Location"); a.status/100 == 3 && loc != "" {
		a.text = "redirect to " + s.redact(bare(loc))
	}
	a.applied = a.status/100 == 2 || slices.Contains(s.o.AlreadyApplied, a.status)
	switch {
	case a.applied:
	case a.status == nethttp.StatusRequestTimeout, a.status == nethttp.StatusTooEarly, a.status == nethttp.StatusTooManyRequests, a.status >= 500:
		a.again, a.wait = true, retryAfter(resp.Header.Get("Retry-After"), s.o.Clock.Now())
	}
	return a, nil
}

// misdirected is the error of an answer that is about the URL or the
// credentials, not about the rows: putting rows aside for it would lose a
// stream in the dead letters.
func (s *sender) misdirected(d foreachbatch.Delivery, a answer) error {
	if a.applied {
		return nil
	}
	switch a.status {
	case nethttp.StatusUnauthorized, nethttp.StatusForbidden, nethttp.StatusNotFound, nethttp.StatusMethodNotAllowed,
		nethttp.StatusProxyAuthRequired, nethttp.StatusGone, nethttp.StatusUnsupportedMediaType:
	default:
		if a.status >= 400 {
			return nil
		}
	}
	return failure.New(failure.Config, "query %s, batch %d: %s answers %s with status %d: %s", d.QueryName, d.BatchID, s.place(), s.o.Method, a.status, a.text).
		WithHint("check url, method, headers and format of the HTTP sink; redirects are not followed")
}

func (s *sender) setHeaders(h nethttp.Header, d foreachbatch.Delivery, format string, sp span) {
	for k, v := range s.o.Headers {
		h.Set(k, v)
	}
	if h.Get("User-Agent") == "" {
		h.Set("User-Agent", "weir")
	}
	h.Set("Content-Type", "application/x-ndjson")
	if format == JSON {
		h.Set("Content-Type", "application/json")
	}
	if s.o.Gzip {
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("Idempotency-Key", fmt.Sprintf("%s-%d-%d-%d", d.QueryID, d.BatchID, sp.From, sp.To))
	h.Set("Weir-Query-Id", d.QueryID)
	h.Set("Weir-Query-Name", d.QueryName)
	h.Set("Weir-Batch-Id", strconv.FormatInt(d.BatchID, 10))
	h.Set("Weir-Epoch", strconv.FormatInt(d.Epoch.Number, 10))
	h.Set("Weir-Attempt", d.Attempt)
	h.Set("Weir-First-Row", strconv.FormatInt(sp.From, 10))
	h.Set("Weir-Rows", strconv.FormatInt(sp.rows(), 10))
	if pos, err := json.Marshal(d.Position); err == nil && len(pos) <= positionHeaderMax {
		h.Set("Weir-Position", string(pos))
	}
}

// compress gives the same bytes for the same rows: the header has no time.
func compress(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(b) // a buffer takes everything
	_ = w.Close()
	return out.Bytes()
}

// retryAfter reads seconds or a date.
func retryAfter(v string, now time.Time) time.Duration {
	if n, err := strconv.Atoi(strings.TrimSpace(v)); err == nil && n >= 0 {
		return time.Duration(n) * time.Second
	}
	if at, err := nethttp.ParseTime(v); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}

// place is the receiver in messages, without what may be secret.
func (s *sender) place() string { return bare(s.o.URL) }

// bare is a URL up to its path.
func bare(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "(a URL)"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// cause takes the URL out of a client's error.
func (s *sender) cause(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// redact takes the headers' values out of a text of the receiver's.
func (s *sender) redact(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	for _, v := range s.o.Headers {
		secret := v
		if _, after, ok := strings.Cut(v, " "); ok {
			secret = after // Bearer …
		}
		if len(secret) >= 4 {
			text = strings.ReplaceAll(text, secret, "***")
		}
	}
	return text
}
