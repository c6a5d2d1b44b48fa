package state

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
)

// Purge removes the files of tip's operator that none of the last KeepVersions
// versions up to tip needs: older ones, and those of attempts that came to
// nothing. tip is the version that a committed marker names. Versions above it
// stay. If a file that is needed cannot be read, nothing is removed.
func (s *Store) Purge(ctx context.Context, tip marker.StateFile) error {
	op, version, _, ok := parseKey(tip.Path)
	if !ok {
		return failure.New(failure.Checkpoint, "%q is no state file", tip.Path)
	}
	keep, err := s.needed(ctx, op, tip.Path)
	if err != nil {
		return err
	}
	files, err := s.objects.List(ctx, folder(op))
	if err != nil {
		return fmt.Errorf("list state of %s: %w", op, err)
	}
	for _, f := range files {
		name := f.Key
		if snapshot, ok := snapshotOf(name); ok {
			name = snapshot // a part goes with its snapshot, or with the attempt that never wrote one
		}
		fileOp, v, _, ok := parseKey(name)
		if !ok || fileOp != op || v > version || keep[name] {
			continue
		}
		if err := s.objects.Delete(ctx, f.Key); err != nil {
			return fmt.Errorf("remove state %s: %w", f.Key, err)
		}
	}
	forget := func(k string, h *header) bool { return h.Operator == op && h.Version <= version && !keep[k] }
	maps.DeleteFunc(s.sound, forget)
	maps.DeleteFunc(s.headers, forget)
	return nil
}

// needed walks back from tip over KeepVersions versions and on to the snapshot
// that the last of them stands on.
func (s *Store) needed(ctx context.Context, op, tip string) (map[string]bool, error) {
	keep := map[string]bool{}
	var child *header
	for path := tip; path != ""; {
		h, err := s.header(ctx, op, path)
		if err != nil {
			// What lies before a snapshot is history that may be gone or
			// broken; what a delta stands on is needed.
			if child != nil && child.Kind == kindSnapshot && (errors.Is(err, ErrMissing) || errors.Is(err, ErrCorrupt)) {
				return keep, nil
			}
			return nil, err
		}
		if child != nil && h.Version >= child.Version {
			return nil, damaged(path, "version %d is no parent of version %d", h.Version, child.Version)
		}
		keep[path] = true
		if h.Kind == kindSnapshot && len(keep) >= KeepVersions {
			return keep, nil
		}
		child, path = h, h.Parent
	}
	return keep, nil
}

// header is a file's header, from memory where it was seen before.
func (s *Store) header(ctx context.Context, op, path string) (*header, error) {
	if h := s.sound[path]; h != nil {
		return h, nil
	}
	if h := s.headers[path]; h != nil {
		return h, nil
	}
	data, err := s.get(ctx, path)
	if err != nil {
		return nil, err
	}
	h, err := peek(path, op, data)
	if err != nil {
		return nil, err
	}
	if len(s.headers) >= rememberedFiles {
		clear(s.headers)
	}
	s.headers[path] = h
	return h, nil
}
