package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/pipeline"
)

// tokenVariable holds the status page's token where no pipeline file does.
const tokenVariable = "WEIR_STATUS_TOKEN"

// pageFlags are the flags of the status page.
type pageFlags struct {
	listen string
	pprof  bool
	proof  string
}

func (p *pageFlags) add(cmd *cobra.Command, listen, usage string) {
	cmd.Flags().StringVar(&p.listen, "listen", listen, usage)
	cmd.Flags().StringVar(&p.proof, "proof", "", "report of weir prove to show on the status page: `file` (default: proof.json beside the checkpoints)")
	cmd.Flags().BoolVar(&p.pprof, "pprof", false, "serve Go profiles at /debug/pprof of the status page")
}

// options are the flags over the file. An address that nobody asked for may be
// replaced by another port; one that was asked for may not.
func (p *pageFlags) options(s pipeline.Status) app.StatusOptions {
	o := app.StatusOptions{
		Listen: s.Listen, FreePort: !s.Given, Token: s.Token.Reveal(), PProf: p.pprof, Proof: p.proof, Version: readBuildInfo().Version,
	}
	if p.listen != "" {
		o.Listen, o.FreePort = p.listen, false
	}
	if o.Token == "" {
		o.Token = os.Getenv(tokenVariable)
	}
	return o
}

// openPage opens the status page and says where it is.
func (g *globals) openPage(a *app.App, o app.StatusOptions) error {
	url, err := a.ServeStatus(o)
	if err != nil || url == "" {
		return err
	}
	if o.Token != "" {
		fmt.Fprintf(g.stderr, "weir: status page at %s (open it once with ?token=…)\n", url)
		return nil
	}
	fmt.Fprintf(g.stderr, "weir: status page at %s\n", url)
	return nil
}
