package release

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// Component is one thing that a binary is made of.
type Component struct {
	Name    string
	Version string
	// PURL is the package URL, empty where there is no registry for it.
	PURL     string
	Sum      string
	Licences []Licence
	Notices  []string
}

//go:embed texts/zstd.txt
var zstdLicence string

// gozstdModule carries a compiled libzstd.
const gozstdModule = "github.com/valyala/gozstd"

// Components are the modules, what is compiled into them in other languages,
// and the runtimes: Go's standard library and, in a static binary, musl, whose
// licence file libc names (empty: not linked).
func Components(modules []Module, libc string) ([]Component, error) {
	var out []Component
	for _, m := range modules {
		if strings.HasPrefix(m.Path, duckdbModules) {
			parts, err := duckdbParts(m)
			if err != nil {
				return nil, err
			}
			out = append(out, parts...)
		}
		if m.Main {
			continue
		}
		licences, err := Licences(m)
		if err != nil {
			return nil, err
		}
		notices, err := Notices(m)
		if err != nil {
			return nil, err
		}
		out = append(out, Component{Name: m.Path, Version: m.Version, PURL: "pkg:golang/" + m.Path + "@" + m.Version,
			Sum: m.Sum, Licences: licences, Notices: notices})
		if m.Path == gozstdModule {
			version, err := zstdVersion(m.Dir)
			if err != nil {
				return nil, err
			}
			out = append(out, Component{Name: "libzstd", Version: version, PURL: "pkg:generic/zstd@" + version,
				Licences: []Licence{{ID: "BSD-3-Clause", File: "LICENSE", Text: zstdLicence}}})
		}
	}
	version := strings.TrimPrefix(runtime.Version(), "go")
	text, err := goLicence()
	if err != nil {
		return nil, err
	}
	out = append(out, Component{Name: "std", Version: version, PURL: "pkg:golang/std@" + version,
		Licences: []Licence{{ID: Classify(text), File: "LICENSE", Text: text}}})
	if libc != "" {
		text, err := readFile(libc)
		if err != nil {
			return nil, err
		}
		out = append(out, Component{Name: "musl", Version: "", Licences: []Licence{{ID: "MIT", File: filepath.Base(libc), Text: text}}})
	}
	return out, nil
}

var zstdDefine = regexp.MustCompile(`(?m)^#define ZSTD_VERSION_(MAJOR|MINOR|RELEASE)\s+(\d+)$`)

// zstdVersion reads the version of the compiled library from its header.
func zstdVersion(dir string) (string, error) {
	header, err := os.ReadFile(filepath.Join(dir, "zstd.h"))
	if err != nil {
		return "", fmt.Errorf("version of libzstd: %w", err)
	}
	var parts []string
	for _, m := range zstdDefine.FindAllStringSubmatch(string(header), -1) {
		parts = append(parts, m[2])
	}
	if len(parts) != 3 {
		return "", fmt.Errorf("version of libzstd: %s/zstd.h does not say it", dir)
	}
	return strings.Join(parts, "."), nil
}

// goLicence is the licence of the toolchain's standard library.
func goLicence() (string, error) {
	root, err := goEnv("GOROOT")
	if err != nil {
		return "", err
	}
	return readFile(filepath.Join(root, "LICENSE"))
}

// ids are the licences of the component, each once, sorted.
func (c Component) ids() []string {
	var out []string
	for _, l := range c.Licences {
		if !slices.Contains(out, l.ID) {
			out = append(out, l.ID)
		}
	}
	slices.Sort(out)
	return out
}
