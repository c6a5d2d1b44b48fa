package prove

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	"github.com/weirlake/weir/internal/failure"
)

// results is the file of results in the work folder, one a line, so that a run
// that was interrupted can go on.
type results struct {
	f   *os.File
	old map[string]*Result
}

func openResults(path string, resume bool) (*results, error) {
	r := &results{old: map[string]*Result{}}
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
		if json.Unmarshal(lines.Bytes(), &res) == nil && res.Name != "" {
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

func resultKey(name string, repeat int) string { return fmt.Sprintf("%s/%d", name, repeat) }

// done is an earlier result that stands.
func (r *results) done(name string, repeat int) *Result {
	if old := r.old[resultKey(name, repeat)]; old != nil && old.Outcome != Inconclusive {
		return old
	}
	return nil
}

func (r *results) add(res *Result) error {
	b, err := json.Marshal(res)
	if err != nil {
		return err
	}
	_, err = r.f.Write(append(b, '\n'))
	return err
}

func (r *results) close() { _ = r.f.Close() }
