// Package soak runs the demo for hours, in as many stretches as one likes on the
// same folder, and measures whether it stays as it was: memory, commit time,
// metadata, files. Each stretch ends with SIGKILL; the count at the end runs the
// demo on to the end of its stream and compares every layer with Kafka.
package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/freeport"
)

// Options says how long and how fast.
type Options struct {
	// Binary is the program under test.
	Binary string
	// Dir keeps the demo's folder, its log and the samples, between stretches too.
	Dir string
	// For is the length of this stretch; 0 only counts.
	For time.Duration
	// Rate is events a second.
	Rate float64
	// Every is how long one sample is; a minute by default.
	Every time.Duration
	// Count ends the stream after the stretch and counts every layer.
	Count    bool
	Progress io.Writer
	Clock    clock.Clock
}

// Files in the folder.
const (
	demoFolder  = "demo"
	samplesFile = "samples.jsonl"
	logFile     = "demo.log"
)

const (
	readyMax    = 5 * time.Minute
	metricsMax  = 20 * time.Second
	stopMax     = time.Minute
	rateDefault = 1000
	// looks are how many times the memory is read in a sample.
	looks = 12
)

// Run does one stretch, and the count where it is asked for, and reports all
// stretches of the folder together.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Clock == nil {
		o.Clock = clock.System{}
	}
	if o.Every <= 0 {
		o.Every = time.Minute
	}
	if o.Rate <= 0 {
		o.Rate = rateDefault
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, failure.Wrap(failure.Config, err, "the folder of the soak")
	}
	samples, err := load(filepath.Join(o.Dir, samplesFile))
	if err != nil {
		return nil, err
	}
	s := &stretch{o: o, samples: samples}
	if n := len(samples); n > 0 {
		s.before, s.number = samples[n-1].Seconds, samples[n-1].Stretch
	}
	s.number++
	if o.For > 0 {
		if err := s.run(ctx); err != nil {
			return nil, err
		}
	}
	r := newReport(o, s.samples)
	if o.Count {
		r.Counted, err = s.count(ctx)
	}
	return r, err
}

// stretch is one life of the demo.
type stretch struct {
	o       Options
	number  int
	before  float64 // seconds of earlier stretches
	samples []Sample
}

// run starts the demo, samples it until the time is over, and kills it.
func (s *stretch) run(ctx context.Context) (err error) {
	port, err := freeport.Find(1)
	if err != nil {
		return err
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	log, err := os.OpenFile(filepath.Join(s.o.Dir, logFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return failure.Wrap(failure.Config, err, "the log of the soak")
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	cmd := exec.Command(s.o.Binary, "demo", "--data", filepath.Join(s.o.Dir, demoFolder),
		"--rate", strconv.FormatFloat(s.o.Rate, 'f', -1, 64), "--listen", address, "--pprof")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return failure.Wrap(failure.Runtime, err, "start the demo")
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() {
		_ = cmd.Process.Kill()
		<-ended //nolint:errcheck // it was killed
	}()
	gone := func() bool {
		select {
		case err := <-ended:
			ended <- err
			return true
		default:
			return false
		}
	}
	last, err := s.first(ctx, address, gone)
	if err != nil {
		return err
	}
	began := s.o.Clock.Now()
	for s.o.Clock.Now().Sub(began) < s.o.For {
		now, memory, err := s.look(ctx, address)
		if err != nil || gone() {
			return errors.Join(failure.New(failure.Runtime, "the demo of the soak does not answer").
				WithHint("see %s", filepath.Join(s.o.Dir, logFile)), err)
		}
		sample := now.since(last, memory, s.number, s.before+s.o.Clock.Now().Sub(began).Seconds())
		last = now
		if err := s.keep(sample); err != nil {
			return err
		}
	}
	return nil
}

// look waits for the length of a sample and reads the metrics: the last reading,
// and the memory of each.
func (s *stretch) look(ctx context.Context, address string) (now *scraped, memory []float64, err error) {
	for range looks {
		if err := s.o.Clock.Sleep(ctx, s.o.Every/looks); err != nil {
			return nil, nil, err
		}
		if now, err = scrape(ctx, address); err != nil {
			return nil, nil, err
		}
		memory = append(memory, now.memoryMB())
	}
	return now, memory, nil
}

// first waits until the demo answers.
func (s *stretch) first(ctx context.Context, address string, gone func() bool) (*scraped, error) {
	for began := s.o.Clock.Now(); ; {
		got, err := scrape(ctx, address)
		if err == nil {
			return got, nil
		}
		if gone() || s.o.Clock.Now().Sub(began) > readyMax {
			return nil, failure.Wrap(failure.Runtime, err, "the demo of the soak did not start").WithHint("see %s", filepath.Join(s.o.Dir, logFile))
		}
		if err := s.o.Clock.Sleep(ctx, time.Second); err != nil {
			return nil, err
		}
	}
}

// keep appends a sample to the folder's file and says it.
func (s *stretch) keep(sample Sample) error {
	s.samples = append(s.samples, sample)
	f, err := os.OpenFile(filepath.Join(s.o.Dir, samplesFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return failure.Wrap(failure.Config, err, "the samples of the soak")
	}
	err = json.NewEncoder(f).Encode(sample)
	if s.o.Progress != nil {
		_, _ = fmt.Fprintln(s.o.Progress, sample)
	}
	return errors.Join(err, f.Close())
}

// count lets the demo play a little further than it came, to an end, and gives
// the summary in which it counts every layer. A count that does not come out is
// the demo's error.
func (s *stretch) count(ctx context.Context) (json.RawMessage, error) {
	if len(s.samples) == 0 {
		return nil, failure.New(failure.Config, "%s holds no samples: nothing has run there", s.o.Dir)
	}
	var seconds float64
	for _, sample := range s.samples {
		seconds = max(seconds, sample.Seconds)
	}
	// More than can have been played: the demo refuses an end that is behind it.
	events := int64(seconds*s.o.Rate*1.1) + 10_000
	cmd := exec.CommandContext(ctx, s.o.Binary, "demo", "--data", filepath.Join(s.o.Dir, demoFolder),
		"--events", strconv.FormatInt(events, 10), "--once", "--listen", "none", "--output", "json")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopMax
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		return nil, failure.Wrap(failure.Mismatch, err, "the count at the end: %s", bytes.TrimSpace(log.Bytes()))
	}
	return json.RawMessage(bytes.TrimSpace(out.Bytes())), nil
}

func scrape(ctx context.Context, address string) (*scraped, error) {
	ctx, cancel := context.WithTimeout(ctx, metricsMax)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("/metrics answered %s", resp.Status)
	}
	return parse(resp.Body)
}
