package replay

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/weirlake/weir/internal/failure"
)

// stream is what a server plays: frames with positions, by number.
type stream interface {
	// Length is the number of frames, endless where there is no end.
	Length() int64
	// reader makes a reader for one connection.
	reader() reader
}

// reader reads frames for one goroutine.
type reader interface {
	Append(dst []byte, n int64) []byte
	Position(n int64) (ms int64, centre int)
	FirstAt(ms int64) int64
}

func (g *Generator) reader() reader { return g.Cursor() }

// fileBytesMax bounds a file that is played; it is held in memory.
const fileBytesMax = 2 << 30

// recording is a JSONL file, one event a line.
type recording struct {
	lines [][]byte
	ms    []int64
	// greatest is the greatest position up to and including each line.
	greatest []int64
	centres  []uint8
}

// openRecording reads a file. A line's position is its meta.dt; a line without
// one has the position of the line before it, so that broken lines can be
// played too.
func openRecording(path string) (*recording, error) {
	st, err := os.Stat(path)
	if err == nil && st.Size() > fileBytesMax {
		err = fmt.Errorf("it has %d bytes, more than the limit of %d", st.Size(), int64(fileBytesMax))
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(path) //nolint:gosec // the path is the user's own
	}
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "cannot play the file %s", path)
	}
	r := &recording{}
	sc := bufio.NewScanner(bytes.NewReader(data))
	sc.Buffer(make([]byte, 0, 1<<20), len(data)+1)
	var last int64
	for sc.Scan() {
		line := bytes.TrimSuffix(sc.Bytes(), []byte("\r"))
		if len(line) == 0 {
			continue
		}
		r.lines = append(r.lines, bytes.Clone(line))
		ms, centre := metaOf(line)
		if ms == 0 {
			ms = last
		}
		last = ms
		r.ms = append(r.ms, ms)
		r.centres = append(r.centres, centre)
		top := ms
		if n := len(r.greatest); n > 0 {
			top = max(top, r.greatest[n-1])
		}
		r.greatest = append(r.greatest, top)
	}
	if err := sc.Err(); err != nil {
		return nil, failure.Wrap(failure.Config, err, "cannot play the file %s", path)
	}
	if len(r.lines) == 0 {
		return nil, failure.New(failure.Config, "the file %s has no line to play", path)
	}
	return r, nil
}

// metaOf reads meta.dt (0 where there is none) and the data centre of a line.
func metaOf(line []byte) (ms int64, centre uint8) {
	var e struct {
		Meta struct {
			DT    string `json:"dt"`
			Topic string `json:"topic"`
		} `json:"meta"`
	}
	if json.Unmarshal(line, &e) != nil {
		return 0, 0
	}
	if t, err := time.Parse(time.RFC3339Nano, e.Meta.DT); err == nil {
		ms = t.UnixMilli()
	}
	if strings.HasPrefix(e.Meta.Topic, centres[1]+".") {
		centre = 1
	}
	return ms, centre
}

// Length implements stream.
func (r *recording) Length() int64 { return int64(len(r.lines)) }

func (r *recording) reader() reader { return r }

// Append implements reader.
func (r *recording) Append(dst []byte, n int64) []byte { return append(dst, r.lines[n]...) }

// Position implements reader.
func (r *recording) Position(n int64) (int64, int) { return r.ms[n], int(r.centres[n]) }

// FirstAt implements reader. The first line whose greatest position so far
// reaches ms is the first one that reaches it itself.
func (r *recording) FirstAt(ms int64) int64 {
	return int64(sort.Search(len(r.greatest), func(i int) bool { return r.greatest[i] >= ms }))
}
