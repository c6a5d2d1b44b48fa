package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/pipeline"
)

// connect tries every connection of a valid pipeline file and prints them all.
func (g *globals) connect(ctx context.Context, p *pipeline.Pipeline) error {
	r := app.Connect(ctx, p, app.Options{Logger: g.log})
	doc := map[string]any{"valid": true, "name": p.Name, "queries": len(p.Queries), "warnings": p.Warnings, "connect": r}
	err := g.print(doc, func(w io.Writer) error {
		for _, c := range r.Connections {
			mark := "ok     "
			if !c.OK {
				mark = "FAILED "
			}
			fmt.Fprintf(w, "%s%-8s%s\n", mark, c.Of, c.Need)
			for _, more := range [][2]string{{"", c.Error}, {"hint: ", c.Hint}, {"note: ", c.Note}} {
				if more[1] != "" {
					fmt.Fprintf(w, "               %s%s\n", more[0], more[1])
				}
			}
		}
		return nil
	})
	if err == nil && !r.OK {
		return exitCode(r.ExitCode())
	}
	return err
}
