package tests

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestAnAuditThatWatchesAlertsWhenTheQueryIDChanges: the checkpoint of bronze is
// removed and its memory switched off, so that it starts over under another
// query id and doubles its rows.
func TestAnAuditThatWatchesAlertsWhenTheQueryIDChanges(t *testing.T) {
	l := newLab(t, 400)
	l.run(exitOK)
	told := filepath.Join(t.TempDir(), "alerts")
	w := start(t, nil, "audit", l.file, "--watch", "--interval", "1s", "--listen", "127.0.0.1:0", "--output", "json",
		"--alert-command", fmt.Sprintf(`echo "$WEIR_ALERT_TABLE $WEIR_ALERT_TEXT" >> '%s'`, told))
	var url string
	waitFor(t, "the address of the metrics", func() bool {
		m := regexp.MustCompile(`metrics at (http://\S+)`).FindStringSubmatch(w.errs.String())
		if m != nil {
			url = m[1]
		}
		return m != nil
	})
	metrics := func() string {
		resp, err := http.Get(url)
		if err != nil {
			return ""
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return string(b)
	}
	waitFor(t, "an exact audit", func() bool {
		return strings.Contains(metrics(), `weir_audit_exact{table="bronze.events"} 1`)
	})

	l.edit("    to:\n      iceberg: {table: bronze.events", "    onLostCheckpoint: restart\n    to:\n      iceberg: {table: bronze.events")
	if err := os.RemoveAll(filepath.Join(l.dir, "checkpoints", "bronze")); err != nil {
		t.Fatal(err)
	}
	l.run(exitOK, "--query", "bronze")
	waitFor(t, "the alerts", func() bool {
		b, _ := os.ReadFile(told)
		return strings.Contains(string(b), "bronze.events is written by another lineage of weir") && strings.Contains(string(b), "bronze.events does not match")
	})
	if m := metrics(); !strings.Contains(m, `weir_audit_query_id_changes_total{table="bronze.events"} 1`) {
		t.Errorf("the change is not counted:\n%s", m)
	}
	w.stop(exitOK)
	if lines := strings.Count(strings.TrimSpace(w.out.String()), "\n"); lines < 1 || !strings.HasPrefix(w.out.String(), `{"tables":`) {
		t.Errorf("%d lines of reports:\n%.300s", lines, w.out.String())
	}
}
