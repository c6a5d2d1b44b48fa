package pipeline

import "fmt"

// Fault is one thing that is wrong with a pipeline file, with its place.
type Fault struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
	// Key is the key path: queries[0].watermark.column.
	Key     string `json:"key,omitempty"`
	Message string `json:"message"`
}

// String is file:line:column: message.
func (f Fault) String() string {
	return fmt.Sprintf("%s:%d:%d: %s", f.File, f.Line, f.Column, f.Message)
}

// Error implements error.
func (f Fault) Error() string { return f.String() }

// place is where a node stands in the file.
type place struct{ line, column int }

// places remembers where each key path stands, so that what is found out later
// (a topic that the broker does not have) can still name the line.
type places map[string]place

// FaultAt makes a fault at the place of a key path, or of its nearest parent.
func (p *Pipeline) FaultAt(key, format string, args ...any) Fault {
	at := p.places.nearest(key)
	return Fault{File: p.File, Line: at.line, Column: at.column, Key: key, Message: fmt.Sprintf(format, args...)}
}

// nearest is the place of key, or of the closest parent that has one.
func (ps places) nearest(key string) place {
	for k := key; ; {
		if at, ok := ps[k]; ok {
			return at
		}
		i := len(k) - 1
		for i >= 0 && k[i] != '.' && k[i] != '[' {
			i--
		}
		if i < 0 {
			return place{1, 1}
		}
		k = k[:i]
	}
}
