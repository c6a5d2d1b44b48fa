package s3_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirlake/weir/internal/lake/catalogtest"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/objstore/objstoretest"
	"github.com/weirlake/weir/internal/objstore/s3"
	"github.com/weirlake/weir/internal/s3test"
)

// moto is an emulation; it is tried because the Glue tests stand on it.
func TestStoreConformsOnMoto(t *testing.T) {
	moto := catalogtest.StartMoto(t)
	moto.Bucket(bucket)
	c := open(t, "http://"+moto.Addr(), nil)
	if err := storeAt(c, "probe").Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	n := 0
	objstoretest.Conformance(t, "S3: moto, an emulation", func() objstore.Store {
		n++
		return storeAt(c, fmt.Sprintf("conformance/%d", n))
	})
}

func TestAListOfMoreThanAPageIsComplete(t *testing.T) {
	srv := s3test.Start(t)
	srv.Bucket(bucket)
	proxy := s3test.NewProxy(t, srv.Endpoint(), nil)
	s := storeAt(open(t, proxy.URL, nil), "pages")
	const keys = 2001 // S3 gives 1,000 a page
	var g errgroup.Group
	g.SetLimit(16)
	for n := range keys {
		g.Go(func() error { return s.Put(t.Context(), fmt.Sprintf("offsets/%05d", n), []byte("x")) })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	before := len(proxy.Seen())
	got, err := s.List(t.Context(), "offsets/")
	if err != nil || len(got) != keys {
		t.Fatalf("%d of %d keys, %v", len(got), keys, err)
	}
	for n, i := range got {
		if i.Key != fmt.Sprintf("offsets/%05d", n) {
			t.Fatalf("key %d is %s", n, i.Key)
		}
	}
	if pages := len(proxy.Seen()) - before; pages != 3 {
		t.Errorf("%d pages", pages)
	}
}

func TestThrottledAttemptsAreSignedAnew(t *testing.T) {
	proxy := s3test.NewProxy(t, newForgetful(t, true, true), s3test.First(2, s3test.SlowDown, s3test.Method(http.MethodPut)))
	c := open(t, proxy.URL, func(c *s3.Config) { c.BackOffMax = 1200 * time.Millisecond })
	if err := c.Write(t.Context(), s3.Location{Bucket: bucket, Key: "k"}, []byte("v")); err != nil {
		t.Fatal(err)
	}
	seen := proxy.Seen()
	if len(seen) != 3 {
		t.Fatalf("%d requests, want 2 refused and 1 done", len(seen))
	}
	ids := map[string]bool{}
	for _, r := range seen {
		if s3test.KeyOf(r) != s3test.AccessKeyID || r.Header.Get("X-Amz-Date") == "" {
			t.Errorf("an attempt is not signed: %v", r.Header)
		}
		ids[r.Header.Get("Amz-Sdk-Request")] = true
	}
	if len(ids) != 3 {
		t.Errorf("the attempts are copies of each other: %v", ids)
	}
}

// A pod's web identity: the token's file is read, and what STS gives signs.
func TestAWebIdentityOfTheDefaultChainSigns(t *testing.T) {
	var form string
	sts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		form = string(body)
		w.Header().Set("Content-Type", "text/xml")
		_, _ = io.WriteString(w, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult><Credentials>
			<AccessKeyId>from-web-identity</AccessKeyId><SecretAccessKey>secret</SecretAccessKey><SessionToken>session</SessionToken>
			<Expiration>2999-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`)
	}))
	defer sts.Close()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("the-pods-token"), 0o600); err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{
		"AWS_ENDPOINT_URL_STS": sts.URL, "AWS_ROLE_ARN": "arn:aws:iam::1:role/lake", "AWS_WEB_IDENTITY_TOKEN_FILE": token,
		"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_SESSION_TOKEN": "", "AWS_CONFIG_FILE": "/nonexistent", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
	} {
		t.Setenv(k, v)
	}
	proxy := s3test.NewProxy(t, newForgetful(t, true, true), nil)
	c := open(t, proxy.URL, func(c *s3.Config) { c.Credentials = s3.Credentials{} })
	if err := c.Write(t.Context(), s3.Location{Bucket: bucket, Key: "k"}, []byte("v")); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(form, "Action=AssumeRoleWithWebIdentity") || !strings.Contains(form, "the-pods-token") {
		t.Errorf("STS was asked %s", form)
	}
	if r := proxy.Seen()[0]; s3test.KeyOf(r) != "from-web-identity" || r.Header.Get("X-Amz-Security-Token") != "session" {
		t.Errorf("signed by %s", s3test.KeyOf(r))
	}
}

func TestPathStylePutsTheBucketIntoThePath(t *testing.T) {
	proxy := s3test.NewProxy(t, newForgetful(t, true, true), nil)
	if err := open(t, proxy.URL, nil).Write(t.Context(), s3.Location{Bucket: bucket, Key: "k"}, nil); err != nil {
		t.Fatal(err)
	}
	if r := proxy.Seen()[0]; r.URL.Path != "/"+bucket+"/k" || !strings.HasPrefix(r.Host, "127.0.0.1:") {
		t.Errorf("%s %s", r.Host, r.URL.Path)
	}
}
