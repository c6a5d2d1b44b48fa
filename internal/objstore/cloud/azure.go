package cloud

import (
	"bytes"
	"context"
	"crypto/md5" //nolint:gosec // the checksum that the service compares, against damage on the way
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	azureVersion = "2021-12-02"
	// azureNonce is the user metadata that says which call wrote a blob; Azure
	// takes no dash in such a name.
	azureNonce = "weirnonce"
	// azurePartsMax is Azure's own limit.
	azurePartsMax = 50_000
)

// azure speaks the Blob service's REST API. Data Lake accounts speak it as well.
type azure struct{ c *Client }

// base is the URL of a location's container.
func (z *azure) base(l Location) string {
	container, host := l.container()
	if e := z.c.cfg.Endpoint; e != "" {
		return endpoint(e) + "/" + url.PathEscape(container)
	}
	return "https://" + strings.Replace(host, ".dfs.", ".blob.", 1) + "/" + url.PathEscape(container)
}

func (z *azure) blobURL(l Location, query url.Values) string {
	parts := strings.Split(l.Key, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	u := z.base(l) + "/" + strings.Join(parts, "/")
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	return u
}

func (z *azure) do(ctx context.Context, r request) (answer, error) {
	if r.header == nil {
		r.header = http.Header{}
	}
	r.header.Set("X-Ms-Version", azureVersion)
	return z.c.do(ctx, r, func(a answer) (code, message string) {
		var doc struct{ Code, Message string }
		_ = xml.Unmarshal(bytes.TrimPrefix(a.body, []byte("\xef\xbb\xbf")), &doc)
		message, _, _ = strings.Cut(doc.Message, "\n") // the rest is ids and, at times, what was signed
		code = a.header.Get("X-Ms-Error-Code")
		if code == "" {
			code = doc.Code
		}
		return code, message
	})
}

func contentMD5(data []byte) string {
	sum := md5.Sum(data) //nolint:gosec // see the import
	return base64.StdEncoding.EncodeToString(sum[:])
}

func (w write) azureHeader() http.Header {
	h := http.Header{"X-Ms-Meta-" + strings.ToUpper(azureNonce[:1]) + azureNonce[1:]: {w.nonce}}
	if w.once {
		h.Set("If-None-Match", "*")
	}
	return h
}

func (z *azure) put(ctx context.Context, w write) error {
	h := w.azureHeader()
	h.Set("X-Ms-Blob-Type", "BlockBlob")
	h.Set("Content-MD5", contentMD5(w.data))
	h.Set("Content-Type", "application/octet-stream")
	_, err := z.do(ctx, request{method: http.MethodPut, url: z.blobURL(w.at, nil), header: h, body: w.data})
	return err
}

func (z *azure) get(ctx context.Context, l Location, rng *span, version string) (object, error) {
	if rng != nil && rng.from < 0 { // Azure knows no suffixes
		i, err := z.describe(ctx, l)
		if err != nil {
			return object{}, err
		}
		if i.Size == 0 {
			return z.get(ctx, l, nil, i.version)
		}
		return z.get(ctx, l, &span{max(0, i.Size+rng.from), i.Size}, i.version)
	}
	h := http.Header{}
	if version != "" {
		h.Set("If-Match", version)
	}
	if rng != nil {
		h.Set("X-Ms-Range", rng.header())
	}
	a, err := z.do(ctx, request{method: http.MethodGet, url: z.blobURL(l, nil), header: h})
	if err != nil {
		return object{}, err
	}
	o := object{data: a.body, version: a.header.Get("ETag"), nonce: a.header.Get("X-Ms-Meta-" + azureNonce)}
	if want := a.header.Get("Content-MD5"); rng == nil && want != "" && want != contentMD5(a.body) {
		return object{}, fmt.Errorf("the object's checksum is %s, and what came is %s", want, contentMD5(a.body))
	}
	return o, o.place(a)
}

type azureInfo struct {
	Info
	version string
}

func (z *azure) describe(ctx context.Context, l Location) (azureInfo, error) {
	a, err := z.do(ctx, request{method: http.MethodHead, url: z.blobURL(l, nil)})
	if err != nil {
		return azureInfo{}, err
	}
	n, err := strconv.ParseInt(a.header.Get("Content-Length"), 10, 64)
	if err != nil {
		return azureInfo{}, errors.New("the answer says no size")
	}
	at, _ := http.ParseTime(a.header.Get("Last-Modified"))
	return azureInfo{Info{Size: n, Modified: at, nonce: a.header.Get("X-Ms-Meta-" + azureNonce)}, a.header.Get("ETag")}, nil
}

func (z *azure) head(ctx context.Context, l Location) (Info, error) {
	i, err := z.describe(ctx, l)
	return i.Info, err
}

func (z *azure) list(ctx context.Context, l Location, prefix string, visit func(string, Info) error) error {
	q := url.Values{"restype": {"container"}, "comp": {"list"}, "include": {"metadata"}}
	if prefix != "" {
		q.Set("prefix", prefix)
	}
	if z.c.cfg.PageKeys > 0 {
		q.Set("maxresults", strconv.Itoa(z.c.cfg.PageKeys))
	}
	for last := ""; ; {
		a, err := z.do(ctx, request{method: http.MethodGet, url: z.base(l) + "?" + q.Encode()})
		if err != nil {
			return err
		}
		var page struct {
			Blobs struct {
				Blob []struct {
					Name       string
					Properties struct {
						LastModified string `xml:"Last-Modified"`
						Size         int64  `xml:"Content-Length"`
						Resource     string `xml:"ResourceType"`
					}
					Metadata struct {
						Folder string `xml:"hdi_isfolder"`
					}
				}
			}
			NextMarker string
		}
		if err := xml.Unmarshal(bytes.TrimPrefix(a.body, []byte("\xef\xbb\xbf")), &page); err != nil {
			return fmt.Errorf("the answer is not a list: %w", err)
		}
		for _, b := range page.Blobs.Blob {
			if b.Metadata.Folder == "true" || b.Properties.Resource == "directory" {
				continue // a Data Lake account's folder
			}
			at, err := time.Parse(time.RFC1123, b.Properties.LastModified)
			if err != nil {
				return fmt.Errorf("the list has the time %q", b.Properties.LastModified)
			}
			if err := visit(b.Name, Info{Size: b.Properties.Size, Modified: at}); err != nil {
				return err
			}
		}
		if page.NextMarker == "" {
			return nil
		}
		if page.NextMarker == last {
			return errors.New("the store gives the same page again and again")
		}
		last = page.NextMarker
		q.Set("marker", last)
	}
}

func (z *azure) remove(ctx context.Context, l Location) error {
	_, err := z.do(ctx, request{method: http.MethodDelete, url: z.blobURL(l, nil)})
	return err
}

// azureUpload sends blocks, several at a time, and names them all at the end:
// only then is there a blob. Blocks that are never named are invisible, and the
// service drops them after a week; there is no call to do it sooner.
type azureUpload struct {
	z      *azure
	w      write
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	blocks []string

	mu  sync.Mutex
	err error
}

func (z *azure) begin(ctx context.Context, w write) upload {
	u := &azureUpload{z: z, w: w}
	u.ctx, u.cancel = context.WithCancel(ctx)
	return u
}

func (u *azureUpload) failed() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.err
}

// part sends the next block in the background; data must not change any more.
func (u *azureUpload) part(data []byte, _ bool) error {
	if err := u.failed(); err != nil {
		return err
	}
	if len(data) == 0 {
		return nil
	}
	if len(u.blocks) == azurePartsMax {
		return fmt.Errorf("more than %d blocks of %d bytes", azurePartsMax, u.z.c.cfg.PartBytes)
	}
	select {
	case u.z.c.slots <- struct{}{}:
	case <-u.ctx.Done():
		return errors.Join(u.failed(), u.ctx.Err())
	}
	id := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%s-%06d", u.w.nonce, len(u.blocks)))
	u.blocks = append(u.blocks, id)
	u.wg.Go(func() {
		defer func() { <-u.z.c.slots }()
		_, err := u.z.do(u.ctx, request{
			method: http.MethodPut, url: u.z.blobURL(u.w.at, url.Values{"comp": {"block"}, "blockid": {id}}), body: data,
			header: http.Header{"Content-Md5": {contentMD5(data)}},
		})
		if err != nil {
			u.mu.Lock()
			if u.err == nil {
				u.err = err
			}
			u.mu.Unlock()
			u.cancel() // the others need not go on
		}
	})
	return nil
}

func (u *azureUpload) complete() error {
	u.wg.Wait()
	defer u.cancel()
	if err := u.failed(); err != nil {
		return err
	}
	var list struct {
		XMLName xml.Name `xml:"BlockList"`
		Latest  []string
	}
	list.Latest = u.blocks
	body, err := xml.Marshal(list)
	if err != nil {
		return err
	}
	h := u.w.azureHeader()
	h.Set("Content-Type", "application/xml")
	h.Set("X-Ms-Blob-Content-Type", "application/octet-stream")
	_, err = u.z.do(u.ctx, request{method: http.MethodPut, url: u.z.blobURL(u.w.at, url.Values{"comp": {"blocklist"}}), header: h, body: body})
	return err
}

func (u *azureUpload) abort() {
	u.cancel()
	u.wg.Wait()
}
