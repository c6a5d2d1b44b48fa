package replay

import (
	"fmt"
	"time"

	"github.com/weirlake/weir/internal/clock"
)

// Config is what a server plays and how it misbehaves. The zero value plays
// the generator's stream without an end, as fast as it is read.
type Config struct {
	// Generator is the stream, unless File names one.
	Generator GeneratorConfig `json:"generator"`
	// File is a JSONL file to play instead, one event a line.
	File string `json:"file,omitempty"`
	// Total ends the stream after so many events (duplicates not counted); 0
	// never ends it. A file and a script end by themselves.
	Total int64 `json:"total"`
	// Rate is how many frames become available in a second, counted from the
	// server's start, whoever reads them; 0 is all of them at once.
	Rate float64 `json:"rate"`
	// Overlap is how much earlier than its position the client resumes. A
	// client that resumes within it of the end has everything: it is told so
	// with 204. It must not be greater than the client's own. 0 is
	// DefaultOverlap, negative none.
	Overlap time.Duration `json:"overlap"`
	// Heartbeat sends a comment after so long without a frame; 0 is
	// DefaultHeartbeat, negative never.
	Heartbeat time.Duration `json:"heartbeat"`
	// Retry is sent as the retry field of each connection; 0 sends none.
	Retry time.Duration `json:"retry"`
	// CutAfter closes a connection after so long, as the real front end does; 0
	// is DefaultCutAfter, negative never.
	CutAfter time.Duration `json:"cut_after"`
	// Faults are deterministic under the seed. They are counted in frames that
	// were not sent before, so that a client always gets on.
	Faults Faults `json:"faults"`
	// Clock is for pacing; nil is the machine's.
	Clock clock.Clock `json:"-"`
}

// Faults are what goes wrong on purpose.
type Faults struct {
	Seed uint64 `json:"seed"`
	// CutEvery breaks the connection off after about so many frames, half of
	// the time in the middle of a line.
	CutEvery int64 `json:"cut_every"`
	// Unavailable answers so many connections after each cut with 503.
	Unavailable int `json:"unavailable"`
	// StallEvery sends nothing for StallFor after so many frames.
	StallEvery int64         `json:"stall_every"`
	StallFor   time.Duration `json:"stall_for"`
}

// Defaults of a Config.
const (
	DefaultOverlap   = 10 * time.Second
	DefaultHeartbeat = 5 * time.Second
	DefaultCutAfter  = 15 * time.Minute
)

func (c Config) withDefaults() Config {
	if c.Overlap == 0 {
		c.Overlap = DefaultOverlap
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = DefaultHeartbeat
	}
	if c.CutAfter == 0 {
		c.CutAfter = DefaultCutAfter
	}
	if c.Clock == nil {
		c.Clock = clock.System{}
	}
	return c
}

// Validate names everything that is wrong at once.
func (c Config) Validate() []error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Total < 0 {
		bad("a total of %d events", c.Total)
	}
	if c.Total > 0 && c.File != "" {
		bad("a file ends by itself; total is the generator's")
	}
	if c.Rate < 0 {
		bad("a rate of %v", c.Rate)
	}
	f := c.Faults
	if f.CutEvery < 0 || f.StallEvery < 0 || f.StallFor < 0 || f.Unavailable < 0 {
		bad("faults cannot be negative")
	}
	if f.Unavailable > 0 && f.CutEvery == 0 {
		bad("unavailable comes after cuts: give cut every")
	}
	return errs
}
