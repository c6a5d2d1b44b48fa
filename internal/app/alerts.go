package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os/exec"
	"sync"
	"time"

	"github.com/weirlake/weir/internal/check"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/schedule"
)

const (
	// alertTries bounds the tries of one alert, alertsWaiting those under way.
	alertTries    = 3
	alertsWaiting = 16
	alertPause    = time.Second
	// alertRepeat is how long the same failure stays silent.
	alertRepeat = time.Hour
)

// Alert is what a webhook and a command get.
type Alert struct {
	Pipeline string    `json:"pipeline"`
	At       time.Time `json:"at"`
	// Kind is checks-failed, checks-passed (again) or job-failed.
	Kind   string         `json:"kind"`
	Text   string         `json:"text"`
	RunID  string         `json:"run_id"`
	Job    string         `json:"job,omitempty"`
	Error  string         `json:"error,omitempty"`
	Checks []check.Result `json:"checks,omitempty"`
}

// alerter sends alerts, without holding anybody up.
type alerter struct {
	p      *pipeline.Pipeline
	clock  clock.Clock
	logger *slog.Logger
	wg     sync.WaitGroup
	slots  chan struct{}

	mu   sync.Mutex
	last map[string]sent
}

// sent is the last alert of a kind: what it was about, and when.
type sent struct {
	about string
	at    time.Time
}

func newAlerter(p *pipeline.Pipeline, clk clock.Clock, logger *slog.Logger) *alerter {
	return &alerter{p: p, clock: clk, logger: logger, slots: make(chan struct{}, alertsWaiting), last: map[string]sent{}}
}

// checks alerts where the set of failing checks is another than the last time,
// or has been failing for alertRepeat; and once when all pass again.
func (a *alerter) checks(results []check.Result, runID string) {
	if a.p.Alerts == nil {
		return
	}
	bad := check.Alertable(results, a.p.Alerts.Severity)
	about := ""
	for _, r := range bad {
		about += r.Check + " " + r.Status + "; "
	}
	of := fmt.Sprintf("checks %d", len(results))
	if !a.fresh(of, about) {
		return
	}
	al := Alert{Kind: "checks-failed", RunID: runID, Checks: bad, Text: fmt.Sprintf("%d of %d checks failed: %s", len(bad), len(results), about)}
	if len(bad) == 0 {
		al.Kind, al.Text = "checks-passed", fmt.Sprintf("%d checks pass again", len(results))
	}
	a.send(al)
}

// job alerts that a run failed. Checks that fail speak for themselves.
func (a *alerter) job(r schedule.Run) {
	if a.p.Alerts == nil {
		return
	}
	for _, def := range a.p.Jobs {
		if def.Name == r.Job && def.Checks != nil {
			return
		}
	}
	if a.fresh("job "+r.Job, r.Error) {
		a.send(Alert{Kind: "job-failed", RunID: r.ID, Job: r.Job, Error: r.Error, Text: fmt.Sprintf("job %s failed after %d tries", r.Job, r.Tries)})
	}
}

// fresh reports whether there is something to say about of.
func (a *alerter) fresh(of, about string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	last, told := a.last[of]
	now := a.clock.Now()
	if about == last.about && (about == "" || (told && now.Sub(last.at) < alertRepeat)) {
		return false
	}
	a.last[of] = sent{about, now}
	return true
}

func (a *alerter) send(al Alert) {
	al.Pipeline, al.At = a.p.Name, a.clock.Now()
	body, err := json.Marshal(al)
	if err != nil {
		a.logger.Error("alert", "error", err)
		return
	}
	a.logger.Error("alert: "+al.Text, "kind", al.Kind, "run", al.RunID)
	select {
	case a.slots <- struct{}{}:
	default:
		a.logger.Error("too many alerts are under way: this one is only logged", "text", al.Text)
		return
	}
	a.wg.Go(func() {
		defer func() { <-a.slots }()
		for what, deliver := range map[string]func(context.Context, []byte) error{"webhook": a.webhook, "command": a.command} {
			a.deliver(what, deliver, body)
		}
	})
}

// wait ends when every alert is delivered or given up.
func (a *alerter) wait() { a.wg.Wait() }

func (a *alerter) deliver(what string, deliver func(context.Context, []byte) error, body []byte) {
	var err error
	for n := range alertTries {
		if n > 0 {
			_ = a.clock.Sleep(context.Background(), alertPause<<n)
		}
		ctx, cancel := context.WithTimeout(context.Background(), a.p.Alerts.Timeout)
		err = deliver(ctx, body)
		cancel()
		if err == nil {
			return
		}
	}
	a.logger.Error("an alert could not be delivered", "by", what, "tries", alertTries, "error", err)
}

func (a *alerter) webhook(ctx context.Context, body []byte) error {
	url := a.p.Alerts.Webhook.Reveal()
	if url == "" {
		return nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("the webhook's URL is not one") // the URL is a secret
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("the webhook does not answer")
	}
	_ = resp.Body.Close()
	if resp.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("the webhook answers %s", resp.Status)
	}
	return nil
}

func (a *alerter) command(ctx context.Context, body []byte) error {
	if a.p.Alerts.Command == "" {
		return nil
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", a.p.Alerts.Command)
	cmd.Stdin = bytes.NewReader(append(body, '\n'))
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}
