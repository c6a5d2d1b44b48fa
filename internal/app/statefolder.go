package app

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/state/pebblestate"
)

// StatePlace says where the state of a query is kept beyond memory.
type StatePlace struct {
	Query, Checkpoint string
	// LockDir is the local folder of the checkpoint's lock.
	LockDir string
	// Folder is the user's, empty for one that belongs to the checkpoint.
	Folder string
	// CacheBytes is pipeline.DefaultStateCache where 0.
	CacheBytes int64
	Logger     *slog.Logger
	// Planning takes a folder of its own, which is removed by the returned function:
	// a plan touches nothing that a run uses.
	Planning bool
}

// KeepState moves the memory of a query's operators into a database in a local
// folder. Nothing is opened before the query runs. The function closes it.
func KeepState(t operator.Transform, p StatePlace) (func() error, error) {
	dir, err := p.dir()
	if err != nil {
		return nil, err
	}
	folder := pebblestate.New(pebblestate.Options{Dir: dir, Query: p.Query, CacheBytes: cmp.Or(p.CacheBytes, int64(pipeline.DefaultStateCache)), Logger: p.Logger})
	operator.KeepIn(t, folder.Store)
	return func() error {
		err := folder.Close()
		if p.Planning {
			err = errors.Join(err, os.RemoveAll(dir))
		}
		return err
	}, nil
}

func (p StatePlace) dir() (string, error) {
	switch {
	case p.Planning:
		dir, err := os.MkdirTemp("", "weir-plan-")
		if err != nil {
			return "", fmt.Errorf("query %s: a folder to look at the state in: %w", p.Query, err)
		}
		return dir, nil
	case p.Folder != "":
		// Two pipelines may name the same folder.
		return filepath.Join(p.Folder, p.Query+"-"+marker.Hash([]byte(p.Checkpoint))[:12]), nil
	}
	if p.LockDir == "" {
		return "", failure.New(failure.Config, "query %s: the checkpoint is remote, and this user has no folder for caches to keep state in", p.Query).
			WithHint("name a local folder: state.folder")
	}
	return filepath.Join(p.LockDir, "pebble"), nil
}
