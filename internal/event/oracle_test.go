package event

import (
	"bytes"
	"errors"
	"io"
	"math"
	"math/big"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// tree is a document as the oracle (json/v2's tokenizer) reads it.
type tree struct {
	kind    Kind
	raw     string // numbers and literals
	text    string // strings, decoded
	members map[string]*tree
	elems   []*tree
}

// readTree reads exactly one document, or says why it is none.
func readTree(doc []byte) (*tree, error) {
	d := jsontext.NewDecoder(bytes.NewReader(doc))
	t, err := readValue(d)
	if err != nil {
		return nil, err
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more after the document")
	}
	return t, nil
}

func readValue(d *jsontext.Decoder) (*tree, error) {
	tok, err := d.ReadToken()
	if err != nil {
		return nil, err
	}
	switch tok.Kind() {
	case 'n':
		return &tree{kind: Null, raw: "null"}, nil
	case 't':
		return &tree{kind: True, raw: "true"}, nil
	case 'f':
		return &tree{kind: False, raw: "false"}, nil
	case '"':
		return &tree{kind: String, text: tok.String()}, nil
	case '0':
		return &tree{kind: Number, raw: tok.String()}, nil
	case '{':
		t := &tree{kind: Object, members: map[string]*tree{}}
		for d.PeekKind() != '}' {
			key, err := d.ReadToken()
			if err != nil {
				return nil, err
			}
			name := key.String()
			if t.members[name], err = readValue(d); err != nil {
				return nil, err
			}
		}
		_, err := d.ReadToken()
		return t, err
	default:
		t := &tree{kind: Array}
		for d.PeekKind() != ']' {
			e, err := readValue(d)
			if err != nil {
				return nil, err
			}
			t.elems = append(t.elems, e)
		}
		_, err := d.ReadToken()
		return t, err
	}
}

func (t *tree) at(path string) *tree {
	steps, err := parsePath(path)
	if err != nil {
		panic(err)
	}
	for _, s := range steps {
		switch {
		case t == nil:
		case s.key != nil:
			t = t.members[string(s.key)]
		case s.index < len(t.elems):
			t = t.elems[s.index]
		default:
			t = nil
		}
	}
	return t
}

// oraclePaths are the paths that the comparison extracts.
var oraclePaths = []string{
	"$", "$.a", "$.a.b", "$.a.b.c", "$.meta.id", "$.meta.dt", "$.length.old", "$.length.new",
	"$['$schema']", "$[0]", "$[1]", "$[0][0]", "$.a[2]", "$.a[0].b", "$['']", "$.id", "$.user", `$['a\'b']`, "$.ключ",
}

// compareWithOracle fails t where the scanner and the oracle disagree on
// whether the document is one, or on any extracted value.
func compareWithOracle(t *testing.T, s *Scanner, doc []byte) {
	t.Helper()
	out := make([]Value, len(oraclePaths))
	err := s.Scan(doc, out)
	want, oracleErr := readTree(doc)
	if (err == nil) != (oracleErr == nil) {
		t.Fatalf("scanner says %v, oracle says %v, for %.300q", err, oracleErr, doc)
	}
	if err != nil {
		var e *Error
		if !errors.As(err, &e) || e.Reason == OK || e.Offset < 0 || e.Offset > len(doc) || !utf8.ValidString(e.Detail) {
			t.Fatalf("a refusal without a proper reason: %#v", err)
		}
		return
	}
	for i, path := range oraclePaths {
		compareValue(t, path, out[i], doc, want.at(path))
	}
}

func compareValue(t *testing.T, path string, v Value, doc []byte, want *tree) {
	t.Helper()
	if want == nil {
		if v.Kind != Missing {
			t.Fatalf("%s: found %s %q, the oracle has nothing, in %.300q", path, v.Kind, v.Raw(doc), doc)
		}
		return
	}
	if v.Kind != want.kind {
		t.Fatalf("%s: kind %s, oracle %s, in %.300q", path, v.Kind, want.kind, doc)
	}
	switch v.Kind {
	case String:
		if got := string(v.AppendString(nil, doc)); got != want.text {
			t.Fatalf("%s: text %q, oracle %q", path, got, want.text)
		}
	case Number:
		if string(v.Raw(doc)) != want.raw {
			t.Fatalf("%s: number %s, oracle %s", path, v.Raw(doc), want.raw)
		}
		compareNumber(t, v, doc, want.raw)
	case Object, Array:
		// The raw text must itself be the document that the oracle has there.
		sub, err := readTree(v.Raw(doc))
		if err != nil || sub.kind != want.kind || len(sub.members) != len(want.members) || len(sub.elems) != len(want.elems) {
			t.Fatalf("%s: raw text %.100q is not the value: %v", path, v.Raw(doc), err)
		}
	}
}

func compareNumber(t *testing.T, v Value, doc []byte, raw string) {
	t.Helper()
	n, r := v.Int64(doc)
	if exact, ok := exactInt(raw); ok {
		switch {
		case exact == nil:
			if r != TypeMismatch && r != NumberOutOfRange {
				t.Fatalf("%s is no integer, decoded to %d", raw, n)
			}
		case exact.IsInt64():
			if r != OK || n != exact.Int64() {
				t.Fatalf("%s decoded to %d (%s)", raw, n, r)
			}
		case r != NumberOutOfRange:
			t.Fatalf("%s is out of range, decoded to %d (%s)", raw, n, r)
		}
	}
	f, r := v.Float64(doc)
	want, err := strconv.ParseFloat(raw, 64)
	if math.IsInf(want, 0) {
		if r != NumberOutOfRange {
			t.Fatalf("%s is beyond a double, decoded to %g (%s)", raw, f, r)
		}
	} else if r != OK || math.Float64bits(f) != math.Float64bits(want) {
		t.Fatalf("%s decoded to %g (%s), want %g (%v)", raw, f, r, want, err)
	}
}

// exactInt is the integer that raw names, nil if it names none; not ok where
// the exponent is too large for the oracle to be asked.
func exactInt(raw string) (*big.Int, bool) {
	if i := strings.IndexAny(raw, "eE"); i >= 0 && len(raw)-i > 5 {
		return nil, false
	}
	q, ok := new(big.Rat).SetString(raw)
	if !ok {
		return nil, false
	}
	if !q.IsInt() {
		return nil, true
	}
	return q.Num(), true
}
