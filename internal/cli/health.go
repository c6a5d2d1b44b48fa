package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlake/weir/internal/failure"
)

const (
	// healthURL is where a process on the same machine answers by default.
	healthURL     = "http://127.0.0.1:8080/livez"
	healthTimeout = 4 * time.Second
	// healthBodyMax bounds what is shown of an answer.
	healthBodyMax = 500
)

// newHealth asks a running weir whether it lives: the health check of a
// container whose image has nothing else that could ask.
func newHealth(g *globals) *cobra.Command {
	var url string
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Ask a running weir whether it is alive: 0, or 8",
		Long: `Asks the status page of a running weir. The exit code is 0 where it answers with
success, and 8 where it does not answer or says that it has failed; with
--url …/readyz, where it is not ready. Neither address needs the page's token.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			status, text, err := askHealth(cmd.Context(), url)
			if err != nil {
				return failure.Wrap(failure.Unreachable, err, "no answer from %s", url)
			}
			if status/100 != 2 {
				return failure.New(failure.Unreachable, "%s answers %d %s", url, status, text)
			}
			answer := map[string]any{"url": url, "status": status}
			return g.print(answer, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "%s answers %d\n", url, status)
				return err
			})
		},
	}
	cmd.Flags().StringVar(&url, "url", healthURL, "the `address` to ask")
	return cmd
}

func askHealth(ctx context.Context, url string) (status int, text string, err error) {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", failure.Wrap(failure.Config, err, "--url %s", url)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", fmt.Errorf("ask: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, healthBodyMax))
	if err != nil {
		return 0, "", fmt.Errorf("read the answer: %w", err)
	}
	return resp.StatusCode, strings.TrimSpace(string(body)), nil
}
