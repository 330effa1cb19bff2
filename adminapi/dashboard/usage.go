package dashboard

import (
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
)

type usage struct{ core.LimitUsage }

func newUsages(limits []core.LimitUsage) (list []*usage) {
	for _, u := range limits {
		list = append(list, &usage{u})
	}
	return list
}

// Left returns the rest of the limit.
func (u *usage) Left() int64 { return u.Limit.Remaining(u.Used) }

// Percent returns the length of the progress bar, at most 100.
func (u *usage) Percent() float64 { return min(u.Percentage(), 100) }

// Full reports whether the limit is used up.
func (u *usage) Full() bool { return u.Used >= u.Max }

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

// limit returns a limit in words.
func limit(max int64) string {
	if max == core.Unlimited {
		return "unlimited"
	}
	return number(max)
}

// userUsage is the usage of each counter of a user. A sum would hide a counter that is used up.
type userUsage struct {
	Rows  []counterRow // fullest first
	Total int          // number of counters, including those without a row
}

type counterRow struct {
	*usage
	Key  *core.Key // nil: the counter that keys share
	Plan *core.Plan
}

// Only returns the only counter, nil if there are several.
func (u *userUsage) Only() *usage {
	if len(u.Rows) == 1 && u.Total == 1 {
		return u.Rows[0].usage
	}
	return nil
}

// Full reports whether a counter is used up.
func (u *userUsage) Full() bool { return len(u.Rows) > 0 && u.Rows[0].Full() }

// userUsage returns the usage of the counters of a user.
func (q *request) userUsage(u *core.User) (*userUsage, error) {
	all, err := q.svc.UserUsage(q.r.Context(), q.account(), u.ID)
	if err != nil {
		return nil, err
	}
	v := &userUsage{Total: all.Total}
	for _, c := range all.Counters[:min(len(all.Counters), nearLimitRows)] {
		row := counterRow{usage: &usage{c.Fullest()}, Plan: c.Plan}
		if c.KeyID != "" {
			row.Key, err = q.svc.Key(q.r.Context(), q.account(), c.KeyID)
			if statuses[core.ErrorCode(err)] == http.StatusNotFound { // deleted meanwhile
				v.Total--
				continue
			}
			if err != nil {
				return nil, err
			}
		}
		v.Rows = append(v.Rows, row)
	}
	return v, nil
}

// adjusted is the key or user of an adjustment form. path is below Base; change makes the adjustment.
type adjusted struct {
	path, name string
	change     func(core.AdjustmentCall) error
}

func keyAdjustment(q *request, k *core.Key) adjusted {
	return adjusted{"keys/" + k.ID, k.Name, func(a core.AdjustmentCall) error {
		_, _, err := q.svc.AdjustKey(q.r.Context(), q.account(), k.ID, a)
		return err
	}}
}

func userAdjustment(q *request, u *core.User) adjusted {
	return adjusted{userPath(u.ID), u.Name, func(a core.AdjustmentCall) error {
		_, _, err := q.svc.AdjustUser(q.r.Context(), q.account(), u.ID, a)
		return err
	}}
}

var adjustWays = []option{
	{"give", "Give back", "Subtracts the number from the usage of every period. The usage never falls below 0."},
	{"charge", "Charge", "Adds the number to the usage of every period."},
	{"set", "Set", "The number becomes the usage in the period below."},
}

// adjustPage returns the handler of the page that adjusts the usage of a key or user.
func adjustPage[T any](of func(*request, T) adjusted) func(*request, T) error {
	return func(q *request, v T) error { return q.showAdjust(http.StatusOK, of(q, v), firstAdjustment, nil) }
}

// firstAdjustment returns the values of an empty form.
func firstAdjustment(name string) string {
	return map[string]string{"meter": core.MeterRequests, "way": "give", "period": core.Month.String()}[name]
}

func (q *request) showAdjust(status int, of adjusted, value func(string) string, fault error) error {
	meters, err := q.svc.Meters(q.r.Context(), q.account())
	if err != nil {
		return err
	}
	var meterOptions, periods []option
	for _, m := range meters {
		meterOptions = append(meterOptions, option{Value: m, Label: m})
	}
	for _, p := range core.Periods() {
		periods = append(periods, option{Value: p.String(), Label: p.String()})
	}
	f := q.form(of.path+"/adjust", "Adjust", of.path, []field{
		{Name: "way", Label: "Change", Type: "radio", Value: value("way"), Options: adjustWays},
		{Name: "number", Label: "Number", Type: "number", Value: value("number"), Required: true, Autofocus: true, Min: "0", Max: "9007199254740991"},
		{Name: "meter", Label: "Meter", Type: "select", Value: value("meter"), Required: true, Options: meterOptions},
		{Name: "period", Label: "Period", Type: "select", Value: value("period"), Required: true, Options: periods, Hint: "Needed only for “Set”."},
		{Name: "reason", Label: "Reason", Value: value("reason"), Required: true, Hint: "The history shows it."},
	}, fault)
	return q.showForm(status, "Adjust the usage of “"+of.name+"”", formView{Form: f, Text: "The change applies to the next request."})
}

// adjust returns the handler of the form of an [adjustPage].
func adjust[T any](of func(*request, T) adjusted) func(*request, T) error {
	return func(q *request, v T) error {
		to := of(q, v)
		a, err := q.adjustment()
		if err == nil {
			err = to.change(a)
		}
		if e, ok := errors.AsType[*core.Error](err); ok && (e.Field == "delta" || e.Field == "set") {
			err = fieldError("number", strings.Replace(e.Detail, "Delta", "Number", 1))
		}
		return q.finish(err, func(status int, value func(string) string, fault error) error {
			return q.showAdjust(status, to, value, fault)
		}, func() error { return q.redirect(to.path + "?done=adjusted") })
	}
}

func (q *request) adjustment() (a core.AdjustmentCall, err error) {
	post := q.r.PostForm
	a.Meter, a.Reason, a.IP = post.Get("meter"), post.Get("reason"), q.s.config.ClientIP(q.r)
	if a.Value, err = strconv.ParseInt(strings.TrimSpace(post.Get("number")), 10, 64); err != nil || a.Value < 0 {
		return a, fieldError("number", "Number must be a whole number of 0 or more")
	}
	switch post.Get("way") {
	case "give":
		a.Value = -a.Value
	case "charge":
	case "set":
		a.Set = true
		if a.Period, err = core.ParsePeriod(post.Get("period")); err != nil {
			return a, fieldError("period", "Choose a period")
		}
	default:
		return a, fieldError("way", "Choose a change")
	}
	return a, nil
}
