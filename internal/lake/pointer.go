package lake

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	icebergio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"
)

// MetadataLocation is where the table's current metadata lies, without reading
// it: what a reader polls while it waits for news. ErrNoTable where there is no
// such table.
func (c *Catalog) MetadataLocation(ctx context.Context, ident table.Identifier) (string, error) {
	if c.pointer != nil {
		return c.pointer.location(ctx, ident)
	}
	t, err := c.LoadTable(ctx, ident)
	if err != nil {
		return "", err
	}
	return t.MetadataLocation(), nil
}

// metadataBytesMax bounds a metadata file that is read whole.
const metadataBytesMax = 1 << 30

// Metadata gives the location and the bytes of the table's current metadata,
// as whoever committed last wrote them: a reader must not lose what this
// library does not know. ErrNoTable where there is no such table.
func (c *Catalog) Metadata(ctx context.Context, ident table.Identifier) (location string, body []byte, err error) {
	if c.pointer == nil {
		t, err := c.LoadTable(ctx, ident)
		if err != nil {
			return "", nil, err
		}
		body, err = json.Marshal(t.Metadata())
		return t.MetadataLocation(), body, err
	}
	last := ""
	for attempt := 1; ; attempt++ {
		if location, err = c.pointer.location(ctx, ident); err != nil {
			return "", nil, err
		}
		body, err = c.readMetadata(ctx, location)
		if err == nil {
			return location, body, nil
		}
		// A commit that came between may have removed the file.
		if !errors.Is(err, fs.ErrNotExist) || location == last || attempt == maxLoadAttempts {
			return "", nil, fmt.Errorf("read metadata of %s: %w", Name(ident), err)
		}
		last = location
	}
}

func (c *Catalog) readMetadata(ctx context.Context, location string) (_ []byte, err error) {
	files, err := icebergio.LoadFS(ctx, c.props, location)
	if err != nil {
		return nil, err
	}
	f, err := files.Open(location)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var r io.Reader = f
	if strings.HasSuffix(location, ".gz.metadata.json") || strings.HasSuffix(location, ".metadata.json.gz") {
		z, err := gzip.NewReader(f)
		if err != nil {
			return nil, err
		}
		r = z
	}
	body, err := io.ReadAll(io.LimitReader(r, metadataBytesMax+1))
	if err == nil && len(body) > metadataBytesMax {
		err = fmt.Errorf("%s has more than %d bytes", location, metadataBytesMax)
	}
	return body, err
}
