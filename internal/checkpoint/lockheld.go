package checkpoint

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// HeldBy says which process holds the lock of a checkpoint's directory, nil where
// none is known to. It changes nothing, and takes no lock that a start could run
// into: it asks the kernel's list, which only Linux has.
func HeldBy(dir string) *Holder {
	f, err := os.Open(LockPath(dir))
	if err != nil {
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	h := Holder{}
	if json.NewDecoder(f).Decode(&h) != nil {
		return nil
	}
	list, err := os.Open("/proc/locks")
	if err != nil {
		return nil
	}
	defer list.Close()
	// 1: FLOCK  ADVISORY  WRITE 1234 08:02:5767391 0 EOF
	for lines := bufio.NewScanner(list); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) > 5 && fields[1] == "FLOCK" && fields[4] == fmt.Sprint(h.PID) && strings.HasSuffix(fields[5], fmt.Sprintf(":%d", stat.Ino)) {
			return &h
		}
	}
	return nil
}
