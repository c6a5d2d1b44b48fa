package tests

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
)

// TestNoSecretIsInAnythingThatAPipelineOnTheEmbeddedBrokerMakes is the search of
// make secure without servers that have to be fetched: what is secret there are
// keys of headers, of addresses and of a store, and the page's token.
func TestNoSecretIsInAnythingThatAPipelineOnTheEmbeddedBrokerMakes(t *testing.T) {
	l := newLab(t, 200)
	planted := secrets{
		"stream's key": "planted-header-41c7", "page's token": "planted-token-88d1", "receiver's key": "planted-bearer-5d02",
		"receiver's address": "planted-query-63fe", "webhook's address": "planted-hook-9b1e", "store's key": "planted-store-c470",
	}
	var delivered, alerted atomic.Int64
	receiver := http.NewServeMux()
	receiver.HandleFunc("/stream", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Key") != planted["stream's key"] {
			t.Error("the stream was asked without its key")
		}
		w.WriteHeader(http.StatusNoContent)
	})
	receiver.HandleFunc("/in", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+planted["receiver's key"] || r.URL.Query().Get("key") != planted["receiver's address"] {
			t.Error("a delivery came without its keys")
		}
		delivered.Add(1)
	})
	receiver.HandleFunc("/hook/"+planted["webhook's address"], func(http.ResponseWriter, *http.Request) { alerted.Add(1) })
	srv := httptest.NewServer(receiver)
	t.Cleanup(srv.Close)
	files := []string{l.file}
	file := func(name, secret string) string {
		path := filepath.Join(l.dir, name+".txt")
		if err := os.WriteFile(path, []byte(secret+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, path)
		return "${file:" + path + "}"
	}
	l.edit("queries:", fmt.Sprintf(`stores: [{endpoint: "http://127.0.0.1:1", region: here, pathStyle: true, accessKeyId: weir, secretAccessKey: %q}]
ingest:
  - name: stream
    sse: {url: "%s/stream", headers: {X-Key: %q}}
    topic: stream
checks:
  - {name: never, table: bronze.events, rowCount: {min: 1000000}}
jobs:
  - {name: look, checks: [never], every: 1s, retries: 0}
alerts: {webhook: "%s/hook/%s"}
queries:
  - name: out
    from: {kafka: {topics: [edits], startingOffsets: earliest}}
    trigger: {processingTime: 20ms}
    to: {http: {url: "%s/in?key=%s", headers: {Authorization: "Bearer %s"}, onRejected: fail}}`,
		file("store", planted["store's key"]), srv.URL, file("stream", planted["stream's key"]), srv.URL, planted["webhook's address"],
		srv.URL, planted["receiver's address"], planted["receiver's key"]))
	l.edit("status: {listen: none}", fmt.Sprintf("status: {listen: \"127.0.0.1:0\", token: %q}", file("token", planted["page's token"])))
	l.leaks(planted, files, func() bool { return delivered.Load() > 0 && alerted.Load() > 0 })
	changes := l.wrongCatalogs()
	changes["a receiver that is down"] = [2]string{srv.URL + "/in", "http://127.0.0.1:1/in"}
	changes["a bucket that is out of reach"] = [2]string{fmt.Sprintf("checkpointLocation: \"%s", l.dir), "checkpointLocation: \"s3://nowhere"}
	l.leaksOfFailures(planted, changes)
}
