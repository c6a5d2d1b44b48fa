package broker

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// Running reports the address of the embedded broker that serves the data
// directory at this moment, if one does: its lock is held and its port known.
func Running(dataDir string) (bootstrap string, ok bool) {
	f, err := os.OpenFile(filepath.Join(dataDir, lockFile), os.O_RDWR, 0)
	if err != nil {
		return "", false
	}
	defer f.Close()
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
		return "", false // nobody holds it; closing the file lets go of it
	}
	id, err := readIdentity(filepath.Join(dataDir, identityFile))
	if err != nil || id.Port == 0 {
		return "", false
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(id.Port)), true
}
