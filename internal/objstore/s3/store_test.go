package s3_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/objstore/objstoretest"
	"github.com/weirlake/weir/internal/objstore/s3"
	"github.com/weirlake/weir/internal/s3test"
)

const bucket = "weir"

// open makes a client of an endpoint with small parts and short pauses.
func open(t *testing.T, endpoint string, change func(*s3.Config)) *s3.Client {
	t.Helper()
	cfg := s3.Config{
		Endpoint: endpoint, Region: s3test.Region, PathStyle: true,
		Credentials: s3.Credentials{AccessKeyID: s3test.AccessKeyID, SecretAccessKey: s3test.SecretAccessKey},
		BackOffMax:  20 * time.Millisecond,
	}
	if change != nil {
		change(&cfg)
	}
	c, err := s3.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func storeAt(c *s3.Client, prefix string) *s3.Store {
	return c.NewStore(s3.Location{Bucket: bucket, Key: prefix}, clock.System{})
}

func TestStoreConforms(t *testing.T) {
	srv := s3test.Start(t)
	srv.Bucket(bucket)
	c := open(t, srv.Endpoint(), nil)
	n := 0
	objstoretest.Conformance(t, "S3: versitygw", func() objstore.Store {
		n++
		return storeAt(c, fmt.Sprintf("conformance/%d", n))
	})
}

func TestStoreConformsWhereEveryListComesInPages(t *testing.T) {
	srv := s3test.Start(t)
	srv.Bucket(bucket)
	c := open(t, srv.Endpoint(), func(cfg *s3.Config) { cfg.PageKeys = 2 })
	n := 0
	objstoretest.Conformance(t, "S3: versitygw, two keys a page", func() objstore.Store {
		n++
		return storeAt(c, fmt.Sprintf("pages/%d", n))
	})
}

func TestAStoreBehindTLSIsTrustedByItsOwnAuthorityOnly(t *testing.T) {
	srv := s3test.StartTLS(t)
	srv.Bucket(bucket)
	trusting := storeAt(open(t, srv.Endpoint(), func(c *s3.Config) { c.CAFile = srv.CAFile() }), "tls")
	if err := trusting.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := storeAt(open(t, srv.Endpoint(), nil), "tls").Get(t.Context(), "k")
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Fatalf("without the authority: %v", err)
	}
}

func TestALostAnswerToACreateIsOurOwnObjectAndNotSomebodyElses(t *testing.T) {
	srv := s3test.Start(t)
	srv.Bucket(bucket)
	proxy := s3test.NewProxy(t, srv.Endpoint(), s3test.First(1, s3test.LoseAnswer, s3test.Method(http.MethodPut)))
	s := storeAt(open(t, proxy.URL, nil), "lost")
	created, existing, err := s.CreateOnce(t.Context(), "offsets/0", []byte("plan"))
	if err != nil || !created {
		t.Fatalf("created %v, existing %q, %v", created, existing, err)
	}
	// The same contents by another call are another writer's all the same.
	created, existing, err = s.CreateOnce(t.Context(), "offsets/0", []byte("plan"))
	if err != nil || created || string(existing) != "plan" {
		t.Fatalf("second create: %v, %q, %v", created, existing, err)
	}
}

func TestACreateWhoseEveryAnswerIsLostIsFoundByReadingBack(t *testing.T) {
	srv := s3test.Start(t)
	srv.Bucket(bucket)
	proxy := s3test.NewProxy(t, srv.Endpoint(), s3test.First(-1, s3test.LoseAnswer, s3test.Method(http.MethodPut)))
	created, _, err := storeAt(open(t, proxy.URL, nil), "lost").CreateOnce(t.Context(), "offsets/0", []byte("plan"))
	if err != nil || !created {
		t.Fatalf("created %v, %v", created, err)
	}
}

func TestALostAnswerToACompletedUploadIsFoundByReadingBack(t *testing.T) {
	srv := s3test.Start(t)
	srv.Bucket(bucket)
	proxy := s3test.NewProxy(t, srv.Endpoint(), s3test.First(1, s3test.LoseAnswer, s3test.Complete))
	c := open(t, proxy.URL, func(c *s3.Config) { c.PartBytes = 5 << 20 })
	large := bytes.Repeat([]byte("0123456789abcdef"), 11<<20/16)
	created, _, err := storeAt(c, "lost").CreateOnce(t.Context(), "state/1", large)
	if err != nil || !created {
		t.Fatalf("created %v, %v", created, err)
	}
	got, err := storeAt(c, "lost").Get(t.Context(), "state/1")
	if err != nil || !bytes.Equal(got, large) {
		t.Fatalf("%d bytes came back, %v", len(got), err)
	}
	if created, existing, err := storeAt(c, "lost").CreateOnce(t.Context(), "state/1", append(large, 'x')); err != nil || created || !bytes.Equal(existing, large) {
		t.Fatalf("a second large create: %v, %d bytes, %v", created, len(existing), err)
	}
	noUploads(t, srv)
}

func TestOfRacingLargeCreatesExactlyOneWins(t *testing.T) {
	srv := s3test.Start(t)
	srv.Bucket(bucket)
	s := storeAt(open(t, srv.Endpoint(), func(c *s3.Config) { c.PartBytes = 5 << 20 }), "race")
	const writers = 4
	var wg sync.WaitGroup
	won, seen := make([]bool, writers), make([]byte, writers)
	for i := range writers {
		wg.Go(func() {
			created, existing, err := s.CreateOnce(t.Context(), "state/1", bytes.Repeat([]byte{byte(i)}, 6<<20))
			if err != nil {
				t.Error(err)
				return
			}
			if won[i] = created; created {
				seen[i] = byte(i)
			} else {
				seen[i] = existing[0]
			}
		})
	}
	wg.Wait()
	winners := 0
	for i := range writers {
		if won[i] {
			winners++
		}
		if seen[i] != seen[0] {
			t.Errorf("writers saw the objects of %d and %d", seen[0], seen[i])
		}
	}
	if winners != 1 {
		t.Errorf("%d writers created the object", winners)
	}
	noUploads(t, srv)
}

// noUploads fails if parts of an unfinished upload are left on the server.
func noUploads(t *testing.T, srv *s3test.Server) {
	t.Helper()
	if left := srv.UnfinishedUploads(bucket); len(left) > 0 {
		t.Errorf("unfinished uploads are left: %v", left)
	}
}

func TestThrottlingBacksOffAndGetsThrough(t *testing.T) {
	srv := s3test.Start(t)
	srv.Bucket(bucket)
	proxy := s3test.NewProxy(t, srv.Endpoint(), s3test.First(5, s3test.SlowDown, func(*http.Request) bool { return true }))
	s := storeAt(open(t, proxy.URL, nil), "slow")
	if created, _, err := s.CreateOnce(t.Context(), "k", []byte("v")); err != nil || !created {
		t.Fatalf("created %v, %v", created, err)
	}
	if n := len(proxy.Seen()); n != 6 {
		t.Errorf("%d requests, want 5 refused and 1 done", n)
	}
}

func TestThrottlingWithoutEndIsUnreachable(t *testing.T) {
	srv := s3test.Start(t)
	srv.Bucket(bucket)
	proxy := s3test.NewProxy(t, srv.Endpoint(), s3test.First(-1, s3test.SlowDown, func(*http.Request) bool { return true }))
	err := storeAt(open(t, proxy.URL, nil), "slow").Put(t.Context(), "k", []byte("v"))
	if !failure.Is(err, failure.Unreachable) {
		t.Fatalf("%v, want class unreachable", err)
	}
}

func TestABodyThatBreaksOffIsReadAgain(t *testing.T) {
	srv := s3test.Start(t)
	srv.Bucket(bucket)
	proxy := s3test.NewProxy(t, srv.Endpoint(), s3test.First(2, s3test.BreakBody, s3test.Method(http.MethodGet)))
	s := storeAt(open(t, proxy.URL, nil), "broken")
	data := bytes.Repeat([]byte("weir"), 10_000)
	if err := s.Put(t.Context(), "k", data); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Get(t.Context(), "k"); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d of %d bytes, %v", len(got), len(data), err)
	}
}

// keys gives other credentials each time that it is asked.
type keys struct{ asked atomic.Int64 }

func (k *keys) Retrieve(context.Context) (aws.Credentials, error) {
	n := k.asked.Add(1)
	return aws.Credentials{AccessKeyID: fmt.Sprintf("key-%d", n), SecretAccessKey: "secret", SessionToken: fmt.Sprintf("session-%d", n)}, nil
}

func TestARefusedTokenIsRefreshedAndTheNextAttemptIsSignedWithTheNewOne(t *testing.T) {
	srv := newForgetful(t, false, false)
	proxy := s3test.NewProxy(t, srv, func(r *http.Request) s3test.Fault {
		// The first credentials run out in mid-upload.
		if s3test.KeyOf(r) == "key-1" && r.URL.Query().Get("partNumber") == "2" {
			return s3test.ExpiredToken
		}
		return s3test.Pass
	})
	c := open(t, proxy.URL, func(c *s3.Config) {
		c.Credentials, c.Provider, c.PartBytes = s3.Credentials{}, &keys{}, 1<<20
	})
	w := c.NewWriter(t.Context(), s3.Location{Bucket: bucket, Key: "data/f.parquet"})
	if _, err := w.Write(make([]byte, 5<<19)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	signed := map[string]bool{}
	for _, r := range proxy.Seen() {
		signed[s3test.KeyOf(r)+" "+r.Header.Get("X-Amz-Security-Token")] = true
	}
	if !signed["key-1 session-1"] || !signed["key-2 session-2"] || len(signed) != 2 {
		t.Errorf("requests were signed by %v", signed)
	}
}

func TestAFailedUploadIsAborted(t *testing.T) {
	srv := s3test.Start(t)
	srv.Bucket(bucket)
	proxy := s3test.NewProxy(t, srv.Endpoint(), func(r *http.Request) s3test.Fault {
		if r.URL.Query().Get("partNumber") == "2" {
			return s3test.SlowDown
		}
		return s3test.Pass
	})
	c := open(t, proxy.URL, func(c *s3.Config) { c.PartBytes = 5 << 20 })
	at := s3.Location{Bucket: bucket, Key: "data/f.parquet"}
	w := c.NewWriter(t.Context(), at)
	_, werr := w.Write(make([]byte, 16<<20))
	cerr := w.Close()
	if werr == nil && cerr == nil {
		t.Fatal("a file whose second part never arrived was closed")
	}
	if _, err := c.Stat(t.Context(), at); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is there: %v", err)
	}
	noUploads(t, srv)

	proxy = s3test.NewProxy(t, srv.Endpoint(), nil)
	c = open(t, proxy.URL, func(c *s3.Config) { c.PartBytes = 5 << 20 })
	w = c.NewWriter(t.Context(), at)
	if _, err := w.Write(make([]byte, 16<<20)); err != nil {
		t.Fatal(err)
	}
	w.Abort()
	w.Abort()
	if _, err := c.Stat(t.Context(), at); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is there after Abort: %v", err)
	}
	noUploads(t, srv)
}

func TestAFileComesBackByRangesAsItWasWritten(t *testing.T) {
	srv := s3test.Start(t)
	srv.Bucket(bucket)
	c := open(t, srv.Endpoint(), func(c *s3.Config) { c.PartBytes = 5 << 20 })
	for _, size := range []int{0, 1, 1000, 256 << 10, 5 << 20, 5<<20 + 1, 12<<20 + 17} {
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(i*7 + i>>11)
		}
		at := s3.Location{Bucket: bucket, Key: fmt.Sprintf("files/%d", size)}
		w := c.NewWriter(t.Context(), at)
		if _, err := io.Copy(w, bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		r, err := c.OpenReader(t.Context(), at)
		if err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes: read %d, %v", size, len(got), err)
		}
		for _, cut := range [][2]int{{0, 10}, {size / 3, size/3 + 4096}, {size / 2, size}, {size - 8, size}} {
			from, to := max(cut[0], 0), min(cut[1], size)
			if from >= to {
				continue
			}
			p := make([]byte, to-from)
			if n, err := r.ReadAt(p, int64(from)); n != len(p) || err != nil || !bytes.Equal(p, data[from:to]) {
				t.Errorf("%d bytes: ReadAt(%d, %d) = %d, %v", size, from, to, n, err)
			}
		}
		if n, err := r.ReadAt(make([]byte, 10), int64(size)); n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("%d bytes: reading past the end = %d, %v", size, n, err)
		}
	}
}

func TestAFileThatWasReplacedUnderAReaderIsNoticed(t *testing.T) {
	srv := s3test.Start(t)
	srv.Bucket(bucket)
	c := open(t, srv.Endpoint(), nil)
	at := s3.Location{Bucket: bucket, Key: "f"}
	if err := c.Write(t.Context(), at, make([]byte, 3<<20)); err != nil {
		t.Fatal(err)
	}
	r, err := c.OpenReader(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Write(t.Context(), at, bytes.Repeat([]byte("x"), 3<<20)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.ReadAt(make([]byte, 10), 0); err == nil {
		t.Fatal("bytes of another object were given out")
	}
}

// newForgetful is an S3 server of a kind that exists: it takes If-None-Match
// and ignores it, or drops user metadata. It checks no signature.
func newForgetful(t *testing.T, conditions, metadata bool) string {
	t.Helper()
	var mu sync.Mutex
	type stored struct {
		data  []byte
		nonce string
	}
	objects := map[string]stored{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		o, there := objects[r.URL.Path]
		switch {
		case r.Method == http.MethodPost && r.URL.Query().Has("uploads"):
			_, _ = io.WriteString(w, `<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>`)
		case r.Method == http.MethodPost:
			_, _ = io.WriteString(w, `<CompleteMultipartUploadResult><ETag>"e"</ETag></CompleteMultipartUploadResult>`)
		case r.Method == http.MethodPut && there && conditions && r.Header.Get("If-None-Match") == "*":
			w.WriteHeader(http.StatusPreconditionFailed)
		case r.Method == http.MethodPut:
			o := stored{data: body}
			if metadata {
				o.nonce = r.Header.Get("X-Amz-Meta-Weir-Nonce")
			}
			objects[r.URL.Path] = o
			w.Header().Set("ETag", `"e"`)
		case r.Method == http.MethodDelete:
			delete(objects, r.URL.Path)
			w.WriteHeader(http.StatusNoContent)
		case there:
			if o.nonce != "" {
				w.Header().Set("X-Amz-Meta-Weir-Nonce", o.nonce)
			}
			_, _ = w.Write(o.data)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestAStoreThatIgnoresConditionsIsRefused(t *testing.T) {
	for name, s := range map[string]struct {
		conditions, metadata bool
		word                 string
	}{
		"conditions are ignored":  {false, true, "create-once condition"},
		"metadata is not kept":    {true, false, "user metadata"},
		"everything is as it has": {true, true, ""},
	} {
		err := storeAt(open(t, newForgetful(t, s.conditions, s.metadata), nil), "probe").Probe(t.Context())
		switch {
		case s.word == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case s.word != "" && (!failure.Is(err, failure.Config) || !strings.Contains(err.Error(), s.word)):
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWhatTheUserGotWrongIsNamed(t *testing.T) {
	srv := s3test.Start(t)
	srv.Bucket(bucket)
	for name, tt := range map[string]struct {
		change func(*s3.Config)
		at     s3.Location
		word   string
	}{
		"unknown key":  {func(c *s3.Config) { c.Credentials.AccessKeyID = "nobody" }, s3.Location{Bucket: bucket, Key: "k"}, "accessKeyId"},
		"wrong secret": {func(c *s3.Config) { c.Credentials.SecretAccessKey = "planted-secret" }, s3.Location{Bucket: bucket, Key: "k"}, "secretAccessKey"},
		"no bucket":    {nil, s3.Location{Bucket: "nowhere", Key: "k"}, "bucket"},
	} {
		_, err := open(t, srv.Endpoint(), tt.change).Read(t.Context(), tt.at)
		if !failure.Is(err, failure.Config) || !strings.Contains(err.Error(), tt.word) {
			t.Errorf("%s: %v", name, err)
		}
		if errors.Is(err, objstore.ErrNotExist) {
			t.Errorf("%s reads like an object that is not there", name)
		}
		if strings.Contains(fmt.Sprint(err), "planted-secret") || strings.Contains(err.Error(), s3test.SecretAccessKey) {
			t.Errorf("%s shows the secret: %v", name, err)
		}
	}
	down := open(t, "http://127.0.0.1:1", nil)
	if _, err := down.Read(t.Context(), s3.Location{Bucket: bucket, Key: "k"}); !failure.Is(err, failure.Unreachable) {
		t.Errorf("a server that is down: %v", err)
	}
}

func TestWritesAskForTheEncryptionThatIsSet(t *testing.T) {
	proxy := s3test.NewProxy(t, newForgetful(t, true, true), nil)
	c := open(t, proxy.URL, func(c *s3.Config) { c.SSE, c.KMSKeyID, c.PartBytes = s3.SSEKMS, "key-7", 1<<20 })
	for _, size := range []int{10, 3 << 20} {
		if err := c.Write(t.Context(), s3.Location{Bucket: bucket, Key: fmt.Sprint(size)}, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	asked := 0
	for _, r := range proxy.Seen() {
		if r.Header.Get("X-Amz-Server-Side-Encryption") == "aws:kms" && r.Header.Get("X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id") == "key-7" {
			asked++
		}
	}
	if asked != 2 { // one object, one upload
		t.Errorf("%d requests asked for the encryption, want 2", asked)
	}
}

func TestARoleIsAssumedWithTheGivenKeys(t *testing.T) {
	var form string
	sts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		form = string(body)
		w.Header().Set("Content-Type", "text/xml")
		_, _ = io.WriteString(w, `<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
			<AccessKeyId>assumed</AccessKeyId><SecretAccessKey>secret</SecretAccessKey><SessionToken>session</SessionToken>
			<Expiration>2999-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>`)
	}))
	defer sts.Close()
	t.Setenv("AWS_ENDPOINT_URL_STS", sts.URL)
	proxy := s3test.NewProxy(t, newForgetful(t, true, true), nil)
	c := open(t, proxy.URL, func(c *s3.Config) {
		c.AssumeRole = &s3.AssumeRole{RoleARN: "arn:aws:iam::1:role/lake", ExternalID: "ext", SessionName: "weir-test"}
	})
	if err := c.Write(t.Context(), s3.Location{Bucket: bucket, Key: "k"}, []byte("v")); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"Action=AssumeRole", "role%2Flake", "ExternalId=ext", "RoleSessionName=weir-test"} {
		if !strings.Contains(form, part) {
			t.Errorf("STS was not asked for %s: %s", part, form)
		}
	}
	if r := proxy.Seen()[0]; s3test.KeyOf(r) != "assumed" || r.Header.Get("X-Amz-Security-Token") != "session" {
		t.Errorf("signed by %s, token %q", s3test.KeyOf(r), r.Header.Get("X-Amz-Security-Token"))
	}
}

func TestSettingsPrintWithoutTheirKeys(t *testing.T) {
	c := s3.Config{Credentials: s3.Credentials{AccessKeyID: "planted-id", SecretAccessKey: "planted-secret", SessionToken: "planted-token"}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(verb, c); strings.Contains(text, "planted") {
			t.Errorf("%s shows %s", verb, text)
		}
	}
}

func TestLocationsOfOtherStoresAreRefusedByName(t *testing.T) {
	for text, word := range map[string]string{
		"hdfs://b/p": "HDFS", "oss://b/p": "Alibaba", "ftp://x/y": "not supported", "s3:///p": "bucket",
	} {
		if _, err := s3.ParseLocation(text); !failure.Is(err, failure.Config) || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", text, err)
		}
	}
	for text, want := range map[string]string{"s3://b/p/q/": "s3://b/p/q", "s3a://b/p": "s3://b/p", "s3://b": "s3://b"} {
		if l, err := s3.ParseLocation(text); err != nil || l.String() != want {
			t.Errorf("%s = %s, %v", text, l, err)
		}
	}
}

func TestAStoreOutlivesItsServersRestart(t *testing.T) {
	srv := s3test.Start(t)
	srv.Bucket(bucket)
	s := storeAt(open(t, srv.Endpoint(), func(c *s3.Config) { c.BackOffMax = 0 }), "restart")
	if err := s.Put(t.Context(), "a", []byte("1")); err != nil {
		t.Fatal(err)
	}
	srv.Kill9()
	done := make(chan error)
	go func() {
		_, _, err := s.CreateOnce(t.Context(), "b", []byte("2"))
		done <- err
	}()
	srv.Restart()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got, err := s.Get(t.Context(), "a"); err != nil || string(got) != "1" {
		t.Fatalf("%q, %v", got, err)
	}
}
