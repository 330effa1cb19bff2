package command

import (
	"errors"
	"fmt"
	"net/http"
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
	return c.printf("Accepted %s, which is %s ahead of the time of before.\n", shownTime(&v.Clock), time.Duration(v.AheadSeconds)*time.Second)
}

func acceptClock(running *caddymodule.OpenStore, _ *http.Request) (any, error) {
	s, err := running.Clock.Accept()
	if errors.Is(err, core.ErrClockNotHeld) {
		return nil, caddy.APIError{HTTPStatus: http.StatusConflict, Err: err}
	}
	return clockView{Clock: s.Wall.UTC(), AheadSeconds: int64(s.Ahead() / time.Second)}, err
}
