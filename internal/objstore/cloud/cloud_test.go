package cloud_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/objstore/cloud"
	"github.com/weirlake/weir/internal/objstore/cloud/cloudtest"
	"github.com/weirlake/weir/internal/objstore/objstoretest"
	"github.com/weirlake/weir/internal/s3test"
)

const partBytes = 1 << 20

// emulation is a store under test.
type emulation struct {
	*cloudtest.Server
	name   string
	at     cloud.Location
	config cloud.Config
}

func gcs(t *testing.T) emulation {
	t.Helper()
	srv := cloudtest.StartGCS(t)
	e := emulation{Server: srv, name: "Google Cloud Storage: fake-gcs-server, an emulation", config: cloud.Config{Kind: cloud.GCS, Endpoint: srv.Endpoint(), Anonymous: true}}
	return e.ready(t)
}

func azure(t *testing.T) emulation {
	t.Helper()
	srv := cloudtest.StartAzure(t)
	e := emulation{Server: srv, name: "Azure Blob Storage: Azurite, an emulation", config: cloud.Config{Kind: cloud.Azure, Account: cloudtest.Account,
		Endpoint: srv.Endpoint(), AccountKey: cloudtest.AccountKey}}
	return e.ready(t)
}

func (e emulation) ready(t *testing.T) emulation {
	t.Helper()
	at, err := cloud.ParseLocation(e.Bucket("weir"))
	if err != nil {
		t.Fatal(err)
	}
	e.at, e.config.PartBytes, e.config.BackOffMax = at, partBytes, 20*time.Millisecond
	return e
}

// each runs a test on every emulation.
func each(t *testing.T, run func(t *testing.T, e emulation)) {
	t.Helper()
	t.Run("GCS", func(t *testing.T) { run(t, gcs(t)) })
	t.Run("Azure", func(t *testing.T) { run(t, azure(t)) })
}

func (e emulation) open(t *testing.T, change func(*cloud.Config)) *cloud.Client {
	t.Helper()
	cfg := e.config
	if change != nil {
		change(&cfg)
	}
	c, err := cloud.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (e emulation) below(prefix string) cloud.Location {
	l := e.at
	l.Key = prefix
	return l
}

func (e emulation) store(t *testing.T, prefix string, change func(*cloud.Config)) *cloud.Store {
	t.Helper()
	return e.open(t, change).NewStore(e.below(prefix), clock.System{})
}

// behind puts a proxy with faults before the store.
func (e emulation) behind(t *testing.T, rule func(*http.Request) s3test.Fault) (*s3test.Proxy, func(*cloud.Config)) {
	t.Helper()
	p := s3test.NewProxy(t, e.Origin(), rule)
	return p, func(c *cloud.Config) { c.Endpoint = strings.Replace(c.Endpoint, e.Origin(), p.URL, 1) }
}

func writes(r *http.Request) bool { return r.Method == http.MethodPut || r.Method == http.MethodPost }

func TestStoresConform(t *testing.T) {
	each(t, func(t *testing.T, e emulation) {
		n := 0
		objstoretest.Conformance(t, e.name, func() objstore.Store {
			n++
			return e.store(t, fmt.Sprintf("conformance/%d", n), nil)
		})
	})
}

func TestStoresConformWhereEveryListComesInPages(t *testing.T) {
	each(t, func(t *testing.T, e emulation) {
		n := 0
		objstoretest.Conformance(t, e.name+", two keys a page", func() objstore.Store {
			n++
			return e.store(t, fmt.Sprintf("pages/%d", n), func(c *cloud.Config) { c.PageKeys = 2 })
		})
	})
}

func TestALostAnswerToACreateIsOurOwnObjectAndNotSomebodyElses(t *testing.T) {
	each(t, func(t *testing.T, e emulation) {
		_, at := e.behind(t, s3test.First(1, s3test.LoseAnswer, writes))
		s := e.store(t, "lost", at)
		created, existing, err := s.CreateOnce(t.Context(), "offsets/0", []byte("plan"))
		if err != nil || !created {
			t.Fatalf("created %v, existing %q, %v", created, existing, err)
		}
		// The same contents by another call are another writer's all the same.
		created, existing, err = s.CreateOnce(t.Context(), "offsets/0", []byte("plan"))
		if err != nil || created || string(existing) != "plan" {
			t.Fatalf("second create: %v, %q, %v", created, existing, err)
		}
	})
}

func TestACreateWhoseEveryAnswerIsLostIsFoundByReadingBack(t *testing.T) {
	each(t, func(t *testing.T, e emulation) {
		_, at := e.behind(t, s3test.First(-1, s3test.LoseAnswer, writes))
		created, _, err := e.store(t, "lost", at).CreateOnce(t.Context(), "offsets/0", []byte("plan"))
		if err != nil || !created {
			t.Fatalf("created %v, %v", created, err)
		}
	})
}

func TestLargeFilesComeThroughThrottlingLostAnswersAndBrokenBodies(t *testing.T) {
	large := make([]byte, 5*partBytes+12345)
	for i := range large {
		large[i] = byte(i*7 + i>>11)
	}
	each(t, func(t *testing.T, e emulation) {
		n := 0
		p, at := e.behind(t, func(r *http.Request) s3test.Fault {
			if r.URL.Query().Has("upload_id") { // these are tried on a server of our own
				return s3test.Pass
			}
			n++
			switch {
			case n%5 == 2:
				return s3test.SlowDown
			case n%5 == 4 && writes(r):
				return s3test.LoseAnswer
			case n%5 == 4 && r.Method == http.MethodGet:
				return s3test.BreakBody
			}
			return s3test.Pass
		})
		s := e.store(t, "large", at)
		if created, _, err := s.CreateOnce(t.Context(), "state/1", large); err != nil || !created {
			t.Fatalf("created %v, %v after %d requests", created, err, len(p.Seen()))
		}
		if got, err := s.Get(t.Context(), "state/1"); err != nil || !bytes.Equal(got, large) {
			t.Fatalf("%d of %d bytes, %v", len(got), len(large), err)
		}
		if created, existing, err := s.CreateOnce(t.Context(), "state/1", append(bytes.Clone(large), 'x')); err != nil || created || !bytes.Equal(existing, large) {
			t.Fatalf("a second large create: %v, %d bytes, %v", created, len(existing), err)
		}
	})
}

func TestOfRacingLargeCreatesExactlyOneWins(t *testing.T) {
	each(t, func(t *testing.T, e emulation) {
		s := e.store(t, "race", nil)
		const writers = 4
		var wg sync.WaitGroup
		won, seen := make([]bool, writers), make([]byte, writers)
		for i := range writers {
			wg.Go(func() {
				data := bytes.Repeat([]byte{byte('a' + i)}, 3*partBytes)
				created, existing, err := s.CreateOnce(t.Context(), "state/1", data)
				if err != nil {
					t.Error(err)
					return
				}
				if created {
					existing = data
				}
				won[i], seen[i] = created, existing[0]
			})
		}
		wg.Wait()
		winners := 0
		for i := range writers {
			if won[i] {
				winners++
			}
			if seen[i] != seen[0] {
				t.Errorf("writers saw the objects of %c and %c", seen[0], seen[i])
			}
		}
		if winners != 1 {
			t.Errorf("%d writers created the object", winners)
		}
	})
}

func TestThrottlingWithoutEndIsUnreachable(t *testing.T) {
	each(t, func(t *testing.T, e emulation) {
		_, at := e.behind(t, s3test.First(-1, s3test.SlowDown, func(*http.Request) bool { return true }))
		if err := e.store(t, "slow", at).Put(t.Context(), "k", []byte("v")); !failure.Is(err, failure.Unreachable) {
			t.Fatalf("%v, want class unreachable", err)
		}
	})
}

func TestAFileComesBackByRangesAsItWasWritten(t *testing.T) {
	each(t, func(t *testing.T, e emulation) {
		c := e.open(t, nil)
		for _, size := range []int{0, 1, 1000, 256 << 10, partBytes, partBytes + 1, 3*partBytes + 17} {
			data := make([]byte, size)
			for i := range data {
				data[i] = byte(i*7 + i>>11)
			}
			at := e.below(fmt.Sprintf("files/%d=a b%%20+c", size))
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
			if i, err := c.Stat(t.Context(), at); err != nil || i.Size != int64(size) || i.Modified.IsZero() {
				t.Errorf("%d bytes: %+v, %v", size, i, err)
			}
		}
		found := 0
		if err := c.List(t.Context(), e.below("files"), func(cloud.Location, cloud.Info) error { found++; return nil }); err != nil || found != 7 {
			t.Errorf("%d files are listed, %v", found, err)
		}
	})
}

func TestAFileThatWasReplacedUnderAReaderIsNoticed(t *testing.T) {
	each(t, func(t *testing.T, e emulation) {
		c, at := e.open(t, nil), e.below("f")
		if err := c.Write(t.Context(), at, make([]byte, 3*partBytes)); err != nil {
			t.Fatal(err)
		}
		r, err := c.OpenReader(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Write(t.Context(), at, bytes.Repeat([]byte("x"), 3*partBytes)); err != nil {
			t.Fatal(err)
		}
		if _, err := r.ReadAt(make([]byte, 10), 0); err == nil {
			t.Fatal("bytes of another object were given out")
		}
	})
}

func TestAFileGivenUpIsNotThere(t *testing.T) {
	each(t, func(t *testing.T, e emulation) {
		c, at := e.open(t, nil), e.below("data/f.parquet")
		w := c.NewWriter(t.Context(), at)
		if _, err := w.Write(make([]byte, 3*partBytes)); err != nil {
			t.Fatal(err)
		}
		w.Abort()
		w.Abort()
		if _, err := c.Stat(t.Context(), at); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the file is there after Abort: %v", err)
		}
		if err := c.List(t.Context(), e.below("data"), func(l cloud.Location, _ cloud.Info) error { return fmt.Errorf("%s is there", l) }); err != nil {
			t.Error(err)
		}
		// Another try under the same name is not disturbed by what was left.
		if err := c.Write(t.Context(), at, bytes.Repeat([]byte("y"), 2*partBytes+1)); err != nil {
			t.Fatal(err)
		}
	})
}

func TestWhatTheUserGotWrongIsNamed(t *testing.T) {
	each(t, func(t *testing.T, e emulation) {
		nowhere := e.at
		nowhere.Bucket = strings.Replace(nowhere.Bucket, "weir", "nowhere", 1)
		nowhere.Key = "k"
		_, err := e.open(t, nil).Read(t.Context(), nowhere)
		// fake-gcs-server does not tell a missing bucket from a missing object.
		if e.config.Kind == cloud.Azure && (!failure.Is(err, failure.Config) || errors.Is(err, objstore.ErrNotExist)) {
			t.Errorf("no bucket: %v", err)
		}
		if err := e.open(t, nil).Write(t.Context(), nowhere, []byte("x")); !failure.Is(err, failure.Config) && !errors.Is(err, objstore.ErrNotExist) {
			t.Errorf("no bucket to write to: %v", err)
		}
		down := e.open(t, func(c *cloud.Config) { c.Endpoint = "http://127.0.0.1:1" })
		if _, err := down.Read(t.Context(), e.below("k")); !failure.Is(err, failure.Unreachable) {
			t.Errorf("a server that is down: %v", err)
		}
		if e.config.Kind != cloud.Azure {
			return
		}
		const wrong = "cGxhbnRlZC1zZWNyZXQ="
		_, err = e.open(t, func(c *cloud.Config) { c.AccountKey = wrong }).Read(t.Context(), e.below("k"))
		if !failure.Is(err, failure.Config) || errors.Is(err, objstore.ErrNotExist) || strings.Contains(err.Error(), wrong) {
			t.Errorf("a wrong key: %v", err)
		}
	})
}

func TestAStoreOutlivesItsServersRestart(t *testing.T) {
	each(t, func(t *testing.T, e emulation) {
		s := e.store(t, "restart", func(c *cloud.Config) { c.BackOffMax = 0 })
		if err := s.Put(t.Context(), "a", []byte("1")); err != nil {
			t.Fatal(err)
		}
		e.Down()
		done := make(chan error)
		go func() {
			_, _, err := s.CreateOnce(context.WithoutCancel(t.Context()), "b", []byte("2"))
			done <- err
		}()
		e.Restart()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if got, err := s.Get(t.Context(), "a"); err != nil || string(got) != "1" {
			t.Fatalf("%q, %v", got, err)
		}
	})
}
