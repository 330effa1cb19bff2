package command

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/caddymodule"
	"github.com/limitkeeper/limitkeeper/core"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:      "clock",
		Usage:     "accept",
		Short:     "Accepts a jump of the clock on a running server",
		Long:      clockHelp,
		CobraFunc: clockCommand,
	})
}

const clockHelp = `
When the clock of the machine jumps forward by more than 5 minutes, the server
goes on with the time of before: a wrong clock would end every quota. The jump is
accepted after a minute on a steady clock. On Redis the clock of Redis must agree.

If the new time is right, clock accept ends the wait.
`

func clockCommand(cmd *cobra.Command) {
	const example = "limitkeeper clock accept"
	cmd.RunE, cmd.Example = needSubcommand, "  "+example
	cmd.AddCommand(subcommand("accept", "Uses the clock of the machine at once after it has jumped", "", example, runClockAccept))
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
	if c.json {
		return nil
	}
	_, err := fmt.Fprintf(c.out, "Accepted %s, which is %s ahead of the time of before.\n",
		shownTime(&v.Clock), time.Duration(v.AheadSeconds)*time.Second)
	return err
}

func acceptClock(*core.Service, *http.Request) (any, error) {
	running, err := caddymodule.RunningStore()
	if err != nil {
		return nil, err
	}
	s, err := running.Clock.Accept()
	if errors.Is(err, core.ErrClockNotHeld) {
		return nil, caddy.APIError{HTTPStatus: http.StatusConflict, Err: err}
	}
	return clockView{Clock: s.Wall.UTC(), AheadSeconds: int64(s.Ahead() / time.Second)}, err
}
