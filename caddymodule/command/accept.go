package command

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/caddymodule"
	"github.com/limitkeeper/limitkeeper/core"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:      "store",
		Usage:     "accept",
		Short:     "Manages the store of a running server",
		Long:      storeHelp,
		CobraFunc: storeCommand,
	})
}

const storeHelp = `
After Redis has lost data, every node refuses requests with status 503. The log
says what was lost. Restore Redis from a backup, or keep what Redis has now. Then
let all nodes go on. They wait for the command store accept after a restored
backup, too.
`

func storeCommand(cmd *cobra.Command) {
	const example = "limitkeeper store accept"
	cmd.RunE, cmd.Example = needSubcommand, "  "+example
	cmd.AddCommand(subcommand("accept", "Lets all nodes go on after Redis has lost data", "", example, runStoreAccept))
}

// acceptedView lists the losses that were accepted: a line for each master.
type acceptedView struct {
	Lost []string `json:"lost"`
}

func runStoreAccept(c *adminClient, _ []string) error {
	var v acceptedView
	if err := c.call(http.MethodPost, "store/accept", nil, &v); err != nil {
		return fmt.Errorf("accepting the loss: %w", err)
	}
	if c.json {
		return nil
	}
	for _, lost := range v.Lost {
		if _, err := fmt.Fprintf(c.out, "Accepted %s\n", printable(lost)); err != nil {
			return err
		}
	}
	text := "All nodes go on within a second."
	if len(v.Lost) == 0 {
		text = "The store has lost nothing."
	}
	_, err := fmt.Fprintln(c.out, text)
	return err
}

func acceptLoss(_ *core.Service, r *http.Request) (any, error) {
	running, err := caddymodule.RunningStore()
	if err != nil {
		return nil, err
	}
	store, ok := running.Store.(core.LossyStore)
	if !ok {
		return nil, caddy.APIError{HTTPStatus: http.StatusBadRequest, Err: errors.New("the store is not on Redis: there is nothing to accept")}
	}
	lost, err := store.Accept(r.Context())
	if err != nil {
		return nil, err
	}
	return acceptedView{Lost: append([]string{}, lost...)}, nil
}
