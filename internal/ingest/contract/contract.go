// Package contract decides whether an event may be published: it must be
// strict JSON (one reading, whoever reads it) and fulfil a JSON Schema.
//
// A schema that uses only common keywords is compiled into the pass that reads
// the bytes; any other schema is left to the generic library after that pass.
// The library is also the oracle that the compiled form is tested against.
//
// The pass goes on after a violation, because artificial events (canaries) are
// to be known before anything else is held against them. Only bytes that are
// not JSON at all end it.
package contract

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/weirlake/weir/internal/failure"
)

// Wikimedia names the built-in contract.
const Wikimedia = "builtin:wikimedia/recentchange"

//go:embed recentchange.schema.json
var recentchange []byte

// WikimediaSchema is the built-in contract's JSON Schema.
func WikimediaSchema() []byte { return bytes.Clone(recentchange) }

// Reason is the code of a violation, as it stands in the weir-reason header.
type Reason string

// The reasons.
const (
	Empty          Reason = "empty"             // no bytes at all
	InvalidUTF8    Reason = "invalid_utf8"      // bytes that are not UTF-8
	InvalidJSON    Reason = "invalid_json"      // not JSON
	LoneSurrogate  Reason = "lone_surrogate"    // half of a \u pair: no character
	DuplicateKey   Reason = "duplicate_key"     // readers would disagree on the value
	TooDeep        Reason = "too_deep"          // nested deeper than MaxDepth
	MissingField   Reason = "missing_field"     // a required property is not there
	WrongType      Reason = "wrong_type"        // another JSON type than the contract says
	UnknownField   Reason = "unknown_field"     // additionalProperties: false
	NotAllowed     Reason = "value_not_allowed" // enum, const
	BadFormat      Reason = "bad_format"        // pattern, format
	OutOfRange     Reason = "out_of_range"      // lengths, limits, numbers of items
	SchemaMismatch Reason = "schema_mismatch"   // found by a keyword that has no code of its own
)

// MaxDepth is how deep arrays and objects may be nested.
const MaxDepth = 512

// maxDetailBytes bounds the text about a violation.
const maxDetailBytes = 400

// Verdict is what was found out about one event.
type Verdict struct {
	// Canary is set for an artificial event; nothing else counts then.
	Canary bool
	// Reason is empty where the contract is fulfilled.
	Reason Reason
	// Detail says where and why.
	Detail string
	// Key is the value at the key path, decoded; nil where there is none. It
	// may share memory with the event.
	Key []byte
}

// Canary tells artificial events by the string at a path.
type Canary struct {
	Path   string
	Equals string
}

// WikimediaCanary is how Wikimedia marks its artificial events.
func WikimediaCanary() *Canary { return &Canary{Path: "meta.domain", Equals: "canary"} }

// Options is what a contract is made of.
type Options struct {
	// Schema is Wikimedia, the path of a JSON Schema file, or empty: any JSON
	// object.
	Schema string
	// KeyPath is the path of the record key, meta.id or $.meta.id; empty: none.
	KeyPath string
	// Canary may be nil: there are none.
	Canary *Canary
}

// Contract is a compiled contract, safe for concurrent use.
type Contract struct {
	root   *node
	oracle *jsonschema.Schema
	slow   bool   // the library must look at every event
	why    string // why it must
	canary []byte
}

// Compile makes a contract. What is wrong with it is a failure.Config.
func Compile(o Options) (*Contract, error) {
	raw, base, err := o.read()
	if err != nil {
		return nil, err
	}
	return compileBytes(raw, base, o)
}

// read gives the schema's text and the URL that it is known by.
func (o Options) read() (raw []byte, base string, err error) {
	switch o.Schema {
	case "":
		return []byte(`{"type":"object"}`), inlineURL, nil
	case Wikimedia:
		return recentchange, inlineURL, nil
	}
	if raw, err = os.ReadFile(o.Schema); err != nil {
		return nil, "", failure.Wrap(failure.Config, err, "contract.schema %s cannot be read", o.Schema).
			WithHint("give the path of a JSON Schema file or %s", Wikimedia)
	}
	abs, err := filepath.Abs(o.Schema)
	if err != nil {
		return nil, "", failure.Wrap(failure.Config, err, "contract.schema %s", o.Schema)
	}
	return raw, "file://" + filepath.ToSlash(abs), nil
}

// inlineURL is that of a schema that is in no file.
const inlineURL = "weir:///contract.json"

func compileBytes(raw []byte, base string, o Options) (*Contract, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "contract.schema %s is not JSON", o.Schema)
	}
	lib := jsonschema.NewCompiler()
	lib.AssertFormat()
	if err := lib.AddResource(base, doc); err != nil {
		return nil, failure.Wrap(failure.Config, err, "contract.schema %s", o.Schema)
	}
	oracle, err := lib.Compile(base)
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "contract.schema %s is not a valid JSON Schema", o.Schema)
	}
	c := &Contract{oracle: oracle}
	root, err := compileNode(doc, "")
	if err != nil {
		root, c.slow, c.why = newNode(""), true, err.Error()
	}
	c.root = root
	if o.KeyPath != "" {
		if err := capture(root, o.KeyPath, captureKey); err != nil {
			return nil, err
		}
	}
	if o.Canary != nil {
		if err := capture(root, o.Canary.Path, captureCanary); err != nil {
			return nil, err
		}
		c.canary = []byte(o.Canary.Equals)
	}
	return c, nil
}

// Compiled reports whether the schema is checked in the reading pass, and
// otherwise names the keyword that keeps it from that.
func (c *Contract) Compiled() (bool, string) { return !c.slow, c.why }

// Checker checks events one at a time. Every goroutine needs its own.
type Checker struct {
	c *Contract
	s scanner
}

// NewChecker makes a checker.
func (c *Contract) NewChecker() *Checker { return &Checker{c: c} }

// Check judges one event. raw is only read.
func (k *Checker) Check(raw []byte) Verdict {
	if len(bytes.TrimLeft(raw, " \t\r\n")) == 0 {
		return Verdict{Reason: Empty, Detail: fmt.Sprintf("%d bytes, none of them a value", len(raw))}
	}
	s := &k.s
	s.reset(raw)
	whole := s.document(k.c.root)
	v := Verdict{Key: s.captured[captureKey]}
	if c := s.captured[captureCanary]; c != nil && k.c.canary != nil && whole && !s.ambiguous && bytes.Equal(c, k.c.canary) {
		return Verdict{Canary: true, Key: v.Key}
	}
	switch {
	case !utf8.Valid(raw):
		v.Reason, v.Detail = InvalidUTF8, fmt.Sprintf("byte %d", invalidAt(raw))
		v.Key = validKey(v.Key)
		return v
	case s.reason != "":
		v.Reason, v.Detail = s.reason, clip(s.detail)
		return v
	case k.c.slow:
		v.Reason, v.Detail = k.c.ask(raw)
	}
	return v
}

// ask puts an event to the generic library.
func (c *Contract) ask(raw []byte) (reason Reason, detail string) {
	defer func() {
		// The library counts on numbers that fit into its own rationals.
		if p := recover(); p != nil {
			reason, detail = OutOfRange, clip(fmt.Sprint(p))
		}
	}()
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var doc any
	if err := d.Decode(&doc); err != nil {
		return InvalidJSON, clip(err.Error())
	}
	if _, err := d.Token(); err != io.EOF {
		return InvalidJSON, "more than one value"
	}
	if err := c.oracle.Validate(doc); err != nil {
		lines := strings.Split(err.Error(), "\n")
		return SchemaMismatch, clip(strings.Join(lines[min(1, len(lines)-1):], "; "))
	}
	return "", ""
}

func invalidAt(b []byte) int {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(b)
}

func validKey(k []byte) []byte {
	if utf8.Valid(k) {
		return k
	}
	return nil
}

// clip bounds a text that may quote an event.
func clip(s string) string {
	if len(s) > maxDetailBytes {
		s = s[:maxDetailBytes] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
