package prove

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// About says with what a report was made.
type About struct {
	Weir     string `json:"weir"`
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	// CPU is the processor's own name, empty where the system does not tell.
	CPU      string `json:"cpu,omitempty"`
	Cores    int    `json:"cores"`
	MemoryMB int64  `json:"memory_mb,omitempty"`
	Seed     uint64 `json:"seed"`
	// Libraries are those that the guarantee leans on.
	Libraries []Library `json:"libraries"`
	// Readers counted. The built-in one shares no code with what is tested.
	Readers []string  `json:"readers"`
	Started time.Time `json:"started"`
	// ElapsedSeconds is this run's; results kept from an earlier one have their own.
	ElapsedSeconds float64 `json:"elapsed_seconds"`
}

// Library is a dependency and its version.
type Library struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// leansOn are the modules that the guarantee leans on.
var leansOn = []string{
	"github.com/twmb/franz-go", "github.com/twmb/franz-go/pkg/kadm", "github.com/twmb/franz-go/pkg/kfake",
	"github.com/apache/iceberg-go", "github.com/apache/arrow-go/v18", "modernc.org/sqlite", "github.com/valyala/gozstd",
}

// readersVersions bounds the question for the versions of the Python readers.
const readersVersions = 30 * time.Second

func (o *Options) about(ctx context.Context) About {
	a := About{
		Weir: o.Version, Revision: o.Revision, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Cores: runtime.NumCPU(), Seed: o.Seed, Started: o.Clock.Now().UTC().Truncate(time.Second), Libraries: []Library{},
		CPU: after("/proc/cpuinfo", "model name"), Readers: []string{"weir audit's own (built in)"},
	}
	if kb, _, ok := strings.Cut(after("/proc/meminfo", "MemTotal"), " "); ok {
		if n, err := strconv.ParseInt(kb, 10, 64); err == nil {
			a.MemoryMB = n / 1024
		}
	}
	for _, path := range leansOn {
		if v := moduleVersion(path); v != "" {
			a.Libraries = append(a.Libraries, Library{path, v})
		}
	}
	if o.foreignReaders() {
		a.Readers = append(a.Readers, o.foreignNames(ctx)...)
	}
	return a
}

// moduleVersion is the version of a module that this program was built with.
func moduleVersion(path string) string {
	bi, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range bi.Deps {
		if m.Path == path {
			if m.Replace != nil {
				m = m.Replace
			}
			return m.Version
		}
	}
	return ""
}

// foreignNames are the Python readers with their versions.
func (o *Options) foreignNames(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, readersVersions)
	defer cancel()
	const script = `from importlib.metadata import version; print(version("pyiceberg"), version("duckdb"))`
	out, err := exec.CommandContext(ctx, o.Python, "-c", script).Output()
	v := strings.Fields(string(out))
	if err != nil || len(v) != 2 {
		return []string{"PyIceberg", "DuckDB"}
	}
	return []string{"PyIceberg " + v[0], "DuckDB " + v[1]}
}

// after is the value of the first line "key: value" of a file.
func after(path, key string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for _, line := range bytes.Split(b, []byte("\n")) {
		if k, v, ok := strings.Cut(string(line), ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
