package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/catalogserve"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
)

func newCatalog(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "catalog",
		Short: "Give other engines the catalog of a pipeline",
	}
	cmd.AddCommand(newCatalogServe(g))
	return cmd
}

type catalogServeFlags struct {
	listen    string
	tokenFile string
	catalog   string
	name      string
}

func newCatalogServe(g *globals) *cobra.Command {
	var f catalogServeFlags
	cmd := &cobra.Command{
		Use:         "serve [FILE]",
		Annotations: map[string]string{untilStopped: ""},
		Short:       "Serve the tables of a pipeline as a read-only Iceberg REST catalog",
		Long: `Serves the tables of a pipeline as a read-only Iceberg REST catalog, so that
PyIceberg, Spark, DuckDB and Trino attach with one URL (docs/attach.md). The
files are read by the engines themselves: they need the same disk, or the keys
of the bucket. It may run beside the pipeline or without it, and as often as
one likes.

  weir catalog serve pipeline.yaml
  weir catalog serve --catalog demo-data/catalog.db`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := g.openServed(cmd.Context(), f, args)
			if err != nil {
				return err
			}
			defer c.Close()
			return g.serveCatalog(cmd.Context(), c, f)
		},
	}
	cmd.Flags().StringVar(&f.listen, "listen", catalogserve.DefaultListen, "`address` to listen on; port 0 takes a free one")
	cmd.Flags().StringVar(&f.tokenFile, "token-file", "", "`file` with a token that clients must send; needed where others reach the address")
	cmd.Flags().StringVar(&f.catalog, "catalog", "", "the `file` of a SQLite catalog, in place of a pipeline file")
	cmd.Flags().StringVar(&f.name, "catalog-name", lake.DefaultName, "the catalog's `name` in --catalog")
	return cmd
}

func (g *globals) openServed(ctx context.Context, f catalogServeFlags, args []string) (*lake.Catalog, error) {
	switch {
	case f.catalog != "" && len(args) > 0:
		return nil, failure.New(failure.Config, "give a pipeline file or --catalog, not both")
	case f.catalog != "":
		// The tables know their own places; the warehouse is only for new ones.
		return lake.Open(ctx, lake.Config{URI: f.catalog, Name: f.name, Warehouse: filepath.Dir(f.catalog), ReadOnly: true})
	case len(args) == 0:
		return nil, failure.New(failure.Config, "which catalog? Give a pipeline file, or --catalog with the file of a SQLite catalog")
	}
	p, err := g.load(args[0])
	if err != nil {
		return nil, err
	}
	return app.ReadCatalog(ctx, p, g.log)
}

func (g *globals) serveCatalog(ctx context.Context, c *lake.Catalog, f catalogServeFlags) error {
	token := ""
	if f.tokenFile != "" {
		b, err := os.ReadFile(f.tokenFile)
		if err != nil {
			return failure.Wrap(failure.Config, err, "read the token")
		}
		if token = strings.TrimSpace(string(b)); token == "" {
			return failure.New(failure.Config, "the token file %s is empty", f.tokenFile)
		}
	}
	srv, err := catalogserve.Listen(catalogserve.Options{Tables: c, Listen: f.listen, Token: token, Logger: g.log})
	if err != nil {
		return err
	}
	err = g.print(map[string]string{"url": srv.URL()}, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "Iceberg REST catalog, read-only: %s\n", srv.URL())
		return err
	})
	if err != nil {
		return err
	}
	return srv.Serve(ctx)
}
