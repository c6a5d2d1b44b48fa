package tests

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestConnectTriesTheSinksOutsideWithoutEffect(t *testing.T) {
	l := newLab(t, 20)
	plain := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the receiver got a request") }))
	defer plain.Close()
	secure := httptest.NewTLSServer(plain.Config.Handler)
	defer secure.Close()
	blocked := filepath.Join(l.dir, "a-file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	topics, before := l.topicNames(), []string(nil)
	for _, tt := range []struct {
		to   string
		exit int
		want string // in the one failure
	}{
		{fmt.Sprintf("{http: {url: %q, onRejected: fail}}", plain.URL+"/in"), exitOK, ""},
		{fmt.Sprintf("{http: {url: %q, onRejected: fail}}", secure.URL+"/in"), exitConfig, "certificate"},
		{`{http: {url: "http://127.0.0.1:1/in?key=planted-query-63fe", onRejected: fail}}`, exitUnreachable, "sink | unreachable"},
		{fmt.Sprintf("{file: {path: %q}}", filepath.Join(l.dir, "drop", "here")), exitOK, ""},
		{fmt.Sprintf("{file: {path: %q}}", filepath.Join(blocked, "here")), exitConfig, "sink | configuration"},
		{fmt.Sprintf("{exec: {command: [touch, %q]}}", filepath.Join(l.dir, "ran")), exitOK, ""},
		{`{exec: {command: [no-such-program, "--token", planted-query-63fe]}}`, exitConfig, "no-such-program cannot be run"},
		{"{kafka: {topic: out}}", exitOK, ""},
		{`{kafka: {topic: out, bootstrapServers: ["127.0.0.1:1"]}}`, exitUnreachable, "sink | unreachable"},
		{`{postgres: {url: "postgres://weir:planted-query-63fe@127.0.0.1:1/lake", table: edits}}`, exitUnreachable, "sink | unreachable"},
	} {
		l.outside(tt.to)
		before = l.tree()
		fs := failed(l.connectTo(tt.exit))
		all := strings.Join(fs, "\n")
		if tt.exit == exitOK && len(fs) > 0 || tt.exit != exitOK && len(fs) != 1 || !strings.Contains(all, tt.want) || strings.Contains(all, "planted") {
			t.Errorf("%s: want %q and no secret, failed: %s", tt.to, tt.want, all)
		}
		if after := l.tree(); !slices.Equal(before, after) {
			t.Errorf("%s: it left %v, there was %v", tt.to, after, before)
		}
	}
	if got := l.topicNames(); !slices.Equal(got, topics) {
		t.Errorf("topics %v, there were %v", got, topics)
	}
}

// topicNames are the topics that a new client sees.
func (l *lab) topicNames() []string {
	l.t.Helper()
	l.connect()
	all, err := l.admin().ListTopics(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	return all.Names()
}
