package release

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sort"
	"strings"
)

// Module is one Go module of which at least one package is linked.
type Module struct {
	Path    string
	Version string
	Sum     string // of go.sum, "h1:…"; empty for the main module
	Dir     string
	// Packages are the folders of the linked packages, relative to Dir, sorted.
	Packages []string
	// Main says that it is the project itself.
	Main bool
}

// goListPackage is what is read of `go list -json`.
type goListPackage struct {
	Dir      string
	Standard bool
	Module   *struct {
		Path, Version, Sum, Dir string
		Main                    bool
		Replace                 *struct{ Path, Version, Sum, Dir string }
	}
}

// Linked lists the modules that the packages are linked from, for the platform,
// the cgo setting and the build tags of the environment, sorted by path.
func Linked(ctx context.Context, dir string, tags string, packages ...string) ([]Module, error) {
	args := append([]string{"list", "-deps", "-tags", tags, "-json=Dir,Standard,Module"}, packages...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	byPath := map[string]*Module{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goListPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read what go list says: %w", err)
		}
		if p.Standard || p.Module == nil {
			continue
		}
		m := p.Module
		got := byPath[m.Path]
		if got == nil {
			got = &Module{Path: m.Path, Version: m.Version, Sum: m.Sum, Dir: m.Dir, Main: m.Main}
			if r := m.Replace; r != nil {
				got.Version, got.Sum, got.Dir = r.Version, r.Sum, r.Dir
			}
			byPath[m.Path] = got
		}
		got.Packages = append(got.Packages, strings.TrimPrefix(strings.TrimPrefix(p.Dir, got.Dir), "/"))
	}
	list := make([]Module, 0, len(byPath))
	for _, m := range byPath {
		sort.Strings(m.Packages)
		list = append(list, *m)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Path < list[j].Path })
	return list, nil
}

// goEnv asks the toolchain.
func goEnv(name string) (string, error) {
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		return "", fmt.Errorf("go env %s: %w", name, err)
	}
	return strings.TrimSpace(string(out)), nil
}
