package checkpoint

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// Keys of the checkpoint's files, relative to its location. Nothing else
// builds them.
const (
	metadataKey      = "metadata"
	lockName         = "lock"
	offsetsPrefix    = "offsets/"
	commitsPrefix    = "commits/"
	stagedPrefix     = "staged/"
	supersededPrefix = "superseded/"
	statePrefix      = "state/"
)

// MetadataKey is the key of the metadata file.
func MetadataKey() string { return metadataKey }

// OffsetsKey is the key of the plan of batch n.
func OffsetsKey(n int64) string { return offsetsPrefix + strconv.FormatInt(n, 10) }

// CommitsKey is the key of the commit entry of batch n.
func CommitsKey(n int64) string { return commitsPrefix + strconv.FormatInt(n, 10) }

// StagedKey is the key of the staged manifest of batch n.
func StagedKey(n int64) string { return stagedPrefix + strconv.FormatInt(n, 10) }

// supersededKey is where a file of batch n goes that an adoption put aside:
// superseded/<n>-<log>-<hash of its contents>.
func supersededKey(log string, n int64, hash string) string {
	return fmt.Sprintf("%s%d-%s-%s", supersededPrefix, n, strings.TrimSuffix(log, "/"), hash[:16])
}

// StateDir is the prefix of an operator's state files, with its slash.
func StateDir(operator string) string { return statePrefix + operator + "/" }

// StateKey is the key of one version of an operator's state: version is the
// batch id, attempt the nonce of the try that wrote it, kind "snapshot" or
// "delta".
func StateKey(operator string, version int64, attempt, kind string) string {
	return fmt.Sprintf("%s%d-%s.%s", StateDir(operator), version, attempt, kind)
}

// LockPath is the lock file of a checkpoint in a local directory.
func LockPath(dir string) string { return filepath.Join(dir, lockName) }

// batchOf is the batch id in a log file's key; ok is false for files that no
// version of ours writes under that prefix (an editor's backup, .DS_Store).
func batchOf(prefix, key string) (n int64, ok bool) {
	s := strings.TrimPrefix(key, prefix)
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && n >= 0 && strconv.FormatInt(n, 10) == s
}
