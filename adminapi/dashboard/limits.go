package dashboard

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// limitFields returns the fields of further limits, of a rate and of a concurrency.
func limitFields(label, hint string) []field {
	return []field{
		{Name: "limits", Label: label, Type: "textarea", Placeholder: "tokens 1000000 month",
			Hint: "One on each line: a meter, how much, a period from minute to year, or lifetime, and “allow” if the limit refuses nothing. " + hint},
		{Name: "rate", Label: "Rate", Type: "number", Min: "1", Max: "1000000", Hint: "Requests in a second or a minute. Empty: no rate."},
		{Name: "per", Label: "Per", Type: "select", Required: true, Options: []option{{Value: "second", Label: "second"}, {Value: "minute", Label: "minute"}}},
		{Name: "burst", Label: "Burst", Type: "number", Min: "1", Max: "1000000", Hint: "Requests allowed at once. Empty: as many as the rate."},
		{Name: "concurrency", Label: "Concurrency", Type: "number", Min: "1", Max: "10000", Hint: "Requests in flight at once, at the gateway or held by your own code. Empty: no bound."},
	}
}

// eachLimit parses the lines of a field of limits, and calls add with each limit and the words behind it. add returns false for words that it does
// not know.
func eachLimit(name, form, text string, add func(l core.Limit, rest []string) bool) error {
	for _, line := range lines(text) {
		words := strings.Fields(line)
		wrong := core.Invalid(name, "Each line is "+form+", with a period of "+core.PeriodNames(core.Periods())+": "+line)
		if len(words) < 3 {
			return wrong
		}
		n, err := strconv.ParseInt(words[1], 10, 64)
		period, unknown := core.ParsePeriod(words[2])
		if err != nil || unknown != nil || !add(core.Limit{Meter: words[0], Max: n, Period: period}, words[3:]) {
			return wrong
		}
	}
	return nil
}

// writeLimit writes a line that eachLimit parses.
func writeLimit(b *strings.Builder, meter string, most int64, p core.Period, rest string) {
	fmt.Fprintf(b, "%s %d %v%s\n", meter, most, p, rest)
}

// parseLimits parses limits, one on each line, as limitLines writes them.
func parseLimits(text string) (list []core.Limit, err error) {
	err = eachLimit("limits", "a meter, a number and a period, such as “tokens 1000000 month”, and “allow” if the limit refuses nothing", text,
		func(l core.Limit, rest []string) bool {
			ok := len(rest) == 0
			if len(rest) == 1 {
				l.OnExceed, ok = core.ParseOnExceed(rest[0])
			}
			list = append(list, l)
			return ok
		})
	return list, err
}

func limitLines(limits []core.Limit) string {
	var b strings.Builder
	for _, l := range limits {
		rest := ""
		if l.OnExceed == core.AllowExceed {
			rest = " " + l.OnExceed.String()
		}
		writeLimit(&b, l.Meter, l.Max, l.Period, rest)
	}
	return b.String()
}

// parseOverrides parses overrides, one on each line, as overrideLines writes them.
func parseOverrides(text string) (list []core.Override, err error) {
	err = eachLimit("overrides", "a meter, a number and a period, such as “requests 5000 month”, or “requests 5000 month until 2030-01-31T00:00:00Z”", text,
		func(l core.Limit, rest []string) bool {
			o := core.Override{Meter: l.Meter, Max: l.Max, Period: l.Period}
			ok := len(rest) == 0
			if len(rest) == 2 && rest[0] == "until" {
				until, err := time.Parse(time.RFC3339, rest[1])
				o.Until, ok = new(until.UTC().Truncate(time.Millisecond)), err == nil
			}
			list = append(list, o)
			return ok
		})
	return list, err
}

func overrideLines(list []core.Override) string {
	var b strings.Builder
	for _, o := range list {
		rest := ""
		if o.Until != nil {
			rest = " until " + o.Until.UTC().Format(time.RFC3339Nano)
		}
		writeLimit(&b, o.Meter, o.Max, o.Period, rest)
	}
	return b.String()
}

// parseRate parses the fields of a rate.
func parseRate(post url.Values) (r core.Rate, err error) {
	r.Per = core.RatePer(post.Get("per"))
	if r.Requests, err = strconv.ParseInt(strings.TrimSpace(post.Get("rate")), 10, 64); err != nil {
		return r, core.Invalid("rate", "Rate must be a whole number, or empty for no rate")
	}
	r.Burst = r.Requests
	if burst := strings.TrimSpace(post.Get("burst")); burst != "" {
		if r.Burst, err = strconv.ParseInt(burst, 10, 64); err != nil {
			return r, core.Invalid("burst", "Burst must be a whole number")
		}
	}
	return r, nil
}
