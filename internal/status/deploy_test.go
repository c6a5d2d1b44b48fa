package status

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// ruleFile is the part of a Prometheus rule file that is looked at.
type ruleFile struct {
	Groups []struct {
		Rules []struct {
			Alert       string            `yaml:"alert"`
			Expr        string            `yaml:"expr"`
			Annotations map[string]string `yaml:"annotations"`
		} `yaml:"rules"`
	} `yaml:"groups"`
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestDashboardAndAlertsNameOnlyMetricsThatThereAre(t *testing.T) {
	known := map[string]bool{"weir_query_batch_duration_seconds": true}
	for _, h := range slices.Concat(metricHelp, jobMetricHelp) {
		known[h.name] = true
	}
	named, watcher := map[string]bool{}, read(t, "../cli/audit_watch.go")
	for _, path := range []string{"../../deploy/grafana/weir.json", "../../deploy/prometheus/alerts.yaml", "../../docs/operations.md"} {
		for _, name := range regexp.MustCompile(`\bweir_[a-z_]*[a-z]`).FindAllString(read(t, path), -1) {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if base := strings.TrimSuffix(name, suffix); known[base] {
					name = base
				}
			}
			if audit, ok := strings.CutPrefix(name, "weir_audit_"); ok {
				// Those of weir audit --watch, another process, which names them in parts.
				known[name] = strings.Contains(watcher, `"`+audit+`"`) || strings.Contains(watcher, `"`+name+`"`)
			}
			if !known[name] {
				t.Errorf("%s names %s", path, name)
			}
			named[name] = true
		}
	}
	if len(named) < 20 {
		t.Errorf("only %d metrics were found in the files", len(named))
	}
	if !json.Valid([]byte(read(t, "../../deploy/grafana/weir.json"))) {
		t.Error("the dashboard is not JSON")
	}
}

func TestEveryAlertHasAParagraphOfWhatToDo(t *testing.T) {
	var f ruleFile
	if err := yaml.Unmarshal([]byte(read(t, "../../deploy/prometheus/alerts.yaml")), &f); err != nil {
		t.Fatal(err)
	}
	docs := read(t, "../../docs/operations.md")
	n := 0
	for _, g := range f.Groups {
		for _, r := range g.Rules {
			n++
			if !strings.Contains(docs, "\n### "+r.Alert+"\n") || r.Annotations["runbook"] != "docs/operations.md#"+strings.ToLower(r.Alert) || r.Annotations["summary"] == "" {
				t.Errorf("alert %s: runbook %q, summary %q", r.Alert, r.Annotations["runbook"], r.Annotations["summary"])
			}
		}
	}
	if n == 0 {
		t.Error("no alerts")
	}
}
