package clock

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// ShiftEnv names a file by which a scenario sets the clock of a process wrong,
// as a virtual machine or a bad time server does, while it runs: each look at
// the clock reads the file again. Its one line is ShiftMark and a duration:
//
//	weir-prove clock shift: -30m
//
// Nobody has such a file by accident: one that says anything else ends the
// process at once.
const (
	ShiftEnv  = "WEIR_CLOCK_SHIFT_FILE"
	ShiftMark = "weir-prove clock shift: "
)

// shiftFile is the file, empty in every ordinary process.
var shiftFile = sync.OnceValue(func() string {
	path := os.Getenv(ShiftEnv)
	if path != "" {
		fmt.Fprintf(os.Stderr, "weir: the clock of this process is shifted by %s: it runs in a test\n", path)
	}
	return path
})

// shift is by how much the clock is set wrong: 0 outside of a scenario.
func shift() time.Duration {
	path := shiftFile()
	if path == "" {
		return 0
	}
	d, err := readShift(path)
	if err != nil {
		fmt.Fprintln(os.Stderr, "weir:", err)
		os.Exit(2)
	}
	return d
}

func readShift(path string) (time.Duration, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", ShiftEnv, err)
	}
	by, ok := strings.CutPrefix(strings.TrimSpace(string(text)), ShiftMark)
	if !ok {
		return 0, fmt.Errorf("%s=%s: the file does not begin with %q", ShiftEnv, path, ShiftMark)
	}
	d, err := time.ParseDuration(by)
	if err != nil {
		return 0, fmt.Errorf("%s=%s: %w", ShiftEnv, path, err)
	}
	return d, nil
}
