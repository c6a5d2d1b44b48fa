package sse

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func readAll(t *testing.T, src io.Reader, limit int) ([]Event, *Reader) {
	t.Helper()
	r := NewReader(src, limit)
	var out []Event
	for {
		ev, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out, r
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, ev)
	}
}

func show(evs []Event) string {
	var b strings.Builder
	for _, e := range evs {
		fmt.Fprintf(&b, "%s|%s|%q|%v|%d\n", e.Type, e.ID, e.Data, e.HasData, e.Size)
	}
	return b.String()
}

var framing = []struct {
	name, in, want string
}{
	{"the fields of an event", "event: message\nid: 7\ndata: a\n\n", "message|7|\"a\"|true|1\n"},
	{"CR ends lines", "id: 7\rdata: a\r\rdata: b\r\r", "message|7|\"a\"|true|1\nmessage|7|\"b\"|true|1\n"},
	{"CRLF ends lines", "id: 7\r\ndata: a\r\n\r\ndata: b\r\n\r\n", "message|7|\"a\"|true|1\nmessage|7|\"b\"|true|1\n"},
	{"line ends may be mixed", "data: a\r\ndata: b\rdata: c\n\r", "message||\"a\\nb\\nc\"|true|5\n"},
	{"LF CR is two line ends", "data: a\n\rdata: b\n\n", "message||\"a\"|true|1\nmessage||\"b\"|true|1\n"},
	{"a byte order mark is dropped once", "\xEF\xBB\xBFdata: a\n\n\xEF\xBB\xBFdata: b\n\n", "message||\"a\"|true|1\n"},
	{"one space after the colon goes", "data:a\ndata:  b\n\n", "message||\"a\\n b\"|true|4\n"},
	{"a field without a colon is empty", "data\n\n", "message||\"\"|true|0\n"},
	{"two empty data lines are a newline", "data\ndata\n\n", "message||\"\\n\"|true|1\n"},
	{"comments are no events", ":ok\n\n: life\n\n", ""},
	{"an id stays for the next events", "id: 1\ndata: a\n\ndata: b\n\n", "message|1|\"a\"|true|1\nmessage|1|\"b\"|true|1\n"},
	{"an id with NUL is ignored", "id: 1\ndata: a\n\nid: 2\x00\ndata: b\n\n", "message|1|\"a\"|true|1\nmessage|1|\"b\"|true|1\n"},
	{"an empty id is taken", "id: 1\ndata: a\n\nid\ndata: b\n\n", "message|1|\"a\"|true|1\nmessage||\"b\"|true|1\n"},
	{"a block without data moves the id", "id: 9\n\n", "|9|\"\"|false|0\n"},
	{"a type does not outlive its event", "event: error\ndata: x\n\ndata: y\n\n", "error||\"x\"|true|1\nmessage||\"y\"|true|1\n"},
	{"a type without data does nothing", "event: error\n\ndata: y\n\n", "message||\"y\"|true|1\n"},
	{"unknown fields are ignored", "foo: bar\nDATA: q\ndata : q\ndata: a\n\n", "message||\"a\"|true|1\n"},
	{"an event that no empty line ends is dropped", "data: a\n\ndata: b\n", "message||\"a\"|true|1\n"},
	{"bytes are kept as they are", "data: \xff\x00\xfe\n\n", "message||\"\\xff\\x00\\xfe\"|true|3\n"},
	{"empty lines in a row are nothing", "\n\n\r\r\n\ndata: a\n\n\n", "message||\"a\"|true|1\n"},
	{"colons in the value stay", "data: {\"a\":1}\n\n", "message||\"{\\\"a\\\":1}\"|true|7\n"},
}

func TestFramingFollowsTheStandardHoweverTheBytesArrive(t *testing.T) {
	for _, c := range framing {
		t.Run(c.name, func(t *testing.T) {
			for name, src := range map[string]io.Reader{
				"whole":     strings.NewReader(c.in),
				"one byte":  iotest.OneByteReader(strings.NewReader(c.in)),
				"half":      iotest.HalfReader(strings.NewReader(c.in)),
				"data+EOF":  iotest.DataErrReader(strings.NewReader(c.in)),
				"three":     &chunks{b: []byte(c.in), n: 3},
				"nothing's": &chunks{b: []byte(c.in), n: 1, empty: true},
			} {
				got, _ := readAll(t, src, 0)
				if s := show(got); s != c.want {
					t.Errorf("%s: got\n%swant\n%s", name, s, c.want)
				}
			}
		})
	}
}

// chunks gives n bytes at a time, with empty reads in between where asked.
type chunks struct {
	b     []byte
	n     int
	empty bool
	flip  bool
}

func (c *chunks) Read(p []byte) (int, error) {
	if c.empty {
		if c.flip = !c.flip; c.flip {
			return 0, nil
		}
	}
	if len(c.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.b[:min(c.n, len(c.b))])
	c.b = c.b[n:]
	return n, nil
}

func TestAnEventIsCompleteAtItsCRWithoutWaitingForALF(t *testing.T) {
	pr, pw := io.Pipe()
	defer pw.Close()
	go func() { _, _ = pw.Write([]byte("data: a\r\r")) }()
	ev, err := NewReader(pr, 0).Next()
	if err != nil || string(ev.Data) != "a" {
		t.Fatalf("%v %q", err, ev.Data)
	}
}

func TestManyEventsSurviveTheChangeOfSlabs(t *testing.T) {
	var in, want bytes.Buffer
	for i := range 20_000 {
		v := strings.Repeat(string(rune('a'+i%26)), 1+i*37%900)
		fmt.Fprintf(&in, "id: %d\ndata: %s\n\n", i, v)
		fmt.Fprintf(&want, "%d %s\n", i, v)
	}
	evs, _ := readAll(t, &in, 0)
	var got bytes.Buffer
	for _, e := range evs { // after everything was read: no event may have been overwritten
		fmt.Fprintf(&got, "%s %s\n", e.ID, e.Data)
	}
	if !bytes.Equal(got.Bytes(), want.Bytes()) {
		t.Fatal("events changed after they were read")
	}
}

func TestAnOversizeEventIsCutAndTheStreamGoesOn(t *testing.T) {
	const limit = 100_000
	big := strings.Repeat("x", limit+1)
	half := strings.Repeat("y", limit/2+10)
	huge := strings.Repeat("z", 3_000_000)
	for _, c := range []struct {
		name, in string
		size     int64
	}{
		{"one line a byte over", "id: 5\ndata: " + big + "\n\n", limit + 1},
		{"one line far over", "id: 5\ndata: " + huge + "\n\n", 3_000_000},
		{"no space after the colon", "id: 5\ndata:" + huge + "\n\n", 3_000_000},
		{"two lines together over", "id: 5\ndata: " + half + "\ndata: " + half + "\n\n", limit + 21},
		{"a long line between short ones", "data: a\ndata: " + huge + "\ndata: b\nid: 5\n\n", 3_000_004},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, src := range []io.Reader{strings.NewReader(c.in + "data: after\n\n"), &chunks{b: []byte(c.in + "data: after\n\n"), n: 70_001}} {
				evs, r := readAll(t, src, limit)
				if len(evs) != 2 || string(evs[1].Data) != "after" || evs[1].Oversize() {
					t.Fatalf("%d events", len(evs))
				}
				e := evs[0]
				if !e.Oversize() || e.Size != c.size || string(e.ID) != "5" || len(e.Data) > EvidenceBytes || len(e.Data) < EvidenceBytes/2 {
					t.Errorf("oversize %v, size %d (want %d), id %q, %d bytes kept", e.Oversize(), e.Size, c.size, e.ID, len(e.Data))
				}
				if r.Counts().Oversize != 1 {
					t.Errorf("counted %d", r.Counts().Oversize)
				}
			}
		})
	}
}

func TestAnEventOfExactlyTheLimitIsWhole(t *testing.T) {
	in := "data: " + strings.Repeat("x", 5000) + "\n\n"
	evs, _ := readAll(t, strings.NewReader(in), 5000)
	if len(evs) != 1 || evs[0].Oversize() || len(evs[0].Data) != 5000 {
		t.Fatalf("%+v", evs)
	}
}

func TestLongLinesThatAreNoDataCostNothingButThemselves(t *testing.T) {
	long := strings.Repeat("c", 2_000_000)
	in := "id: 1\n:" + long + "\nid: " + long + "\nfoo: " + long + "\ndata: a\n\n"
	evs, r := readAll(t, &chunks{b: []byte(in), n: 50_000}, 10_000)
	if s := show(evs); s != "message|1|\"a\"|true|1\n" {
		t.Fatal(s)
	}
	if c := r.Counts(); c.Comments != 1 || c.BadIDs != 1 || c.Oversize != 0 {
		t.Errorf("%+v", c)
	}
}

func TestA20MiBEventWithinTheLimitIsWhole(t *testing.T) {
	v := strings.Repeat("0123456789abcdef", 20<<20/16)
	evs, _ := readAll(t, strings.NewReader("data: a\n\ndata: "+v+"\n\ndata: b\n\n"), 0)
	if len(evs) != 3 || string(evs[1].Data) != v {
		t.Fatalf("%d events", len(evs))
	}
}

func TestRetryTakesDigitsOnly(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"retry: 1500\n": 1500 * time.Millisecond, "retry: 0\n": 0, "retry: -1\n": -1, "retry: 1.5\n": -1,
		"retry\n": -1, "retry: 1e3\n": -1, "retry: 99999999999999999999\n": -1, "retry: 7\nretry: x\n": 7 * time.Millisecond,
	} {
		_, r := readAll(t, strings.NewReader(in+"data: a\n\n"), 0)
		if r.Retry() != want {
			t.Errorf("%q: %v, want %v", in, r.Retry(), want)
		}
	}
}

func FuzzChunkingNeverChangesTheEvents(f *testing.F) {
	for _, c := range framing {
		f.Add([]byte(c.in), 2)
	}
	f.Fuzz(func(t *testing.T, in []byte, n int) {
		whole, _ := readAll(t, bytes.NewReader(in), 50)
		parts, _ := readAll(t, &chunks{b: in, n: max(1, n%7)}, 50)
		// What is kept of an oversize event may depend on the reads; that it is
		// oversize, and by how much, may not.
		for _, evs := range [][]Event{whole, parts} {
			for i := range evs {
				if evs[i].Oversize() {
					evs[i].Data = nil
				}
			}
		}
		if show(whole) != show(parts) {
			t.Errorf("whole\n%sin parts\n%s", show(whole), show(parts))
		}
	})
}

func BenchmarkReader(b *testing.B) {
	one := []byte("event: message\nid: [{\"topic\":\"eqiad.mediawiki.recentchange\",\"partition\":0,\"timestamp\":1630070414001},{\"topic\":\"codfw.mediawiki.recentchange\",\"partition\":0,\"offset\":-1}]\ndata: " + strings.Repeat("x", 1087) + "\n\n")
	in := bytes.Repeat(one, 1000)
	b.SetBytes(int64(len(one)))
	b.ResetTimer()
	for n := 0; n < b.N; n += 1000 {
		r := NewReader(bytes.NewReader(in), 0)
		for {
			if _, err := r.Next(); err != nil {
				break
			}
		}
	}
}
