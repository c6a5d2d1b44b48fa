package cli

import (
	"github.com/spf13/cobra"

	"github.com/weirlake/weir/internal/broker"
	"github.com/weirlake/weir/internal/failure"
)

// newBroker is the hidden command that the embedded broker runs as.
func newBroker() *cobra.Command {
	return &cobra.Command{
		Use:                broker.Subcommand,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := broker.ParseArgs(args)
			if err != nil {
				return failure.Wrap(failure.Config, err, "embedded broker")
			}
			return broker.RunChild(cmd.Context(), cfg)
		},
	}
}
