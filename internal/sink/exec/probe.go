package exec

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/weirlake/weir/internal/failure"
)

// shell runs the command where the sink asks for one.
const shell = "/bin/sh"

// probe looks for the program without running it: what it does cannot be undone.
func (r *runner) probe(context.Context) error {
	name := shell
	if !r.o.Shell {
		name = r.o.Command[0]
	}
	path, err := r.find(name)
	if err != nil {
		return failure.Wrap(failure.Config, err, "query %s, exec sink: %s cannot be run", r.o.Query, r.program()).
			WithHint("check to.exec.command, that the file is there and may be executed, and PATH")
	}
	if fi, err := os.Stat(path); err == nil && fi.IsDir() {
		return failure.New(failure.Config, "query %s, exec sink: %s is a folder", r.o.Query, r.program())
	}
	return nil
}

// find is where the system finds a program for us.
func (r *runner) find(name string) (string, error) {
	if strings.Contains(name, string(filepath.Separator)) && !filepath.IsAbs(name) && r.o.Dir != "" {
		name = filepath.Join(r.o.Dir, name)
	}
	path, err := exec.LookPath(name)
	var reason *exec.Error
	if errors.As(err, &reason) {
		return "", reason.Err // the name may be a whole command line by mistake, with a secret in it
	}
	return path, err
}
