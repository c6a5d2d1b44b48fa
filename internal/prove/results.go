package prove

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/weirlake/weir/internal/failure"
)

// results is the file of results in the work folder, one a line, so that a run
// that was interrupted can go on. They speak for one binary only: what another
// build came to is left aside.
type results struct {
	build string
	old   map[string]*Result

	mu sync.Mutex
	f  *os.File
}

func openResults(path, build string, resume bool) (*results, error) {
	r := &results{build: build, old: map[string]*Result{}}
	mode := os.O_CREATE | os.O_WRONLY | os.O_TRUNC
	if resume {
		mode = os.O_CREATE | os.O_RDWR | os.O_APPEND
	}
	f, err := os.OpenFile(path, mode, 0o644)
	if err != nil {
		return nil, err
	}
	r.f = f
	if !resume {
		return r, nil
	}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var res Result
		// A line that was cut by a kill of our own is done again.
		if json.Unmarshal(lines.Bytes(), &res) == nil && res.Name != "" && res.Build == build {
			r.old[resultKey(res.Name, res.Repeat)] = &res
		}
	}
	if err := lines.Err(); err != nil {
		f.Close()
		return nil, failure.Wrap(failure.Runtime, err, "read %s", path)
	}
	// An interrupted last line must not swallow the next result.
	if _, err := f.WriteString("\n"); err != nil {
		f.Close()
		return nil, err
	}
	return r, nil
}

// WriteJSON writes the report as the status page reads it: without the figures of
// each scenario's course, which --output json has.
func (r *Report) WriteJSON(w io.Writer) error {
	short := *r
	short.Scenarios = make([]*Result, len(r.Scenarios))
	for i, s := range r.Scenarios {
		one := *s
		one.Timeline = nil
		short.Scenarios[i] = &one
	}
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(short)
}

func resultKey(name string, repeat int) string { return fmt.Sprintf("%s/%d", name, repeat) }

// done is an earlier result that stands: with the kind of broker that the
// scenario would meet now.
func (r *results) done(name string, repeat int, brokerKind string) *Result {
	old := r.old[resultKey(name, repeat)]
	if old == nil || old.Outcome == Inconclusive || old.BrokerKind != brokerKind {
		return nil
	}
	return old
}

// add keeps a result. Scenarios that run side by side call it at once.
func (r *results) add(res *Result) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	res.Build = r.build
	b, err := json.Marshal(res)
	if err != nil {
		return err
	}
	_, err = r.f.Write(append(b, '\n'))
	return err
}

func (r *results) close() { _ = r.f.Close() }
