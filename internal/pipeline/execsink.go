package pipeline

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// Command is a program and its arguments, each as it is; a single text is the
// program, or with shell: true the line for the shell.
type Command []string

// ExecSink runs a program for each batch.
type ExecSink struct {
	Command Command           `yaml:"command" weir:"required"`
	Shell   bool              `yaml:"shell"`
	Dir     string            `yaml:"dir" weir:"path"`
	Env     map[string]Secret `yaml:"env"`
	Format  string            `yaml:"format" weir:"enum=ndjson|arrow"`
	AckRows bool              `yaml:"ackRows"`
	// Timeout bounds one run, Deadline the tries of a batch, Grace the time
	// between the signal to end and the one that kills.
	Timeout       time.Duration `yaml:"timeout" weir:"min=10ms"`
	Deadline      time.Duration `yaml:"deadline" weir:"min=0s"`
	Grace         time.Duration `yaml:"grace" weir:"min=1ms"`
	RecordKey     bool          `yaml:"recordKey"`
	MaxBatchBytes Size          `yaml:"maxBatchBytes" weir:"min=1048576"`
}

func (s *ExecSink) setDefaults() {
	s.Format, s.Timeout, s.Deadline, s.Grace, s.MaxBatchBytes = "ndjson", time.Minute, 2*time.Minute, 5*time.Second, DefaultMaxBatchBytes
}

// Target implements External: the program without its arguments, which may hold
// secrets. A query has a program to itself: two may run the same one.
func (s *ExecSink) Target() string {
	if len(s.Command) == 0 || s.Shell {
		return "exec:sh"
	}
	return "exec:" + s.Command[0]
}

// Rejects implements External: a program says yes or no to a batch.
func (*ExecSink) Rejects() (string, string) { return RejectFail, "" }

func (s *ExecSink) check(l *loader, _ *Pipeline, q *Query, key string) {
	if s.Shell && len(s.Command) > 1 {
		l.faultKey(key+".command", "command: with shell: true it is one text, a line for the shell")
	}
	for k := range s.Env {
		if strings.HasPrefix(k, "WEIR_") {
			l.faultKey(child(key+".env", k), "env: %s is set by weir", clip(k))
		}
	}
	if s.Dir != "" && !l.isBroken(key+".dir") {
		if fi, err := os.Stat(s.Dir); err != nil || !fi.IsDir() {
			l.faultKey(key+".dir", "dir: %s is not a folder", s.Dir)
		}
	}
	switch {
	case s.RecordKey && s.Format != "ndjson":
		l.faultKey(key+".recordKey", "recordKey is for format: ndjson; Arrow rows have their columns")
	case s.RecordKey:
		l.checkRecordKey(q, key+".recordKey")
	}
}

// decodeCommand fills a command: no commas are split, no word is stripped.
func (l *loader) decodeCommand(n ast.Node, out *Command, key string) {
	add := func(n ast.Node, at string) {
		val := l.unwrap(n, at)
		if val == nil {
			return
		}
		s, where, ok := l.scalar(val, at)
		switch {
		case !ok:
		case s.file:
			l.fault(where, at, "command is not a secret, so it cannot come from ${file:…}; use env")
		default:
			*out = append(*out, s.text)
		}
	}
	if seq, ok := n.(*ast.SequenceNode); ok {
		for i, item := range seq.Values {
			at := fmt.Sprintf("%s[%d]", key, i)
			l.places[at] = placeOf(item)
			add(item, at)
		}
	} else {
		add(n, key)
	}
	if !l.isBroken(key) && (len(*out) == 0 || strings.TrimSpace((*out)[0]) == "") {
		l.faultKey(key, "command is empty")
	}
}
