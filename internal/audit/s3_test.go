package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/s3test"
)

func TestFilesOnS3AreReadInPiecesThroughThrottlingAndBrokenBodies(t *testing.T) {
	srv := s3test.Start(t)
	bucket := srv.Bucket("lake")
	n := 0
	proxy := s3test.NewProxy(t, srv.Endpoint(), func(r *http.Request) s3test.Fault {
		if n++; r.Method == http.MethodGet && n%3 == 0 {
			return s3test.BreakBody
		} else if n%5 == 0 {
			return s3test.SlowDown
		}
		return s3test.Pass
	})
	cfg := S3{Bucket: bucket, Endpoint: proxy.URL, Region: s3test.Region, PathStyle: true,
		AccessKeyID: s3test.AccessKeyID, SecretAccessKey: s3test.SecretAccessKey}
	store := NewStores(cfg)
	data := make([]byte, 2*s3BlockBytes+1000)
	for i := range data {
		data[i] = byte(i*7 + i>>13)
	}
	client, err := store.client(t.Context(), bucket)
	if err != nil {
		t.Fatal(err)
	}
	key := "t/data/f.parquet"
	if _, err := client.PutObject(t.Context(), &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: bytes.NewReader(data)}); err != nil {
		t.Fatal(err)
	}
	f, err := store.Open(t.Context(), "s3a://"+bucket+"/"+key)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(io.NewSectionReader(f, 0, f.Size())); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d of %d bytes, %v", len(got), len(data), err)
	}
	p := make([]byte, 100)
	if n, err := f.ReadAt(p, f.Size()-60); n != 60 || !errors.Is(err, io.EOF) || !bytes.Equal(p[:60], data[len(data)-60:]) {
		t.Errorf("the tail: %d, %v", n, err)
	}
	if _, err := store.Open(t.Context(), "s3://"+bucket+"/none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	cfg.SecretAccessKey = "planted-secret"
	_, err = NewStores(cfg).Open(t.Context(), "s3://"+bucket+"/"+key)
	if !failure.Is(err, failure.Config) || strings.Contains(fmt.Sprintf("%v %+v", err, cfg), "planted") {
		t.Errorf("a wrong secret: %v", err)
	}
}
