package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
)

const (
	// watchIntervalMin keeps a mistyped interval from becoming a load.
	watchIntervalMin = time.Second
	// watchHeaderMax bounds how long a scraper may take to ask.
	watchHeaderMax = 10 * time.Second
	// alertMax bounds the command that is told of an alert.
	alertMax = 30 * time.Second
)

// watcher audits again and again, for as long as it is left to.
type watcher struct {
	g        *globals
	cfg      audit.Config
	interval time.Duration
	command  string // is told of alerts; empty tells nobody
	errs     io.Writer
	clock    clock.Clock

	lineage map[string]string // by table and engine: whose marks were the newest
	bad     map[string]bool   // tables whose last audit did not match

	exact, rows, missing, extra *prometheus.GaugeVec
	changes, audits, failures   *prometheus.CounterVec
	last, took                  prometheus.Gauge
}

func newWatcher(g *globals, cfg audit.Config, interval time.Duration, command string, errs io.Writer, reg prometheus.Registerer) *watcher {
	gauge := func(name, help string) *prometheus.GaugeVec {
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "weir_audit_" + name, Help: help}, []string{"table"})
		reg.MustRegister(v)
		return v
	}
	counter := func(name, help, label string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_audit_" + name, Help: help}, []string{label})
		reg.MustRegister(v)
		return v
	}
	w := &watcher{
		g: g, cfg: cfg, interval: interval, command: command, errs: errs, clock: clock.System{}, lineage: map[string]string{}, bad: map[string]bool{},
		exact:    gauge("exact", "1 where the last audit of the table was exact, 0 where it was not."),
		rows:     gauge("rows", "Rows of the table at the last audit."),
		missing:  gauge("missing_records", "Records of Kafka that the table lacked at the last audit."),
		extra:    gauge("extra_rows", "Rows of the table beyond what Kafka has, at the last audit."),
		changes:  counter("query_id_changes_total", "How often another lineage wrote to the table than at the audit before.", "table"),
		audits:   counter("tables_total", "Audited tables by outcome.", "outcome"),
		failures: counter("failures_total", "Audits that could not be made, by reason.", "reason"),
		last:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "weir_audit_last_timestamp_seconds", Help: "When the last audit ended."}),
		took:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "weir_audit_duration_seconds", Help: "How long the last audit took."}),
	}
	reg.MustRegister(w.last, w.took)
	return w
}

// watch audits until ctx ends. What it finds is in its output, its metrics and
// its alerts; the exit code of a watch that was stopped is 0.
func (w *watcher) watch(ctx context.Context) {
	for ctx.Err() == nil {
		began := w.clock.Now()
		w.once(ctx)
		w.last.Set(float64(w.clock.Now().Unix()))
		w.took.Set(w.clock.Now().Sub(began).Seconds())
		_ = w.clock.Sleep(ctx, max(w.interval-w.clock.Now().Sub(began), 0)) // or it was stopped
	}
}

func (w *watcher) once(ctx context.Context) {
	report, err := audit.Run(ctx, w.cfg)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		reason := "error"
		var f *failure.Error
		if errors.As(err, &f) {
			reason = f.Class.String()
		}
		w.failures.WithLabelValues(reason).Inc()
		fmt.Fprintln(w.errs, "weir: the audit could not be made, it is tried again:", err)
		return
	}
	if err := w.g.print(report, func(out io.Writer) error { report.WriteText(out); return nil }); err != nil {
		fmt.Fprintln(w.errs, "weir:", err)
	}
	for _, t := range report.Tables {
		w.judge(ctx, t)
	}
}

// judge keeps the figures of one table and alerts where they have turned.
func (w *watcher) judge(ctx context.Context, t *audit.TableReport) {
	w.audits.WithLabelValues(t.Outcome).Inc()
	ok := 0.0
	if t.Exact {
		ok = 1
	}
	w.exact.WithLabelValues(t.Table).Set(ok)
	w.rows.WithLabelValues(t.Table).Set(float64(t.Rows))
	w.missing.WithLabelValues(t.Table).Set(float64(t.MissingRecords()))
	w.extra.WithLabelValues(t.Table).Set(float64(t.ExtraRows()))
	bad := t.Outcome == audit.Mismatch
	if bad && !w.bad[t.Table] {
		w.alert(ctx, t.Table, "does not match: "+strings.Join(t.Reasons, "; "))
	} else if t.Exact && w.bad[t.Table] {
		w.alert(ctx, t.Table, "is exact again")
	}
	if t.Outcome != audit.Inconclusive {
		w.bad[t.Table] = bad
	}
	newest := map[string]string{}
	for _, by := range t.Writers { // the newest last
		newest[by.Engine] = by.ID
	}
	for engine, id := range newest {
		key := t.Table + "\x00" + engine
		if before := w.lineage[key]; before != "" && before != id {
			w.changes.WithLabelValues(t.Table).Inc()
			w.alert(ctx, t.Table, fmt.Sprintf("is written by another lineage of %s: %s, it was %s; a checkpoint was lost or reset", engine, id, before))
		}
		w.lineage[key] = id
	}
}

func (w *watcher) alert(ctx context.Context, table, text string) {
	fmt.Fprintf(w.errs, "weir: ALERT %s: %s\n", table, text)
	if w.command == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, alertMax)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", w.command)
	cmd.Env = append(cmd.Environ(), "WEIR_ALERT_TABLE="+table, "WEIR_ALERT_TEXT="+text)
	cmd.Stdout, cmd.Stderr = w.errs, w.errs
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(w.errs, "weir: the alert command failed:", err)
	}
}

// serveMetrics answers /metrics and /livez on addr until stop is called.
func serveMetrics(addr string, reg *prometheus.Registry) (at string, stop func(), err error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return "", nil, failure.Wrap(failure.Config, err, "listen on %s", addr).WithHint("choose another --listen address")
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: watchHeaderMax}
	go func() { _ = srv.Serve(ln) }()
	return ln.Addr().String(), func() { _ = srv.Close() }, nil
}
