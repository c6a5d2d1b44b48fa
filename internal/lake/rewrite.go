package lake

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/apache/iceberg-go"
	icebergio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/marker"
)

// Rewrite commits the same rows in other files: a snapshot of the kind replace
// on base, asserted on base's head, tried once. Readers that follow a table
// snapshot by snapshot pass over it. The summary repeats the offset vector of
// the snapshot below, because the rows are the same; no marker changes.
//
// It is an error where one of the files is not live in base.
func (c *Catalog) Rewrite(ctx context.Context, base *table.Table, remove, add []iceberg.DataFile, summary map[string]string) (*table.Table, error) {
	txn, err := c.transaction(base)
	if err != nil {
		return nil, err
	}
	r := txn.NewRewrite(WithOffsets(base, summary))
	for _, f := range remove {
		r.DeleteFile(f)
	}
	for _, f := range add {
		r.AddDataFile(f)
	}
	if err := r.Commit(ctx); err != nil {
		return nil, fmt.Errorf("rewrite %d files of %s: %w", len(remove), Name(base.Identifier()), err)
	}
	return c.finish(ctx, base, txn)
}

// RewriteManifests merges the data manifests that pick chooses, in a snapshot of
// the kind replace without files; asserted on base's head, tried once. merged is
// 0 where there was nothing to do, and then nothing was committed.
func (c *Catalog) RewriteManifests(ctx context.Context, base *table.Table, pick func(iceberg.ManifestFile) bool) (after *table.Table, merged int, err error) {
	txn, err := c.transaction(base)
	if err != nil {
		return nil, 0, err
	}
	res, err := txn.RewriteManifests(ctx, table.WithRewriteManifestPredicate(pick))
	if err != nil {
		return nil, 0, fmt.Errorf("rewrite the manifests of %s: %w", Name(base.Identifier()), err)
	}
	if res.IsNoOp() {
		return base, 0, nil
	}
	after, err = c.finish(ctx, base, txn)
	return after, len(res.RewrittenManifests), err
}

// Touch commits a snapshot that changes nothing: the head moves, so that every
// commit which was prepared before fails.
func (c *Catalog) Touch(ctx context.Context, base *table.Table, summary map[string]string) (*table.Table, error) {
	return c.Commit(ctx, base, Change{Summary: WithOffsets(base, summary)})
}

func (c *Catalog) finish(ctx context.Context, base *table.Table, txn *table.Transaction) (*table.Table, error) {
	after, err := txn.Commit(ctx)
	if err != nil {
		return nil, fmt.Errorf("commit to %s: %w", Name(base.Identifier()), err)
	}
	return table.New(after.Identifier(), after.Metadata(), after.MetadataLocation(), base.FS, c), nil
}

// WithOffsets is a summary with the offset vector of the head, or of the
// newest snapshot below it that has one.
func WithOffsets(base *table.Table, summary map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range summary {
		out[k] = v
	}
	Walk(base, func(s *table.Snapshot) bool {
		v := SummaryValue(s, marker.KeyOffsets)
		if v != "" {
			out[marker.KeyOffsets] = v
		}
		return v == ""
	})
	return out
}

// StoredFile is a file below a table's folder.
type StoredFile struct {
	Path     string
	Bytes    int64
	Modified time.Time
}

// Files calls visit with every file below a location of a table's storage; a
// folder that is not there has none. The error wraps errors.ErrUnsupported where
// the storage cannot list.
func Files(ctx context.Context, t *table.Table, location string, visit func(StoredFile) error) error {
	storage, err := t.FS(ctx)
	if err != nil {
		return fmt.Errorf("storage of %s: %w", Name(t.Identifier()), err)
	}
	l, ok := storage.(icebergio.ListableIO)
	if !ok {
		return fmt.Errorf("list %s: %w", location, errors.ErrUnsupported)
	}
	err = l.WalkDir(location, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile, or never made
		}
		if err != nil {
			return err
		}
		if cerr := ctx.Err(); cerr != nil {
			return cerr
		}
		if d.IsDir() {
			return nil
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return visit(StoredFile{Path: p, Bytes: info.Size(), Modified: info.ModTime()})
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list %s: %w", location, err)
	}
	return nil
}

// RemoveFile deletes one file of a table's storage; one that is not there is no
// error.
func RemoveFile(ctx context.Context, t *table.Table, location string) error {
	storage, err := t.FS(ctx)
	if err != nil {
		return fmt.Errorf("storage of %s: %w", Name(t.Identifier()), err)
	}
	if err := storage.Remove(location); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", location, err)
	}
	return nil
}

// MetadataFolder is where a table's metadata files lie.
func MetadataFolder(t *table.Table) string {
	if p := t.Properties().Get(table.WriteMetadataPathKey, ""); p != "" {
		return strings.TrimSuffix(p, "/")
	}
	return strings.TrimSuffix(t.Location(), "/") + "/metadata"
}

// IsTemporary reports whether a file is one that was being written when its
// writer ended.
func IsTemporary(location string) bool {
	name := path.Base(location)
	return strings.HasPrefix(name, tempPrefix) && strings.HasSuffix(name, tempSuffix)
}

// SameFile gives the forms in which other engines may name the file at a
// location: file:/a, file:///a and /a are one file, so are s3, s3a and s3n, and
// some write a path escaped. Two locations with a form in common must be taken
// for the same file where a mistake would cost it.
func SameFile(location string) []string {
	forms := []string{location}
	scheme, rest, ok := strings.Cut(location, "://")
	switch {
	case ok && (scheme == "s3a" || scheme == "s3n"):
		forms = append(forms, "s3://"+rest)
	case ok && scheme == "file":
		forms = append(forms, rest)
	case strings.HasPrefix(location, "file:"):
		forms = append(forms, strings.TrimPrefix(location, "file:"))
	}
	last := forms[len(forms)-1]
	if plain, err := url.PathUnescape(last); err == nil && plain != last {
		forms = append(forms, plain)
	}
	return forms
}
