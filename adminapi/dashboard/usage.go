package dashboard

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

type usage struct{ core.LimitUsage }

// Left returns the rest of the limit.
func (u *usage) Left() int64 { return u.Limit.Remaining(u.Used) }

// Percent returns the length of the progress bar, at most 100.
func (u *usage) Percent() float64 { return min(u.Percentage(), 100) }

// Full reports whether the limit is used up, and refuses requests.
func (u *usage) Full() bool { return u.Used >= u.Max && u.OnExceed == core.DenyExceed }

// Beyond returns how much of the usage is beyond a limit that refuses nothing.
func (u *usage) Beyond() int64 {
	if n := u.Overage(); n != nil {
		return *n
	}
	return 0
}

// Class returns the CSS class of the progress bar: low, high (80 % or more) or full.
func (u *usage) Class() string {
	switch {
	case u.Full():
		return "full"
	case u.Percent() >= 80:
		return "high"
	}
	return "low"
}

// OtherMeter returns the meter, "" for requests.
func (u *usage) OtherMeter() string {
	if u.Meter == core.MeterRequests {
		return ""
	}
	return u.Meter
}

// per returns a period as in "10 a month".
func per(p core.Period) string {
	switch p {
	case core.Lifetime:
		return "in its lifetime"
	case core.Hour:
		return "an hour"
	}
	return "a " + p.String()
}

// refusing returns the limit that refused a request in words: 60 of 60 requests a minute, the plan's limit.
func refusing(l *core.RefusingLimit) string {
	return fmt.Sprintf("%s of %s %s %s, the %s's limit", humanize.Comma(l.Used), humanize.Comma(l.Max), l.Meter, per(l.Period), l.Of)
}

// limit returns a limit in words.
func limit(max int64) string {
	if max == core.Unlimited {
		return "unlimited"
	}
	return humanize.Comma(max)
}

// userUsage is the usage of each counter of a user. A sum would hide a counter that is used up.
type userUsage struct {
	Counters []userCounter // fullest first
	Total    int           // how many counters the user has, listed or not
}

// userCounter is a counter of a user.
type userCounter struct {
	Key    *core.Key // nil: the counter that keys share
	Plan   *core.Plan
	Limits []*usage // of every meter, the primary limit first
}

// counterRow is the fullest limit of a counter.
type counterRow struct {
	*usage
	User *core.User
	Key  *core.Key // nil: the counter that keys share
	Plan *core.Plan
}

// Only returns the only counter, nil if there are several.
func (u *userUsage) Only() *userCounter {
	if len(u.Counters) == 1 && u.Total == 1 {
		return &u.Counters[0]
	}
	return nil
}

// Full reports whether a limit of a listed counter is used up.
func (u *userUsage) Full() bool {
	return slices.ContainsFunc(u.Counters, func(c userCounter) bool { return slices.ContainsFunc(c.Limits, (*usage).Full) })
}

// usages returns the limits of a counter for a page.
func usages(limits []core.LimitUsage) (list []*usage) {
	for _, l := range limits {
		list = append(list, &usage{l})
	}
	return list
}

// userUsage returns the usage of the counters of a user.
func (q *request) userUsage(u *core.User) (*userUsage, error) {
	all, err := q.svc.UserUsage(q.r.Context(), q.account(), u.ID)
	if err != nil {
		return nil, err
	}
	v := &userUsage{Total: all.Total}
	for _, c := range all.Counters[:min(len(all.Counters), nearLimitRows)] {
		row := userCounter{Plan: c.Plan, Limits: usages(c.Limits)}
		if c.KeyID != "" {
			if row.Key, err = nilIfMissing(q.svc.Key(q.r.Context(), q.account(), c.KeyID)); err != nil {
				return nil, err
			}
			if row.Key == nil { // deleted meanwhile
				v.Total--
				continue
			}
		}
		v.Counters = append(v.Counters, row)
	}
	return v, nil
}

var adjustWays = []option{
	{"give", "Give back", "Subtracts the number from the usage of every period. The usage never falls below 0."},
	{"charge", "Charge", "Adds the number to the usage of every period."},
	{"set", "Set", "The number becomes the usage in the period below."},
}

// adjustForm returns the form that adjusts the usage of a key or user.
func (k *kind[K, R, P]) adjustForm(q *request, r *R) (formView, error) {
	meters, err := q.svc.Meters(q.r.Context(), q.account())
	if err != nil {
		return formView{}, err
	}
	var meterOptions, periods []option
	for _, m := range meters {
		meterOptions = append(meterOptions, option{Value: m, Label: m})
	}
	for _, p := range core.Periods() {
		periods = append(periods, option{Value: p.String(), Label: p.String()})
	}
	f := q.form(k.path(r)+"/adjust", "Adjust", k.path(r),
		field{Name: "way", Label: "Change", Type: "radio", Value: "give", Options: adjustWays},
		field{Name: "number", Label: "Number", Type: "number", Required: true, Autofocus: true, Min: "0", Max: "9007199254740991"},
		field{Name: "meter", Label: "Meter", Type: "select", Value: core.MeterRequests, Required: true, Options: meterOptions},
		field{Name: "period", Label: "Period", Type: "select", Value: core.Month.String(), Required: true, Options: periods, Hint: "Needed only for “Set”."},
		field{Name: "reason", Label: "Reason", Required: true, Hint: "The history shows it."})
	_, name, _ := k.of(r)
	return formView{Title: "Adjust the usage of “" + name + "”", Form: f, Text: "The change applies to the next request."}, nil
}

func (k *kind[K, R, P]) postAdjust(q *request, r *R) error {
	id, _, _ := k.of(r)
	a, err := q.adjustment()
	if err == nil {
		err = k.adjust(q, id, a)
	}
	if e, ok := errors.AsType[*core.Error](err); ok && (e.Field == "delta" || e.Field == "set") {
		return core.Invalid("number", strings.Replace(e.Detail, "Delta", "Number", 1))
	}
	if err != nil {
		return err
	}
	return q.redirect(k.path(r) + "?done=adjusted")
}

func (q *request) adjustment() (a service.AdjustmentCall, err error) {
	post := q.r.PostForm
	a.Meter, a.Reason, a.IP = post.Get("meter"), post.Get("reason"), q.s.config.ClientIP(q.r)
	if a.Value, err = strconv.ParseInt(strings.TrimSpace(post.Get("number")), 10, 64); err != nil || a.Value < 0 {
		return a, core.Invalid("number", "Number must be a whole number of 0 or more")
	}
	switch post.Get("way") {
	case "give":
		a.Value = -a.Value
	case "charge":
	case "set":
		a.Set = true
		if a.Period, err = core.ParsePeriod(post.Get("period")); err != nil {
			return a, core.Invalid("period", "Choose a period")
		}
	default:
		return a, core.Invalid("way", "Choose a change")
	}
	return a, nil
}
