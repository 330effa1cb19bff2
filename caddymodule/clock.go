package caddymodule

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
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

If the new time is right, the server need not wait:

	limitkeeper clock accept
`

func clockCommand(cmd *cobra.Command) {
	cmd.RunE = needSubcommand
	cmd.AddCommand(subcommand("accept", "Uses the clock of the machine at once after it has jumped", "", runClockAccept))
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
	app, err := runningApp()
	if err != nil {
		return nil, err
	}
	s, err := app.live.Load().clock.Accept()
	if errors.Is(err, core.ErrClockNotHeld) {
		return nil, caddy.APIError{HTTPStatus: http.StatusConflict, Err: err}
	}
	return clockView{Clock: s.Wall.UTC(), AheadSeconds: int64(s.Ahead() / time.Second)}, err
}

// readClock is given to [core.NewClock]. nil reads the clocks of the machine; tests set it.
var readClock func() (wall time.Time, monotonic time.Duration)

// newClock returns a clock that logs its changes.
func newClock(log *slog.Logger) *core.Clock {
	return core.NewClock(readClock, func(change core.ClockChange, s core.ClockState) {
		text := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
		log := log.With("clock", text(s.Wall), "ahead", s.Ahead().Round(time.Second).String())
		if !s.Server.IsZero() {
			log = log.With("clock_of_redis", text(s.Server))
		}
		switch change {
		case core.ClockHeld:
			log.Error("the clock is far ahead of the last good time: requests count from the last good time on, until the clock returns, "+
				"is steady for a minute, or is confirmed by limitkeeper clock accept", "used", text(s.Used))
		case core.ClockReturned:
			log.Warn("the clock is right again and in use")
		case core.ClockSteady:
			log.Warn("the clock was steady for a minute and is in use")
		case core.ClockAccepted:
			log.Warn("the clock was confirmed by limitkeeper clock accept and is in use")
		}
	})
}

// The figures of the clock.
var (
	clockAhead = prometheus.NewDesc("limitkeeper_clock_ahead_seconds",
		"By how much the clock of the machine is ahead of the time at which requests count; 0 unless it has jumped.", nil, nil)
	clockJumps = prometheus.NewDesc("limitkeeper_clock_jumps_total",
		"How often the clock of the machine has jumped forward by more than 5 minutes.", nil, nil)
)

func describeClock(ch chan<- *prometheus.Desc) {
	ch <- clockAhead
	ch <- clockJumps
}

func collectClock(c *core.Clock, ch chan<- prometheus.Metric) {
	s := c.State()
	ch <- prometheus.MustNewConstMetric(clockAhead, prometheus.GaugeValue, s.Ahead().Seconds())
	ch <- prometheus.MustNewConstMetric(clockJumps, prometheus.CounterValue, float64(s.Jumps))
}

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
let all nodes go on. They wait for this command after a restored backup, too:

	limitkeeper store accept
`

func storeCommand(cmd *cobra.Command) {
	cmd.RunE = needSubcommand
	cmd.AddCommand(subcommand("accept", "Lets all nodes go on after Redis has lost data", "", runStoreAccept))
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
	app, err := runningApp()
	if err != nil {
		return nil, err
	}
	store, ok := app.live.Load().store.(*redisstore.Store)
	if !ok {
		return nil, caddy.APIError{HTTPStatus: http.StatusBadRequest, Err: errors.New("the store is not on Redis: there is nothing to accept")}
	}
	lost, err := store.Accept(r.Context())
	if err != nil {
		return nil, err
	}
	return acceptedView{Lost: append([]string{}, lost...)}, nil
}
