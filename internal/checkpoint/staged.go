package checkpoint

import (
	"context"
	"errors"

	"github.com/weirlake/weir/internal/objstore"
)

// StagedFiles names the files of every staged manifest that is there: those that
// a batch may still commit. It reads, and refuses nothing but what is unreadable.
func (l *Log) StagedFiles(ctx context.Context) ([]string, error) {
	ids, err := l.ids(ctx, stagedPrefix)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, n := range ids {
		m, err := l.ReadStaged(ctx, n)
		if errors.Is(err, objstore.ErrNotExist) {
			continue // purged meanwhile
		}
		if err != nil {
			return nil, err
		}
		for _, files := range m.Sinks {
			for _, f := range files {
				out = append(out, f.Path)
			}
		}
	}
	return out, nil
}
