package command

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"time"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:      "health",
		Usage:     "URL",
		Short:     "Asks a running server for its health",
		Long:      healthHelp,
		CobraFunc: healthCommand,
	})
}

const healthHelp = `
Requests URL and exits with 0 if the answer is 200, otherwise with 1. Use it as
the health check of a container that has no shell and no curl.
`

// healthTimeout is how long the command health waits for an answer.
const healthTimeout = 10 * time.Second

// healthCommand adds the arguments of the command health.
func healthCommand(cmd *cobra.Command) {
	cmd.Example = "  limitkeeper health http://127.0.0.1:8081/functions/v1/health/ready"
	cmd.Args = cobra.ExactArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client := http.Client{Timeout: healthTimeout}
		resp, err := client.Get(args[0])
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
		if err != nil {
			return err
		}
		body = bytes.TrimSpace(body)
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s: %s", resp.Request.URL.Redacted(), resp.Status, printable(string(body)))
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), printable(string(body)))
		return err
	}
}
