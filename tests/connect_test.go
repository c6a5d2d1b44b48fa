package tests

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weirlake/weir/internal/kafkatest"
	"github.com/weirlake/weir/internal/s3test"
)

// connection is one line of what validate --connect reports.
type connection struct {
	Of, Need, Class, Error, Hint string
	OK                           bool
}

// connect runs validate --connect and gives what it tried.
func (l *lab) connectTo(wantExit int) []connection {
	l.t.Helper()
	out, errs, code := weir(l.t, nil, "validate", l.file, "--connect", "--output", "json")
	if code != wantExit {
		l.t.Fatalf("exit %d, want %d\n%s\n%s", code, wantExit, out, tail(errs))
	}
	var doc struct {
		Connect struct {
			OK          bool
			Connections []connection
		}
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		l.t.Fatalf("%v\n%s", err, out)
	}
	if doc.Connect.OK != (wantExit == exitOK) || len(doc.Connect.Connections) == 0 {
		l.t.Fatalf("ok is %v with exit %d and %d connections", doc.Connect.OK, code, len(doc.Connect.Connections))
	}
	return doc.Connect.Connections
}

// failed are the connections that failed, as text.
func failed(cs []connection) (out []string) {
	for _, c := range cs {
		if !c.OK {
			out = append(out, fmt.Sprintf("%s | %s | %s | %s | %s", c.Of, c.Class, c.Need, c.Error, c.Hint))
		}
	}
	return out
}

// tree lists everything below the lab's folder but the broker's own files.
func (l *lab) tree() (out []string) {
	l.t.Helper()
	err := filepath.WalkDir(l.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == "kafka" {
			return fs.SkipDir
		}
		out = append(out, path)
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return out
}

func TestConnectTriesEverythingAndLeavesNothingBehind(t *testing.T) {
	l := newLab(t, 100)
	before := l.tree()
	if cs := l.connectTo(exitOK); len(failed(cs)) > 0 {
		t.Errorf("a pipeline that has never run: %v", failed(cs))
	}
	if after := l.tree(); !slices.Equal(before, after) {
		t.Errorf("it left %v, there was %v", after, before)
	}
	l.edit("{processingTime: 20ms}", "{availableNow: true}")
	l.run(exitOK)
	before = l.tree()
	if cs := l.connectTo(exitOK); len(failed(cs)) > 0 {
		t.Errorf("a pipeline that has run: %v", failed(cs))
	}
	if after := l.tree(); !slices.Equal(before, after) {
		t.Errorf("it left %d entries, there were %d", len(after), len(before))
	}
	l.run(exitOK)
	l.exact()
}

func TestConnectNamesEverythingThatIsMissingAtOnce(t *testing.T) {
	l := newLab(t, 0)
	l.edit("topics: [edits]", "topics: [edits, nowhere]")
	blocked := filepath.Join(l.dir, "a-file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l.edit(fmt.Sprintf("checkpointLocation: %q", filepath.Join(l.dir, "checkpoints")), fmt.Sprintf("checkpointLocation: %q", filepath.Join(blocked, "checkpoints")))
	l.edit("sqlite:"+l.dir+"/catalog.db", "sqlite:"+blocked+"/catalog.db")
	all := strings.Join(failed(l.connectTo(exitConfig)), "\n")
	for _, want := range []string{"topic nowhere does not exist", "kafka.topics", "store | configuration | checkpoint of bronze", "checkpoint of silver", "catalog | configuration"} {
		if !strings.Contains(all, want) {
			t.Errorf("it does not say %q:\n%s", want, all)
		}
	}
}

func TestConnectTellsAServerThatIsOutOfReachFromAFaultOfTheFile(t *testing.T) {
	l := newLab(t, 0)
	l.broker.Kill9()
	fs := failed(l.connectTo(exitUnreachable))
	if len(fs) != 1 || !strings.HasPrefix(fs[0], "kafka | unreachable") {
		t.Errorf("failed %v, want the broker alone", fs)
	}
}

// useSecure points the pipeline at a Kafka with TLS and a log-in.
func (l *lab) useSecure(k *kafkatest.Secure, user, password string) {
	l.t.Helper()
	l.edit(fmt.Sprintf("bootstrapServers: [%q]", l.broker.Bootstrap()), fmt.Sprintf(
		"bootstrapServers: [%q]\n  tls: {caFile: %q}\n  sasl: {mechanism: SCRAM-SHA-512, username: %q, password: %q}", k.LoginTLS, k.CA, user, password))
}

func TestConnectOverASecuredKafkaNamesThePermissionsThatAreMissing(t *testing.T) {
	if os.Getenv("WEIR_TEST_SECURE") == "" {
		t.Skip("permissions of a real Kafka are part of make secure: set WEIR_TEST_SECURE=1")
	}
	k := kafkatest.StartSecure(t)
	for _, tt := range []struct {
		user, password string
		exit           int
		want           string
	}{
		{kafkatest.User, k.Password, exitOK, ""},
		{kafkatest.User, "wrong-secret", exitConfig, "kafka.sasl"},
		{kafkatest.Guest, k.Password, exitConfig, "topic edits"},
	} {
		l := newLab(t, 0)
		l.useSecure(k, tt.user, tt.password)
		l.edit("  sasl:", "  topics: [{name: edits}]\n  sasl:")
		all := strings.Join(failed(l.connectTo(tt.exit)), "\n")
		if !strings.Contains(all, tt.want) || strings.Contains(all, "wrong-secret") || strings.Contains(all, k.Password) {
			t.Errorf("user %s, want %q and no password: %s", tt.user, tt.want, all)
		}
	}
}

func TestConnectTriesAnS3StoreAndLeavesTheBucketEmpty(t *testing.T) {
	l, srv := newLabOnS3(t, 0)
	if fs := failed(l.connectTo(exitOK)); len(fs) > 0 {
		t.Errorf("failed %v", fs)
	}
	err := filepath.WalkDir(srv.ObjectPath(s3Bucket, ""), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			t.Errorf("it left %s", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	l.edit(fmt.Sprintf("secretAccessKey: %q", s3test.SecretAccessKey), `secretAccessKey: "planted-wrong-key"`)
	all := strings.Join(failed(l.connectTo(exitConfig)), "\n")
	if !strings.Contains(all, "store | configuration") || strings.Contains(all, "planted-wrong-key") {
		t.Errorf("it says %s", all)
	}
}
