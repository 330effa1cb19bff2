package command

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

const feedExample = `limitkeeper usage feed acme
  limitkeeper usage feed acme --again-from 2026-10-01T03:00:00Z`

// usageFeedCommand returns the command usage feed.
func usageFeedCommand() *cobra.Command {
	cmd := subcommand("feed ACCOUNT", "Shows how far the events limitkeeper.usage are written, or writes hours again", feedExample, runUsageFeed)
	cmd.Flags().String("again-from", "", "Write the hours from this one on again, with the same ids: one of the last 168 hours, such as 2026-10-01T03:00:00Z")
	return cmd
}

// feedBody is the body of PUT /limitkeeper/usage/feed.
type feedBody struct {
	NextHour core.Date `json:"next_hour"`
}

// feedView is the state of a usage feed, as Caddy's admin endpoint and the command show it.
type feedView struct {
	AccountID    string             `json:"account_id"`
	Wanted       bool               `json:"wanted"`        // an active webhook names limitkeeper.usage
	NextHour     *core.Date         `json:"next_hour"`     // the first hour that is not written; nil before the feed begins
	WaitingUsers []core.WaitingUser `json:"waiting_users"` // see [core.UsageFeed.FirstWaiting]
	WaitingCount int                `json:"waiting_count"` // of all waiting users
	WaitingFrom  *core.Date         `json:"waiting_from"`  // the earliest hour of all waiting users; nil for none
}

func viewFeed(account string) func(service.UsageFeedState) feedView {
	return func(f service.UsageFeedState) feedView {
		v := feedView{AccountID: account, Wanted: f.Wanted, WaitingUsers: append([]core.WaitingUser{}, f.FirstWaiting()...), WaitingCount: len(f.Waiting)}
		for _, w := range f.Waiting {
			if v.WaitingFrom == nil || w.From < *v.WaitingFrom {
				v.WaitingFrom = &w.From
			}
		}
		if f.Next != 0 {
			v.NextHour = &f.Next
		}
		return v
	}
}

// readUsageFeed answers with the state of the feed of an account.
func readUsageFeed(s *service.Service, r *http.Request, account string) (any, error) {
	return answer(viewFeed(account))(s.UsageFeed(r.Context(), account))
}

// rewindUsageFeed makes the feed of an account write hours again.
func rewindUsageFeed(s *service.Service, r *http.Request, account string) (any, error) {
	body, err := bodyOf[feedBody](r, `{"next_hour": …}`)
	if err == nil && !body.NextHour.IsHour() {
		err = badRequest(errors.New("next_hour: want an hour, such as 2026-10-01T03:00:00Z"))
	}
	if err != nil {
		return nil, err
	}
	return answer(viewFeed(account))(s.RewindUsageFeed(r.Context(), account, body.NextHour))
}

// feedPath returns the path of the feed of an account on the admin endpoint.
func feedPath(account string) string { return accountPath("usage/feed", account, "") }

func runUsageFeed(c *adminClient, args []string) error {
	var v feedView
	text := c.flags.String("again-from")
	if text == "" {
		if err := c.call(http.MethodGet, feedPath(args[0]), nil, &v); err != nil {
			return fmt.Errorf("reading the usage feed of account %q: %w", args[0], err)
		}
		return c.printFeed(v)
	}
	hour, err := core.ParseHour(text)
	if err != nil {
		return fmt.Errorf("--again-from: want an hour such as 2026-10-01T03:00:00Z, got %q", text)
	}
	if err := c.call(http.MethodPut, feedPath(args[0]), feedBody{hour}, &v); err != nil {
		return fmt.Errorf("rewinding the usage feed of account %q: %w", args[0], err)
	}
	return c.printFeed(v)
}

// printFeed prints the state of a feed as text.
func (c *adminClient) printFeed(v feedView) error {
	if !v.Wanted {
		if err := c.printf("No active webhook names the type limitkeeper.usage: nothing is written.\n"); err != nil {
			return err
		}
	}
	switch {
	case v.NextHour != nil:
		err := c.printf("Next hour      %v: all earlier hours are written, except hours of waiting users\nWaiting users  %d\n", *v.NextHour, v.WaitingCount)
		if err != nil || v.WaitingCount == 0 {
			return err
		}
	case v.Wanted:
		return c.printf("The feed begins within a minute, with the hour in which the webhook was created.\n")
	default:
		return nil
	}
	rows := [][]string{{"USER", "NEXT HOUR"}}
	for _, w := range v.WaitingUsers {
		rows = append(rows, []string{fmt.Sprint(w.UserID), w.From.Start().Format(time.RFC3339)})
	}
	return c.table(rows)
}
