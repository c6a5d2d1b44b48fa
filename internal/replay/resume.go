package replay

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// begin is where a connection begins.
type begin struct {
	frame int64
	// from is, per data centre, the time that its frames begin at; 0 where the
	// client named none: such a partition begins where the others do.
	from [2]int64
	// given is true where the client named a position at all.
	given bool
	// mark is the end mark that the client has, 0 for none.
	mark int64
}

// endTopic is a partition that only the id of the last frame names: its offset
// is the number of frames of the stream. A client keeps what ids say of every
// partition, so whoever sends it back has everything, however much earlier than
// its position it resumes (a client learns from the stream how far times go
// backwards in it, and the disorder of a recording may be minutes).
const endTopic = "weir.replay-sse.end"

// errBadPosition is a request that the service refuses with 400.
var errBadPosition = errors.New("not a position")

// resume reads Last-Event-ID, or the since parameter where there is none. A
// client that names nothing begins with the first frame: a replay has no
// present to begin at.
func (s *Server) resume(r *http.Request, rd reader) (begin, error) {
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		b, err := s.resumeAt(id, rd)
		if err != nil || b.given {
			return b, err
		}
	}
	since := r.URL.Query().Get("since")
	if since == "" {
		return begin{}, nil
	}
	ms, err := parseSince(since)
	if err != nil {
		return begin{}, err
	}
	return begin{frame: rd.FirstAt(ms), from: [2]int64{ms, ms}, given: true}, nil
}

// resumeAt begins at the earliest of the positions in an id.
func (s *Server) resumeAt(id string, rd reader) (begin, error) {
	var parts []struct {
		Topic     string `json:"topic"`
		Offset    *int64 `json:"offset"`
		Timestamp *int64 `json:"timestamp"`
	}
	if err := json.Unmarshal([]byte(id), &parts); err != nil {
		return begin{}, errBadPosition
	}
	b := begin{frame: s.stream.Length()}
	for _, p := range parts {
		if p.Topic == endTopic {
			if p.Offset != nil {
				b.mark = *p.Offset
			}
			continue
		}
		centre := 0
		if strings.HasPrefix(p.Topic, centres[1]+".") {
			centre = 1
		}
		switch {
		case p.Timestamp != nil && *p.Timestamp > 0:
			b.given, b.from[centre] = true, *p.Timestamp
			b.frame = min(b.frame, rd.FirstAt(*p.Timestamp))
		case p.Offset != nil && *p.Offset >= 0:
			n := min(max(*p.Offset-offsetBases[centre], 0), s.stream.Length())
			b.given = true
			b.frame = min(b.frame, n)
		}
	}
	if !b.given {
		b.frame = 0
	}
	return b, nil
}

// parseSince reads milliseconds or a date.
func parseSince(text string) (int64, error) {
	if ms, err := strconv.ParseInt(text, 10, 64); err == nil {
		return ms, nil
	}
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly, time.RFC1123} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UnixMilli(), nil
		}
	}
	return 0, errBadPosition
}

// endPosition is the position that the last frame is given: greater than any
// other, so that a client which has reached it has everything.
func (s *Server) endPosition() (ms int64, centre int) {
	rd := s.stream.reader()
	last := s.end - 1
	ms, centre = rd.Position(last)
	switch st := s.stream.(type) {
	case *Generator:
		ms = max(ms, st.arrival(rd.(*Cursor).frame(last).next))
	case *recording:
		ms = st.greatest[last]
	}
	return ms + 1, centre
}

// finished reports whether the client has everything: it names the end mark or
// resumes within the overlap of the end, and the last frame was sent. The last
// condition is for a client whose overlap is smaller than ours says: a server
// that was started again plays the tail once more before it ends anything.
func (s *Server) finished(b begin) bool {
	if s.end == endless || !b.given || s.stats.highest.Load() < s.end {
		return false
	}
	if b.mark == s.end {
		return true
	}
	if b.from == [2]int64{} {
		return b.frame >= s.end // by offset
	}
	return b.from[s.endCentre] >= s.endMillis-max(s.cfg.Overlap, 0).Milliseconds()
}
