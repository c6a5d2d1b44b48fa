package delta

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
)

// Action is one line of a commit; exactly one field is set.
type Action struct {
	CommitInfo *CommitInfo `json:"commitInfo,omitempty"`
	Protocol   *Protocol   `json:"protocol,omitempty"`
	Metadata   *Metadata   `json:"metaData,omitempty"`
	Txn        *Txn        `json:"txn,omitempty"`
	Add        *Add        `json:"add,omitempty"`
	Remove     *Remove     `json:"remove,omitempty"`
}

// Protocol is what a reader and a writer must know of the table.
type Protocol struct {
	MinReaderVersion int      `json:"minReaderVersion"`
	MinWriterVersion int      `json:"minWriterVersion"`
	ReaderFeatures   []string `json:"readerFeatures,omitempty"`
	WriterFeatures   []string `json:"writerFeatures,omitempty"`
}

// Metadata is the table's identity, schema and settings.
type Metadata struct {
	ID               string            `json:"id"`
	Name             string            `json:"name,omitempty"`
	Description      string            `json:"description,omitempty"`
	Format           Format            `json:"format"`
	SchemaString     string            `json:"schemaString"`
	PartitionColumns []string          `json:"partitionColumns"`
	Configuration    map[string]string `json:"configuration"`
	CreatedTime      int64             `json:"createdTime,omitempty"`
}

// Format names the data files' format, always parquet.
type Format struct {
	Provider string            `json:"provider"`
	Options  map[string]string `json:"options"`
}

// Txn is what the table remembers of an application: the last version that it
// committed.
type Txn struct {
	AppID       string `json:"appId"`
	Version     int64  `json:"version"`
	LastUpdated int64  `json:"lastUpdated,omitempty"` // milliseconds
}

// Add puts a data file into the table.
type Add struct {
	// Path is relative to the table and URI-encoded.
	Path             string             `json:"path"`
	PartitionValues  map[string]*string `json:"partitionValues"`
	Size             int64              `json:"size"`
	ModificationTime int64              `json:"modificationTime"` // milliseconds
	DataChange       bool               `json:"dataChange"`
	Stats            string             `json:"stats,omitempty"`
	Tags             map[string]string  `json:"tags,omitempty"`
	DeletionVector   json.RawMessage    `json:"deletionVector,omitempty"`
}

// Key is the file's key in the table's storage.
func (a *Add) Key() (string, error) { return keyOf(a.Path) }

// Remove takes a data file out of the table; the tombstone keeps vacuum from
// deleting it under a reader.
type Remove struct {
	Path                 string             `json:"path"`
	DeletionTimestamp    int64              `json:"deletionTimestamp,omitempty"` // milliseconds
	DataChange           bool               `json:"dataChange"`
	ExtendedFileMetadata bool               `json:"extendedFileMetadata,omitempty"`
	PartitionValues      map[string]*string `json:"partitionValues,omitempty"`
	Size                 int64              `json:"size,omitempty"`
	DeletionVector       json.RawMessage    `json:"deletionVector,omitempty"`
}

// CommitInfo says who committed what. It is not part of the table's state and
// is not kept in checkpoints.
type CommitInfo struct {
	Timestamp           int64          `json:"timestamp"`
	Operation           string         `json:"operation"`
	OperationParameters map[string]any `json:"operationParameters,omitempty"`
	ReadVersion         *int64         `json:"readVersion,omitempty"`
	IsolationLevel      string         `json:"isolationLevel,omitempty"`
	IsBlindAppend       *bool          `json:"isBlindAppend,omitempty"`
	// OperationMetrics are numbers as text; some engines write numbers.
	OperationMetrics map[string]any `json:"operationMetrics,omitempty"`
	EngineInfo       string         `json:"engineInfo,omitempty"`
	// TxnID is the nonce of this commit: who finds it in the log after a lost
	// answer knows that the commit is his.
	TxnID string `json:"txnId,omitempty"`
	// Weir is what weir adds: the marker and its like, in the keys of a snapshot
	// summary.
	Weir map[string]string `json:"weir,omitempty"`
}

// UnmarshalJSON takes what it can: commitInfo is free text of other engines, and
// no surprise in it may make a table unreadable.
func (c *CommitInfo) UnmarshalJSON(data []byte) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return err
	}
	for name, into := range map[string]any{
		"timestamp": &c.Timestamp, "operation": &c.Operation, "operationParameters": &c.OperationParameters,
		"readVersion": &c.ReadVersion, "isolationLevel": &c.IsolationLevel, "isBlindAppend": &c.IsBlindAppend,
		"operationMetrics": &c.OperationMetrics, "engineInfo": &c.EngineInfo, "txnId": &c.TxnID, "weir": &c.Weir,
	} {
		if raw, ok := fields[name]; ok {
			_ = json.Unmarshal(raw, into) // left out where it is of another type
		}
	}
	return nil
}

// removeOf is the tombstone of an active file.
func removeOf(a *Add, nowMillis int64, dataChange bool) Action {
	return Action{Remove: &Remove{Path: a.Path, DeletionTimestamp: nowMillis, DataChange: dataChange,
		ExtendedFileMetadata: true, PartitionValues: a.PartitionValues, Size: a.Size}}
}

// encodeCommit is the body of a commit file.
func encodeCommit(actions []Action) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	for _, a := range actions {
		if err := enc.Encode(a); err != nil {
			return nil, fmt.Errorf("encode commit: %w", err)
		}
	}
	return b.Bytes(), nil
}

// decodeCommit reads a commit file. A commit that is cut off, as a crash of an
// engine that does not fsync leaves it, is an error and never half a commit.
func decodeCommit(data []byte) ([]Action, error) {
	var out []Action
	for n, line := range bytes.Split(data, []byte("\n")) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		var a Action
		if err := json.Unmarshal(line, &a); err != nil {
			return nil, fmt.Errorf("line %d: %w", n+1, err)
		}
		out = append(out, a)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("it holds no action")
	}
	return out, nil
}

// keyOf decodes the path of an action.
func keyOf(path string) (string, error) {
	if strings.Contains(path, "://") || strings.HasPrefix(path, "/") || strings.HasPrefix(path, "file:") {
		return "", fmt.Errorf("data file %s lies outside of the table", path)
	}
	key, err := url.PathUnescape(path)
	if err != nil {
		return "", fmt.Errorf("path of data file %q: %w", path, err)
	}
	return key, nil
}
