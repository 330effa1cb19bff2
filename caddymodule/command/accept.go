package command

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/caddymodule"
	"github.com/limitkeeper/limitkeeper/core"
)

const clockHelp = `
When the clock of the machine jumps forward by more than 5 minutes, the server
goes on with the time of before: a wrong clock would end every quota. The jump is
accepted after a minute on a steady clock. On Redis the clock of Redis must agree.

If the new time is right, clock accept ends the wait.
`

const storeHelp = `
After Redis has lost data, every node refuses requests with status 503. The log
says what was lost. Restore Redis from a backup, or keep what Redis has now. Then
let all nodes go on. They wait for the command store accept after a restored
backup, too.
`

func clockCommand(cmd *cobra.Command) {
	acceptCommand(cmd, "Uses the clock of the machine at once after it has jumped", runClockAccept)
}

func storeCommand(cmd *cobra.Command) {
	acceptCommand(cmd, "Lets all nodes go on after Redis has lost data", runStoreAccept)
}

// acceptCommand adds the only subcommand of the commands clock and store: accept.
func acceptCommand(cmd *cobra.Command, short string, run func(*adminClient, []string) error) {
	example := "limitkeeper " + cmd.Name() + " accept"
	cmd.RunE, cmd.Example = needSubcommand, "  "+example
	cmd.AddCommand(subcommand("accept", short, example, run))
}

// clockView is an accepted jump as the admin API shows it.
type clockView struct {
	Clock        time.Time `json:"clock"` // in use from now on
	AheadSeconds int64     `json:"ahead_seconds"`
}

func runClockAccept(c *adminClient, _ []string) error {
	var v clockView
	if err := c.call(http.MethodPost, "clock/accept", nil, &v); err != nil {
		return fmt.Errorf("accepting the clock: %w", err)
	}
	return c.printf("Accepted %s, which is %s ahead of the time of before.\n", shownTime(&v.Clock), time.Duration(v.AheadSeconds)*time.Second)
}

func acceptClock(running *caddymodule.OpenStore, _ *http.Request) (any, error) {
	s, err := running.Clock.Accept()
	if errors.Is(err, core.ErrClockNotHeld) {
		return nil, caddy.APIError{HTTPStatus: http.StatusConflict, Err: err}
	}
	return clockView{Clock: s.Wall.UTC(), AheadSeconds: int64(s.Ahead() / time.Second)}, err
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
