package command

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
)

const usageHelp = `
adjust changes the usage of a key or of a user by hand. The change applies to the
next request. The history shows the reason.

report prints the usage of an account in a month or a range of days, for invoices.

feed shows up to which hour the events limitkeeper.usage are written, and writes
hours again for a receiver that has lost some.

verify adds up the events limitkeeper.usage that a receiver has stored, and
compares the sums with the report. It exits with 1 if they differ. It needs about
80 bytes of memory for each event, and 200 for each meter of a user or a key.

These commands talk to a running server over Caddy's admin endpoint, as the
command reload does.
`

const usageExample = `limitkeeper usage adjust acme key_8hw3nQ5vd2tcX6mbK4rJ --delta -500 --reason "outage of 3 May"
  limitkeeper usage adjust acme 17 --meter tokens --set 0 --period month --reason "wrong import"`

// usageCommand adds the subcommands of the command usage.
func usageCommand(cmd *cobra.Command) {
	cmd.RunE, cmd.Example = needSubcommand, "  "+usageExample
	adjust := subcommand("adjust ACCOUNT KEY|USER", "Adds to, or sets, the usage of a key or a user, by id", usageExample, runUsageAdjust)
	adjust.Flags().String("meter", core.MeterRequests, "What is adjusted: requests, or a meter that a plan names")
	adjust.Flags().String("delta", "", "The number to add in every period; negative to give back")
	adjust.Flags().String("set", "", "The new usage in the period of --period, instead of --delta")
	adjust.Flags().String("period", "", "With --set: "+core.PeriodNames(core.Periods()))
	adjust.Flags().String("reason", "", "The reason, for the history")
	adjust.Flags().Bool("own", false, "Of a key: adjust the counter of its own limits, and not that of its plan")
	adjust.Flags().String("request-id", "", "A request id: a repeat within 24 hours changes nothing")
	cmd.AddCommand(adjust, reportCommand(), usageFeedCommand(), usageVerifyCommand())
}

// adjustBody is the body of POST /limitkeeper/usage.
type adjustBody struct {
	core.Adjustment
	Period    string `json:"period,omitempty"` // its name
	RequestID string `json:"request_id,omitempty"`
	Own       bool   `json:"own,omitempty"` // of a key: the counter of its own limits
}

// adjustView is the usage of the adjusted counter, as the admin API and the command show it.
type adjustView struct {
	Repeated bool        `json:"repeated"` // the request id belongs to an earlier adjustment
	Limits   []limitView `json:"limits"`
	Note     string      `json:"note,omitempty"`
}

// noteUnshared is the note of an adjustment of a counter that decides for no key.
const noteUnshared = "No key of this user draws on this counter: adjust each key with a plan of its own by the id of the key."

// limitView is the usage of a limit.
type limitView struct {
	Meter     string      `json:"meter"`
	Period    core.Period `json:"period"`
	Used      int64       `json:"used"`
	Max       *int64      `json:"max"`                  // null: unlimited
	ResetTime *time.Time  `json:"reset_time,omitempty"` // absent: never
	Of        core.Origin `json:"of"`
}

func viewLimitUsages(list []core.LimitUsage) []limitView {
	views := make([]limitView, len(list))
	for i, u := range list {
		views[i] = limitView{Meter: u.Meter, Period: u.Period, Used: u.Used, Of: u.Of}
		if !u.Limit.Unlimited() {
			views[i].Max = &u.Max
		}
		if u.Window.Ends() {
			views[i].ResetTime = &u.Window.End
		}
	}
	return views
}

func runUsageAdjust(c *adminClient, args []string) error {
	var v adjustView
	body, err := adjustFlags(c.flags)
	if err != nil {
		return err
	}
	if err = body.setPeriod(); err == nil {
		err = c.call(http.MethodPost, accountPath("usage", args[0], args[1]), body, &v)
	}
	if err != nil {
		return fmt.Errorf("adjusting the usage of %q: %w", args[1], err)
	}
	notes := ""
	if v.Repeated {
		notes = "The request id belongs to an earlier adjustment: nothing has changed.\n"
	}
	if v.Note != "" {
		notes += v.Note + "\n"
	}
	if err := c.printf("%s", notes); err != nil {
		return err
	}
	rows := [][]string{{"METER", "PERIOD", "USED", "LIMIT", "OF", "RESETS"}}
	for _, l := range v.Limits {
		limit := "unlimited"
		if l.Max != nil {
			limit = strconv.FormatInt(*l.Max, 10)
		}
		rows = append(rows, []string{l.Meter, l.Period.String(), strconv.FormatInt(l.Used, 10), limit, string(l.Of), shownTime(l.ResetTime)})
	}
	return c.table(rows)
}

// adjustFlags returns the adjustment in the flags of the command.
func adjustFlags(flags caddycmd.Flags) (body adjustBody, err error) {
	body.Meter, body.Reason, body.RequestID = flags.String("meter"), flags.String("reason"), flags.String("request-id")
	body.Period, body.Own = flags.String("period"), flags.Bool("own")
	if strings.TrimSpace(body.Reason) == "" {
		return body, errors.New(`--reason is missing: the history shows it, as in --reason "outage of 3 May"`)
	}
	name := "delta"
	if body.Set = flags.String("set") != ""; body.Set {
		name = "set"
	}
	text := flags.String(name)
	if body.Value, err = strconv.ParseInt(text, 10, 64); err != nil && text != "" {
		return body, fmt.Errorf("--%s: want a whole number, got %q", name, text)
	}
	if text == "" || body.Set && flags.String("delta") != "" {
		return body, errors.New("give either --delta or --set with --period")
	}
	return body, nil
}

// setPeriod sets the period of an adjustment that sets the usage.
func (b *adjustBody) setPeriod() (err error) {
	switch {
	case b.Set:
		if b.Adjustment.Period, err = core.ParsePeriod(b.Period); err != nil {
			return errors.New("period: want one of " + core.PeriodNames(core.Periods()))
		}
	case b.Period != "":
		return errors.New("a delta changes every period: give a period only with set")
	}
	return nil
}

// adjustUsage adjusts the usage of the key or user with the id in the query.
func adjustUsage(s *service.Service, r *http.Request, account string) (any, error) {
	body, err := bodyOf[adjustBody](r, `{"meter": …, "value": …, "reason": …}`)
	if err != nil {
		return nil, err
	}
	if err := body.setPeriod(); err != nil {
		return nil, badRequest(err)
	}
	call := service.AdjustmentCall{Adjustment: body.Adjustment, Own: body.Own}
	if body.RequestID != "" {
		if call.RequestID, err = service.ParseRequestID(body.RequestID); err != nil {
			return nil, err
		}
	}
	id := r.URL.Query().Get("id")
	if strings.HasPrefix(id, "key_") {
		u, repeated, err := s.AdjustKey(r.Context(), account, id, call)
		if err != nil {
			return nil, err
		}
		return adjustView{Repeated: repeated, Limits: viewLimitUsages(u.Limits)}, nil
	}
	user, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		return nil, badRequest(fmt.Errorf("want the id of a key, such as key_8hw3nQ5vd2tcX6mbK4rJ, or of a user, a number: got %q", secrets.MaskSecrets(id)))
	}
	u, repeated, err := s.AdjustUser(r.Context(), account, user, call)
	if err != nil {
		return nil, err
	}
	v := adjustView{Repeated: repeated, Limits: []limitView{}}
	if !u.Shared {
		v.Note = noteUnshared
	}
	for _, c := range u.Counters {
		if c.KeyID == "" {
			v.Limits = viewLimitUsages(c.Limits)
		}
	}
	return v, nil
}
