package command

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/caddymodule"
	"github.com/limitkeeper/limitkeeper/core"
)

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
	if len(v.Lost) == 0 {
		return c.printf("The store has lost nothing.\n")
	}
	var text strings.Builder
	for _, lost := range v.Lost {
		fmt.Fprintf(&text, "Accepted %s\n", printable(lost))
	}
	return c.printf("%sAll nodes go on within a second.\n", &text)
}

func acceptLoss(running *caddymodule.OpenStore, r *http.Request) (any, error) {
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
