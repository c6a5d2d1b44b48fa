// Command releasetool writes what goes beside a binary of a release: its bill
// of materials and the notices of what it is made of. scripts/release.sh runs
// it, with GOOS, GOARCH and CGO_ENABLED of the binary in the environment.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/weirlake/weir/internal/release"
)

func main() {
	var b release.Binary
	var tags, libc, sbom, notices string
	var epoch int64
	flag.StringVar(&b.Version, "version", "", "of the release")
	flag.StringVar(&b.Revision, "revision", "", "commit of the release")
	flag.StringVar(&b.Platform, "platform", "", "GOOS/GOARCH of the binary")
	flag.Int64Var(&epoch, "epoch", 0, "time of the build, seconds since 1970")
	flag.StringVar(&tags, "tags", "", "build tags of the binary")
	flag.StringVar(&libc, "libc", "", "licence file of the linked C library, if one is")
	flag.StringVar(&sbom, "sbom", "", "file for the bill of materials")
	flag.StringVar(&notices, "notices", "", "file for the notices")
	flag.Parse()
	b.Built = time.Unix(epoch, 0)
	if err := write(b, tags, libc, sbom, notices); err != nil {
		fmt.Fprintln(os.Stderr, "releasetool:", err)
		os.Exit(1)
	}
}

func write(b release.Binary, tags, libc, sbom, notices string) error {
	modules, err := release.Linked(context.Background(), ".", tags, "./cmd/weir")
	if err != nil {
		return err
	}
	for _, m := range modules {
		if err := release.Check(m); err != nil {
			return err
		}
	}
	components, err := release.Components(modules, libc)
	if err != nil {
		return err
	}
	if err := file(sbom, func(w io.Writer) error { return release.WriteSBOM(w, b, components) }); err != nil {
		return err
	}
	return file(notices, func(w io.Writer) error { return release.WriteNotices(w, components) })
}

func file(path string, f func(io.Writer) error) error {
	out, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	if err := f(out); err != nil {
		out.Close()
		return err
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
