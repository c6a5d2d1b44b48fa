package checkpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/weirlake/weir/internal/objstore"
)

// errTorn and errVersion tell the two ways of being unreadable apart.
var (
	errTorn    = errors.New("torn or not a checkpoint file")
	errVersion = errors.New("unknown format version")
)

// encode is the file's contents: the version line, one JSON document, newline.
func encode(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode checkpoint file: %w", err)
	}
	return fmt.Appendf(nil, "v%d\n%s\n", Format, b), nil
}

// decode reads such a file. A document that ends early, or is followed by
// anything but white space, is torn. Unknown keys are let pass: a version that
// gives a key a meaning which older binaries must not miss raises Format.
func decode(b []byte, v any) error {
	line, rest, ok := bytes.Cut(b, []byte("\n"))
	if !ok {
		return fmt.Errorf("%w: no version line in %d bytes", errTorn, len(b))
	}
	digits, ok := strings.CutPrefix(string(line), "v")
	version, err := strconv.Atoi(digits)
	if !ok || err != nil {
		return fmt.Errorf("%w: first line is %.20q", errTorn, line)
	}
	if version < 1 || version > Format {
		return fmt.Errorf("%w: v%d, this version of weir knows up to v%d", errVersion, version, Format)
	}
	d := json.NewDecoder(bytes.NewReader(rest))
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%w: %w", errTorn, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: something follows the document", errTorn)
	}
	return nil
}

// FormatOf is the format version of the checkpoint in a store, 0 where there is
// none or it cannot be told.
func FormatOf(ctx context.Context, store objstore.Store) int {
	b, err := store.Get(ctx, metadataKey)
	if err != nil {
		return 0
	}
	line, _, _ := bytes.Cut(b, []byte("\n"))
	n, err := strconv.Atoi(strings.TrimPrefix(string(line), "v"))
	if err != nil {
		return 0
	}
	return n
}
