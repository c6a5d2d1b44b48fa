package cli

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// Set by the release build. A development build has the version "dev", the
// revision that the toolchain stamped, if it did, and no date.
var (
	Version  = "dev"
	Revision = ""
	Date     = "" // of the commit that was built, RFC 3339
)

// buildInfo is what a binary says of itself.
type buildInfo struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Date     string `json:"date,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Cgo      bool   `json:"cgo"`
}

func readBuildInfo() buildInfo {
	b := buildInfo{Version: Version, Revision: Revision, Date: Date, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if bi, ok := debug.ReadBuildInfo(); ok {
		for _, s := range bi.Settings {
			switch s.Key {
			case "vcs.revision":
				if b.Revision == "" {
					b.Revision = s.Value
				}
			case "CGO_ENABLED":
				b.Cgo = s.Value == "1"
			}
		}
	}
	return b
}

func newVersion(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version and how the binary was built",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			b := readBuildInfo()
			return g.print(b, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "weir %s (%s, %s)\n", b.Version, b.Go, b.Platform)
				if err == nil && b.Revision != "" {
					_, err = fmt.Fprintln(w, strings.TrimSpace("commit "+b.Revision+" "+b.Date))
				}
				return err
			})
		},
	}
}
