package cloud

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/objstore"
)

const (
	// objectBytesMax bounds what is read whole, errorBytesMax what an error says.
	objectBytesMax = 2 << 30
	errorBytesMax  = 64 << 10
)

// request is one request, as it is built for each attempt.
type request struct {
	method string
	url    string
	header http.Header
	body   []byte
	// open sends no credentials: the URL carries them.
	open bool
	// once sends it a single time: the caller finds out what became of it.
	once bool
	// also are statuses beside 2xx that are an answer, not an error.
	also []int
}

// answer is what came back, its body read to the end.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// statusError is an answer that is an error.
type statusError struct {
	status  int
	code    string // the store's own word
	message string
}

func (e *statusError) Error() string {
	text := fmt.Sprintf("HTTP %d", e.status)
	if e.code != "" {
		text += " " + e.code
	}
	if e.message != "" {
		text += ": " + e.message
	}
	return text
}

// authError: no credentials could be had.
type authError struct {
	cause error
	// final: asking again is of no use.
	final bool
}

func (e *authError) Error() string { return "no credentials: " + e.cause.Error() }
func (e *authError) Unwrap() error { return e.cause }

// do sends a request until it is answered, as long as attempts are left.
func (c *Client) do(ctx context.Context, r request, explain func(answer) (code, message string)) (answer, error) {
	renewed := false
	for attempt := 1; ; attempt++ {
		a, err := c.send(ctx, r)
		var wait time.Duration
		switch {
		case err == nil && (a.status/100 == 2 || slices.Contains(r.also, a.status)):
			return a, nil
		case err == nil:
			code, message := explain(a)
			se := &statusError{a.status, code, message}
			err = se
			again := a.status == http.StatusUnauthorized && !renewed && c.auth.refused()
			if !transient(se) && !again {
				return a, err
			}
			renewed = renewed || again
			if s, perr := strconv.Atoi(a.header.Get("Retry-After")); perr == nil && s > 0 {
				wait = time.Duration(s) * time.Second
			}
		default:
			if ae := new(authError); errors.As(err, &ae) && ae.final {
				return a, err
			}
		}
		if r.once || attempt == attemptsMax || ctx.Err() != nil {
			return a, err
		}
		pause := min(max(backOffFirst<<(attempt-1), wait), c.cfg.BackOffMax)
		if c.clock.Sleep(ctx, pause) != nil {
			return a, err
		}
	}
}

func transient(e *statusError) bool {
	switch e.status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	case http.StatusNotImplemented:
		return false
	}
	return e.status >= 500
}

func (c *Client) send(ctx context.Context, r request) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.method, r.url, bytes.NewReader(r.body))
	if err != nil {
		return answer{}, err
	}
	for k, v := range r.header {
		req.Header[k] = slices.Clone(v)
	}
	if !r.open {
		if err := c.auth.authorize(ctx, req); err != nil {
			return answer{}, err
		}
	}
	res, err := c.web.Do(req)
	if err != nil {
		return answer{}, withoutQuery(err)
	}
	defer res.Body.Close()
	limit := int64(errorBytesMax)
	if res.StatusCode/100 == 2 {
		if limit = res.ContentLength; limit > objectBytesMax {
			return answer{}, fmt.Errorf("%d bytes are more than %d", limit, objectBytesMax)
		} else if limit < 0 {
			limit = objectBytesMax
		}
	}
	buf := bytes.NewBuffer(make([]byte, 0, max(0, min(res.ContentLength, limit))+bytes.MinRead))
	n, err := io.Copy(buf, io.LimitReader(res.Body, limit))
	if err != nil {
		return answer{}, fmt.Errorf("the answer broke off after %d bytes: %w", n, err)
	}
	return answer{res.StatusCode, res.Header, buf.Bytes()}, nil
}

// withoutQuery takes the URL out of an error of the HTTP client: its query may
// be a signature.
func withoutQuery(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		return ue.Err
	}
	return err
}

// errNotExist is in the chain of every "no such object": the checkpoint asks
// for objstore's word, the Iceberg library for the file system's.
var errNotExist = notExist{}

type notExist struct{}

func (notExist) Error() string { return objstore.ErrNotExist.Error() }
func (notExist) Is(target error) bool {
	return target == objstore.ErrNotExist || target == fs.ErrNotExist //nolint:errorlint // this is the comparison
}

func statusOf(err error) int {
	var se *statusError
	if errors.As(err, &se) {
		return se.status
	}
	return 0
}

func isNoObject(err error) bool {
	var se *statusError
	if !errors.As(err, &se) || se.status != http.StatusNotFound {
		return false
	}
	return se.code != "ContainerNotFound" && se.code != "ResourceNotFound" && !strings.Contains(strings.ToLower(se.message), "bucket does not exist")
}

// isTaken: the condition says that something is there.
func isTaken(err error) bool {
	s := statusOf(err)
	return s == http.StatusPreconditionFailed || s == http.StatusConflict
}

// named turns an error into a classified one, or into "does not exist".
func named(err error, doing string, l Location) error {
	switch {
	case err == nil, errors.Is(err, errNotExist):
		return err
	case isNoObject(err):
		return fmt.Errorf("%s: %w", l, errNotExist)
	}
	return classify(err, doing, l)
}

// classify says what a user can do about an error, and names the object.
func classify(err error, doing string, l Location) error {
	var known *failure.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	wrap := func(class failure.Class, hint string) error {
		f := failure.Wrap(class, err, "%s %s", doing, l)
		if hint != "" {
			f = f.WithHint("%s", hint)
		}
		return f
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return wrap(failure.Runtime, "")
	}
	var ae *authError
	if errors.As(err, &ae) {
		class := failure.Unreachable
		if ae.final {
			class = failure.Config
		}
		return wrap(class, credentialsHint(l.Kind))
	}
	var se *statusError
	if errors.As(err, &se) {
		switch {
		case se.status == http.StatusNotFound:
			return wrap(failure.Config, "make the bucket (or the container), or correct its name: Weir makes none")
		case se.status == http.StatusUnauthorized:
			return wrap(failure.Config, credentialsHint(l.Kind))
		case se.status == http.StatusForbidden && l.Kind == GCS:
			return wrap(failure.Config, "these credentials need the role Storage Object User (storage.objects.create, get, list, delete) on the bucket")
		case se.status == http.StatusForbidden:
			return wrap(failure.Config, "the account key, the SAS token (sp=racwdl) or the role Storage Blob Data Contributor is needed; a SAS token that has ended is refused too")
		case transient(se):
			return wrap(failure.Unreachable, "the store answered with errors for longer than the attempts lasted; it is safe to start again")
		}
		return wrap(failure.Runtime, "")
	}
	var dns *net.DNSError
	if errors.As(err, &dns) && dns.IsNotFound {
		return wrap(failure.Unreachable, "no such host: check the account's name and endpoint")
	}
	if text := err.Error(); strings.Contains(text, "x509: ") || strings.Contains(text, "HTTP response to HTTPS client") {
		return wrap(failure.Config, "the server's certificate is not trusted, or it does not speak TLS: check endpoint and caFile")
	}
	return wrap(failure.Unreachable, "check that the endpoint answers; it is safe to start again")
}

func credentialsHint(k Kind) string {
	if k == GCS {
		return "set credentialsFile in the pipeline's stores, or use the application default credentials (GOOGLE_APPLICATION_CREDENTIALS, workload identity, the instance's service account)"
	}
	return "set accountKey or sasToken in the pipeline's stores, or AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET (or AZURE_FEDERATED_TOKEN_FILE), or use a managed identity"
}
