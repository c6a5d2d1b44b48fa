package pipeline

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Bounds of a pipeline file. They are far above any real one and exist so that
// a wrong file (a dump, a device) is refused instead of read.
const (
	fileBytesMax   = 4 << 20
	secretBytesMax = 64 << 10
	depthMax       = 40
	nodesMax       = 200_000
	faultsMax      = 500
)

// Load reads, interpolates and checks a pipeline file. env looks up the
// variables of ${NAME} (os.LookupEnv in production). The pipeline is nil
// exactly where there are faults; the faults are sorted by their place.
func Load(path string, env func(string) (string, bool)) (*Pipeline, []Fault) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, []Fault{{File: path, Line: 1, Column: 1, Message: err.Error()}}
	}
	data, err := readBounded(path, fileBytesMax)
	if err != nil {
		return nil, []Fault{{File: path, Line: 1, Column: 1, Message: unreadable(err)}}
	}
	return LoadBytes(path, filepath.Dir(abs), data, env)
}

// LoadBytes is Load for a document that is not in a file, such as the built-in
// example. name stands for the file in faults; relative paths are resolved
// against dir.
func LoadBytes(name, dir string, data []byte, env func(string) (string, bool)) (*Pipeline, []Fault) {
	l := &loader{file: name, dir: dir, env: env, places: places{}, anchors: map[string]ast.Node{}}
	p := &Pipeline{File: name, Dir: dir}
	if root := l.parse(data); root != nil {
		l.decodeRoot(root, p)
	}
	derive(p)
	// The cross-checks run on what could be decoded even where something could
	// not: one round of corrections has to be enough.
	if len(l.places) > 0 {
		l.check(p)
	}
	if len(l.faults) > 0 {
		return nil, sorted(l.faults)
	}
	p.places = l.places
	p.Warnings = sorted(l.warnings)
	return p, nil
}

// unreadable says why a file cannot be read, and what to do about it.
func unreadable(err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return "there is no such file; weir init writes a commented example"
	}
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err // the fault names the file
	}
	return "cannot read the pipeline file: " + err.Error()
}

// readBounded reads a regular file of at most limit bytes.
func readBounded(path string, limit int64) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if st.IsDir() {
		return nil, fmt.Errorf("%s is a folder", path)
	}
	if st.Size() > limit {
		return nil, fmt.Errorf("%s has %d bytes, more than the limit of %d", path, st.Size(), limit)
	}
	return os.ReadFile(path) //nolint:gosec // the path is the user's own
}

// loader carries one load: the faults so far and where each key stands.
type loader struct {
	file, dir string
	env       func(string) (string, bool)
	faults    []Fault
	warnings  []Fault
	places    places
	anchors   map[string]ast.Node
	// broken are the key paths whose value could not be decoded; the
	// cross-checks say nothing more about them.
	broken []string
	// opaque are the key paths whose inside could not be looked at.
	opaque []string
	nodes  int
}

// fault records a fault at a place.
func (l *loader) fault(at place, key, format string, args ...any) {
	l.broken = append(l.broken, key)
	if len(l.faults) < faultsMax {
		l.faults = append(l.faults, Fault{File: l.file, Line: at.line, Column: at.column, Key: key, Message: fmt.Sprintf(format, args...)})
	}
}

// faultKey records a fault at the place of a key path.
func (l *loader) faultKey(key, format string, args ...any) {
	l.fault(l.places.nearest(key), key, format, args...)
}

// warn records a warning at the place of a key path.
func (l *loader) warn(key, format string, args ...any) {
	at := l.places.nearest(key)
	l.warnings = append(l.warnings, Fault{File: l.file, Line: at.line, Column: at.column, Key: key, Message: fmt.Sprintf(format, args...)})
}

// isBroken reports whether key, or something inside it, has a fault already,
// or lies in something that could not be decoded at all.
func (l *loader) isBroken(key string) bool {
	for _, o := range l.opaque {
		if o == key || strings.HasPrefix(key, o+".") || strings.HasPrefix(key, o+"[") {
			return true
		}
	}
	for _, b := range l.broken {
		if b == key || strings.HasPrefix(b, key+".") || strings.HasPrefix(b, key+"[") {
			return true
		}
	}
	return false
}

// parse gives the document's root node, nil after a fault.
func (l *loader) parse(data []byte) ast.Node {
	file, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		l.syntaxFault(data, err)
		return nil
	}
	var root ast.Node
	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.NullType {
			continue
		}
		if root != nil {
			l.fault(placeOf(doc.Body), "", "a second YAML document; one file holds one pipeline")
			break
		}
		root = doc.Body
	}
	if root == nil {
		l.fault(place{1, 1}, "", "the file is empty; weir init writes a commented example")
	}
	return root
}

// syntaxFault turns the parser's error into a fault at its own place.
func (l *loader) syntaxFault(data []byte, err error) {
	at := place{1, 1}
	msg := err.Error()
	var ye yaml.Error
	if errors.As(err, &ye) {
		msg = ye.GetMessage()
		if t := ye.GetToken(); t != nil && t.Position != nil {
			at = place{t.Position.Line, t.Position.Column}
		}
	}
	lines := strings.Split(string(data), "\n")
	hint := ""
	if at.line >= 1 && at.line <= len(lines) && strings.Contains(lines[at.line-1], "${") {
		hint = `; inside { } and [ ] a value with ${…} has to be quoted: "${NAME}"`
	}
	l.fault(at, "", "not valid YAML: %s%s", msg, hint)
}

// placeOf is where a node begins.
func placeOf(n ast.Node) place {
	if m, ok := n.(*ast.MappingNode); ok && !m.IsFlowStyle && len(m.Values) > 0 {
		return placeOf(m.Values[0].Key)
	}
	if m, ok := n.(*ast.MappingValueNode); ok {
		return placeOf(m.Key)
	}
	t := n.GetToken()
	if t == nil || t.Position == nil {
		return place{1, 1}
	}
	return place{max(t.Position.Line, 1), max(t.Position.Column, 1)}
}

// sorted orders faults by place, then text, and drops repeats.
func sorted(faults []Fault) []Fault {
	sort.SliceStable(faults, func(i, j int) bool {
		a, b := faults[i], faults[j]
		if a.Line != b.Line {
			return a.Line < b.Line
		}
		if a.Column != b.Column {
			return a.Column < b.Column
		}
		return a.Message < b.Message
	})
	out := faults[:0:0]
	for i, f := range faults {
		if i == 0 || f != faults[i-1] {
			out = append(out, f)
		}
	}
	return out
}
