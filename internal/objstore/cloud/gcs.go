package cloud

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/weirlake/weir/internal/clock"
)

const (
	googleEndpoint = "https://storage.googleapis.com"
	// gcsNonce is the user metadata that says which call wrote an object.
	gcsNonce = "weir-nonce"
	// gcsFields is what is asked of an object's description.
	gcsFields = "name,size,updated,generation,metadata"
	// abortTimeout bounds the clean-up after a failure.
	abortTimeout = 30 * time.Second
	// statusGone is what GCS answers to a cancelled upload.
	statusGone = 499
)

// gcs speaks the JSON API of Google Cloud Storage.
type gcs struct{ c *Client }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// crc32c is a checksum as the API writes it.
func crc32c(sum uint32) string {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], sum)
	return base64.StdEncoding.EncodeToString(b[:])
}

func (g *gcs) base() string {
	if g.c.cfg.Endpoint != "" {
		return endpoint(g.c.cfg.Endpoint)
	}
	return googleEndpoint
}

func (g *gcs) objectURL(l Location, query url.Values) string {
	return fmt.Sprintf("%s/storage/v1/b/%s/o/%s?%s", g.base(), url.PathEscape(l.Bucket), url.PathEscape(l.Key), query.Encode())
}

func (g *gcs) uploadURL(w write, kind string) string {
	q := url.Values{"uploadType": {kind}, "name": {w.at.Key}, "fields": {"generation,size"}}
	if w.once {
		q.Set("ifGenerationMatch", "0")
	}
	return fmt.Sprintf("%s/upload/storage/v1/b/%s/o?%s", g.base(), url.PathEscape(w.at.Bucket), q.Encode())
}

// described is what the API says of an object.
type described struct {
	Name       string            `json:"name"`
	Size       json.Number       `json:"size"`
	Updated    time.Time         `json:"updated"`
	Generation json.Number       `json:"generation"`
	Metadata   map[string]string `json:"metadata,omitempty"`
}

func (d described) info() Info {
	n, _ := d.Size.Int64()
	return Info{Size: n, Modified: d.Updated, nonce: d.Metadata[gcsNonce]}
}

func (g *gcs) do(ctx context.Context, r request) (answer, error) {
	return g.c.do(ctx, r, func(a answer) (code, message string) {
		var doc struct {
			Error struct {
				Message string
				Errors  []struct{ Reason string }
			}
		}
		if json.Unmarshal(a.body, &doc) != nil {
			return "", strings.TrimSpace(string(a.body[:min(len(a.body), 200)]))
		}
		if len(doc.Error.Errors) > 0 {
			code = doc.Error.Errors[0].Reason
		}
		return code, doc.Error.Message
	})
}

// put sends the object with its description in one request.
func (g *gcs) put(ctx context.Context, w write) error {
	head, err := json.Marshal(map[string]any{
		"name": w.at.Key, "contentType": "application/octet-stream", "crc32c": crc32c(crc32.Checksum(w.data, castagnoli)),
		"metadata": map[string]string{gcsNonce: w.nonce},
	})
	if err != nil {
		return err
	}
	boundary := "weir" + clock.Nonce()
	body := bytes.NewBuffer(make([]byte, 0, len(w.data)+len(head)+512))
	fmt.Fprintf(body, "--%s\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n%s\r\n--%s\r\nContent-Type: application/octet-stream\r\n\r\n", boundary, head, boundary)
	body.Write(w.data)
	fmt.Fprintf(body, "\r\n--%s--\r\n", boundary)
	_, err = g.do(ctx, request{
		method: http.MethodPost, url: g.uploadURL(w, "multipart"), body: body.Bytes(),
		header: http.Header{"Content-Type": {"multipart/related; boundary=" + boundary}},
	})
	return err
}

func (g *gcs) get(ctx context.Context, l Location, rng *span, version string) (object, error) {
	q := url.Values{"alt": {"media"}}
	if version != "" {
		q.Set("generation", version)
	}
	r := request{method: http.MethodGet, url: g.objectURL(l, q), header: http.Header{}}
	if rng != nil {
		r.header.Set("Range", rng.header())
		r.also = []int{http.StatusRequestedRangeNotSatisfiable}
	}
	a, err := g.do(ctx, r)
	if err != nil {
		return object{}, err
	}
	if a.status == http.StatusRequestedRangeNotSatisfiable && rng.from < 0 {
		return g.get(ctx, l, nil, version) // an empty object has no last byte
	}
	o := object{data: a.body, version: a.header.Get("X-Goog-Generation")}
	if err := o.place(a); err != nil {
		return object{}, err
	}
	if rng == nil {
		if err := gcsChecked(a); err != nil {
			return object{}, err
		}
		// A download has no user metadata with it.
		if d, derr := g.describe(ctx, l); derr == nil && (o.version == "" || d.Generation.String() == o.version) {
			o.nonce = d.Metadata[gcsNonce]
		}
	}
	return o, nil
}

// place notes where the bytes of an answer begin, and how many there are.
func (o *object) place(a answer) error {
	o.size = int64(len(a.body))
	r := a.header.Get("Content-Range")
	if a.status != http.StatusPartialContent || r == "" {
		return nil
	}
	var last int64
	if _, err := fmt.Sscanf(r, "bytes %d-%d/%d", &o.first, &last, &o.size); err != nil || last-o.first+1 != int64(len(a.body)) {
		return fmt.Errorf("the store answered %d bytes with the range %q", len(a.body), r)
	}
	return nil
}

// gcsChecked compares a whole object with the checksum that came along.
func gcsChecked(a answer) error {
	for _, h := range strings.Split(strings.Join(a.header.Values("X-Goog-Hash"), ","), ",") {
		want, ok := strings.CutPrefix(strings.TrimSpace(h), "crc32c=")
		if got := crc32c(crc32.Checksum(a.body, castagnoli)); ok && got != want {
			return fmt.Errorf("the object's checksum is %s, and what came is %s", want, got)
		}
	}
	return nil
}

func (g *gcs) describe(ctx context.Context, l Location) (described, error) {
	a, err := g.do(ctx, request{method: http.MethodGet, url: g.objectURL(l, url.Values{"fields": {gcsFields}})})
	if err != nil {
		return described{}, err
	}
	var d described
	if err := json.Unmarshal(a.body, &d); err != nil {
		return described{}, fmt.Errorf("the answer is not an object's description: %w", err)
	}
	return d, nil
}

func (g *gcs) head(ctx context.Context, l Location) (Info, error) {
	d, err := g.describe(ctx, l)
	return d.info(), err
}

func (g *gcs) list(ctx context.Context, l Location, prefix string, visit func(string, Info) error) error {
	q := url.Values{"prefix": {prefix}, "fields": {"nextPageToken,items(name,size,updated)"}}
	if g.c.cfg.PageKeys > 0 {
		q.Set("maxResults", strconv.Itoa(g.c.cfg.PageKeys))
	}
	for last := ""; ; {
		a, err := g.do(ctx, request{method: http.MethodGet, url: fmt.Sprintf("%s/storage/v1/b/%s/o?%s", g.base(), url.PathEscape(l.Bucket), q.Encode())})
		if err != nil {
			return err
		}
		var page struct {
			NextPageToken string
			Items         []described
		}
		if err := json.Unmarshal(a.body, &page); err != nil {
			return fmt.Errorf("the answer is not a list: %w", err)
		}
		for _, d := range page.Items {
			if err := visit(d.Name, d.info()); err != nil {
				return err
			}
		}
		if page.NextPageToken == "" {
			return nil
		}
		if page.NextPageToken == last {
			return errors.New("the store gives the same page again and again")
		}
		last = page.NextPageToken
		q.Set("pageToken", last)
	}
}

func (g *gcs) remove(ctx context.Context, l Location) error {
	_, err := g.do(ctx, request{method: http.MethodDelete, url: g.objectURL(l, nil)})
	return err
}

// gcsUpload is a resumable upload: one part after the other, to a session whose
// URL is its permission. Where an answer is lost, the session says how far it
// is.
type gcsUpload struct {
	g       *gcs
	ctx     context.Context
	w       write
	session string
	sent    int64
	sum     uint32
	done    bool
}

func (g *gcs) begin(ctx context.Context, w write) upload { return &gcsUpload{g: g, ctx: ctx, w: w} }

func (u *gcsUpload) open() error {
	head, err := json.Marshal(map[string]any{"name": u.w.at.Key, "contentType": "application/octet-stream",
		"metadata": map[string]string{gcsNonce: u.w.nonce}})
	if err != nil {
		return err
	}
	a, err := u.g.do(u.ctx, request{
		method: http.MethodPost, url: u.g.uploadURL(u.w, "resumable"), body: head,
		header: http.Header{"Content-Type": {"application/json; charset=UTF-8"}},
	})
	if err != nil {
		return err
	}
	if u.session = a.header.Get("Location"); u.session == "" {
		return errors.New("the store opened an upload without saying where")
	}
	return nil
}

// part sends the next part. All but the last have the client's size.
func (u *gcsUpload) part(data []byte, last bool) error {
	if u.session == "" {
		if err := u.open(); err != nil {
			return err
		}
	}
	u.sum = crc32.Update(u.sum, castagnoli, data)
	from, end := u.sent, u.sent+int64(len(data))
	for attempt := 1; ; attempt++ {
		a, err := u.piece(data[u.sent-from:], end, last)
		if err == nil {
			err = u.note(a, end)
		}
		if err == nil && (u.done || (u.sent == end && !last)) {
			return nil
		}
		var se *statusError
		if err != nil && errors.As(err, &se) && !transient(se) {
			return err
		}
		if err == nil {
			err = fmt.Errorf("the store has %d of %d bytes", u.sent, end)
		}
		if attempt == attemptsMax || u.ctx.Err() != nil {
			return err
		}
		if serr := u.g.c.clock.Sleep(u.ctx, min(backOffFirst<<(attempt-1), u.g.c.cfg.BackOffMax)); serr != nil {
			return err
		}
		// How far is it? What was lost may have been the answer alone.
		if a, err = u.ask(); err == nil {
			err = u.note(a, end)
		}
		if err == nil && (u.done || (u.sent == end && !last)) {
			return nil
		}
		if u.sent < from || u.sent > end {
			return fmt.Errorf("the store has %d bytes of the upload, and is missing what it had confirmed", u.sent)
		}
	}
}

const statusResume = http.StatusPermanentRedirect // 308: not complete yet

func (u *gcsUpload) piece(data []byte, end int64, last bool) (answer, error) {
	total := "*"
	if last {
		total = strconv.FormatInt(end, 10)
	}
	rng := fmt.Sprintf("bytes %d-%d/%s", u.sent, end-1, total)
	if len(data) == 0 {
		rng = "bytes */" + total
	}
	r := request{
		method: http.MethodPut, url: u.session, body: data, open: true, once: true, also: []int{statusResume},
		header: http.Header{"Content-Range": {rng}, "Content-Type": {"application/octet-stream"}},
	}
	if last {
		r.header.Set("X-Goog-Hash", "crc32c="+crc32c(u.sum))
	}
	return u.g.do(u.ctx, r)
}

func (u *gcsUpload) ask() (answer, error) {
	return u.g.do(u.ctx, request{
		method: http.MethodPut, url: u.session, open: true, also: []int{statusResume}, header: http.Header{"Content-Range": {"bytes */*"}},
	})
}

// note takes over what the session says of itself.
func (u *gcsUpload) note(a answer, end int64) error {
	if a.status/100 == 2 {
		var d described
		if err := json.Unmarshal(a.body, &d); err != nil || d.Size == "" {
			if d, err = u.g.describe(u.ctx, u.w.at); err != nil {
				return err
			}
		}
		if d.info().Size != end {
			return &statusError{status: http.StatusConflict, message: fmt.Sprintf("the store completed the upload at %s of %d bytes", d.Size, end)}
		}
		u.done = true
		return nil
	}
	r := a.header.Get("Range")
	if r == "" {
		u.sent = 0
		return nil
	}
	var first, last int64
	if _, err := fmt.Sscanf(r, "bytes=%d-%d", &first, &last); err != nil || first != 0 {
		return fmt.Errorf("the store has the range %q of an upload", r)
	}
	u.sent = last + 1
	return nil
}

func (u *gcsUpload) complete() error {
	if !u.done {
		return errors.New("the upload is not complete")
	}
	return nil
}

func (u *gcsUpload) abort() {
	if u.session == "" || u.done {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(u.ctx), abortTimeout)
	defer cancel()
	// Nothing can be done about a failure; a session ends by itself in a week.
	_, _ = u.g.do(ctx, request{method: http.MethodDelete, url: u.session, open: true, also: []int{statusGone}})
}
