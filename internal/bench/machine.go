package bench

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"

	"github.com/apache/arrow-go/v18/parquet/compress"
	"golang.org/x/sys/unix"

	"github.com/weirlake/weir/internal/failure"
	_ "github.com/weirlake/weir/internal/lake/datafile" // registers the compressor that the tables are written with
	"github.com/weirlake/weir/internal/replay"
)

// Machine is where a figure was measured.
type Machine struct {
	Cores    int     `json:"cores"`
	CPU      string  `json:"cpu"`
	MemoryGB float64 `json:"memory_gb"`
	System   string  `json:"system"`
	Go       string  `json:"go"`
	// Load is the load average of the last minute at the start: above 0 others
	// were at work.
	Load string `json:"load"`
	// CompressionCPU is the CPU time of zstd level 1 over a million events.
	CompressionCPU float64 `json:"zstd_cpu_seconds_per_million_rows,omitempty"`
}

// String is a line for people.
func (m Machine) String() string {
	return fmt.Sprintf("%d cores (%s), %.0f GB, %s, %s, load %s", m.Cores, m.CPU, m.MemoryGB, m.System, m.Go, m.Load)
}

func machineOf() Machine {
	m := Machine{Cores: runtime.NumCPU(), CPU: "unknown", System: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(), Load: "unknown"}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		m.CPU = field(string(text), "model name")
	}
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		var kb float64
		if _, err := fmt.Sscan(field(string(text), "MemTotal"), &kb); err == nil {
			m.MemoryGB = round(kb / 1e6)
		}
	}
	if text, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.System += " " + strings.TrimSpace(string(text))
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load, _, _ = strings.Cut(string(text), " ")
	}
	return m
}

// field is the value of "name : value" in a text of such lines.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		k, v, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return "unknown"
}

func freeBytes(dir string) (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * int64(st.Bsize), nil
}

// Of the compression's limit.
const (
	limitEvents = 40_000
	limitPage   = 1 << 20
)

// compressionLimit measures what no writer of compressed files can be below:
// the CPU time to compress the events themselves, in pages as the tables have
// them. It also shows how fast the machine is at this moment.
func (b *bench) compressionLimit() (float64, error) {
	gen, err := replay.NewGenerator(replay.GeneratorConfig{Seed: b.o.Seed})
	if err != nil {
		return 0, err
	}
	cursor := gen.Cursor()
	var text []byte
	for n := range int64(limitEvents) {
		text = cursor.Append(text, n)
	}
	codec, err := compress.GetCodec(compress.Codecs.Zstd)
	if err != nil {
		return 0, failure.Wrap(failure.Runtime, err, "the compressor")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	from := threadCPU()
	var out []byte
	for at := 0; at < len(text); at += limitPage {
		out = codec.EncodeLevel(out[:0], text[at:min(at+limitPage, len(text))], 1)
	}
	return round((threadCPU() - from) * 1e6 / limitEvents), nil
}

// threadCPU is the CPU time of this thread in seconds.
func threadCPU() float64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) != nil {
		return 0
	}
	return float64(ts.Nano()) / 1e9
}
