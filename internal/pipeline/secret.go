package pipeline

import (
	"fmt"
	"log/slog"
)

// Redacted is what a secret shows of itself.
const Redacted = "[redacted]"

// Secret is a value that no log, no error and no dump of a pipeline may show.
// Only Reveal gives the text. The zero value is an absent secret; it prints
// the same, so that not even its presence leaks.
type Secret struct{ text string }

// NewSecret wraps a text.
func NewSecret(text string) Secret { return Secret{text: text} }

// Reveal is the text, for the one call that needs it.
func (s Secret) Reveal() string { return s.text }

// IsZero reports whether the secret is absent.
func (s Secret) IsZero() bool { return s.text == "" }

// String implements fmt.Stringer.
func (Secret) String() string { return Redacted }

// GoString implements fmt.GoStringer.
func (Secret) GoString() string { return Redacted }

// Format implements fmt.Formatter: the verbs that fmt would otherwise apply to
// the field itself (%d, %x, %c) must not get at it either.
func (Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(Redacted)) }

// MarshalJSON implements json.Marshaler.
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + Redacted + `"`), nil }

// MarshalText implements encoding.TextMarshaler.
func (Secret) MarshalText() ([]byte, error) { return []byte(Redacted), nil }

// MarshalYAML implements the YAML package's interface.
func (Secret) MarshalYAML() (any, error) { return Redacted, nil }

// LogValue implements slog.LogValuer.
func (Secret) LogValue() slog.Value { return slog.StringValue(Redacted) }
