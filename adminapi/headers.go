package adminapi

import (
	"net/http"
	"strconv"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// maxFieldInteger is the largest integer in a structured field, RFC 9651 section 3.3.1.
const maxFieldInteger = 999_999_999_999_999

// RateLimitHeaders selects the families of rate limit headers on an answer. The zero value
// selects none.
type RateLimitHeaders uint8

// The families.
const (
	XRateLimitHeaders RateLimitHeaders = 1 << iota // X-RateLimit-Limit, -Remaining, -Reset and -Plan
	IETFHeaders                                    // RateLimit-Policy and RateLimit, draft-ietf-httpapi-ratelimit-headers-11
)

// Set writes the usage of a decision into the selected headers. X-RateLimit-* headers replace
// existing values. RateLimit-Policy and RateLimit are lists: their members are appended to
// existing ones, because other services on the way may have limits of their own. The seconds
// until the reset count from now. Set does nothing for a decision without usage.
func (s RateLimitHeaders) Set(h http.Header, d *service.Decision, now time.Time) {
	var room [192]byte // enough for most decisions
	var f fields
	if b := s.add(&f, room[:0], h, d, now); f.n > 0 {
		f.set(h, b)
	}
}

// add appends the values to b, and adds the fields to f.
func (s RateLimitHeaders) add(f *fields, b []byte, h http.Header, d *service.Decision, now time.Time) []byte {
	if s == 0 || !d.HasUsage() {
		return b
	}
	if s&XRateLimitHeaders != 0 {
		if !d.Limit.Unlimited() {
			b = strconv.AppendInt(b, d.Limit.Max, 10)
			f.end("X-Ratelimit-Limit", b)
			b = strconv.AppendInt(b, d.Remaining(), 10)
			f.end("X-Ratelimit-Remaining", b)
		}
		if window := d.Usage.Window; window.Ends() && !d.Limit.Unlimited() {
			b = strconv.AppendInt(b, window.End.Unix(), 10)
			f.end("X-Ratelimit-Reset", b)
		}
		b = appendSafe(b, d.Plan.Name)
		f.end("X-Ratelimit-Plan", b)
	}
	if s&IETFHeaders != 0 {
		limits := d.Limits
		var only [1]core.LimitUsage
		if limits == nil && !d.Limit.Unlimited() {
			only[0] = d.LimitUsage
			limits = only[:]
		}
		own := d.OwnRate()
		if len(limits) > 0 || d.Plan.Rate != nil || own != nil {
			b = appendList(b, h["Ratelimit-Policy"])
			b = appendPolicies(b, limits, d.Plan.Rate, own)
			f.end("Ratelimit-Policy", b)
		}
		if len(limits) > 0 || d.RetryAfter > 0 {
			b = appendList(b, h["Ratelimit"])
			b = appendRests(b, limits, d, now)
			f.end("Ratelimit", b)
		}
	}
	return b
}

// SetRetryAfter sets Retry-After to the seconds from now until the quota of a decision resets, or until its rate allows a
// request, rounded up. It sets nothing if to wait does not help: the quota never resets, or
// the request costs more than all of it. The decision must have usage.
func SetRetryAfter(h http.Header, d *service.Decision, now time.Time) {
	switch {
	case d.RetryAfter > 0:
		retryAfter(h, d.RetryAfter)
	case d.Outcome == service.OverConcurrency || !d.HasUsage():
		retryAfter(h, retrySoon)
	case d.Usage.Window.Ends() && !d.NeverFits():
		retryAfter(h, d.Usage.Window.End.Sub(now))
	}
}

// fields builds header fields with one value each in a single buffer, with two allocations for all of
// them. Answers share no slices, because an outer handler may modify the values in place.
type fields struct {
	names [maxFields]string // canonical
	ends  [maxFields]int    // end of each value in the buffer
	n     int
}

const maxFields = 9

// end adds the field with a canonical name, whose value is at the end of text.
func (f *fields) end(name string, text []byte) {
	f.names[f.n], f.ends[f.n] = name, len(text)
	f.n++
}

// set adds the fields to a header. text is the whole buffer.
func (f *fields) set(h http.Header, text []byte) {
	all, values, from := string(text), make([]string, f.n), 0
	for i, to := range f.ends[:f.n] {
		values[i], from = all[from:to], to
		h[f.names[i]] = values[i : i+1 : i+1]
	}
}

// appendList appends the existing members of a list field.
func appendList(b []byte, members []string) []byte {
	for _, member := range members {
		b = append(b, member...)
		b = append(b, ", "...)
	}
	return b
}

// appendPolicies appends the members of RateLimit-Policy: the maximum of each limit, and the length of its window in
// seconds unless it does not end. A meter other than requests has a quota unit (qu) of its own. The rates of the plan and of the key are the last members.
func appendPolicies(b []byte, limits []core.LimitUsage, rate, own *core.Rate) []byte {
	for i := range limits {
		u := &limits[i]
		b = appendQuota(b, i, u, ";q=", u.Max)
		if u.Window.Ends() {
			b = appendParameter(b, ";w=", u.Window.Seconds())
		}
		if u.Meter != core.MeterRequests {
			b = append(append(append(b, `;qu="limitkeeper-`...), u.Meter...), '"')
		}
	}
	n := len(limits)
	if rate != nil {
		b = appendWindow(appendRate(b, n, core.OfPlan, ";q=", rate.Requests), rate)
		n++
	}
	if own != nil {
		b = appendWindow(appendRate(b, n, core.OfKey, ";q=", own.Requests), own)
	}
	return b
}

// appendWindow appends the unit of time of a rate in seconds.
func appendWindow(b []byte, rate *core.Rate) []byte {
	return appendParameter(b, ";w=", int64(rate.Per.Duration().Seconds()))
}

// appendRests appends the members of RateLimit: the rest of each limit, and the seconds until the limit resets unless it
// never does. After a refusal by the rate, the rate is the last member, with the time until it allows a request. Otherwise the
// store knows what is left of the rate, and no answer says it.
func appendRests(b []byte, limits []core.LimitUsage, d *service.Decision, now time.Time) []byte {
	for i := range limits {
		u := &limits[i]
		b = appendQuota(b, i, u, ";r=", u.Limit.Remaining(u.Used))
		if u.Window.Ends() {
			b = appendParameter(b, ";t=", service.WholeSeconds(u.Window.End.Sub(now)))
		}
	}
	if d.RetryAfter > 0 {
		b = appendRate(b, len(limits), d.RefusedBy, ";r=", 0)
		b = appendParameter(b, ";t=", service.WholeSeconds(d.RetryAfter))
	}
	return b
}

// appendQuota appends the i-th member of a list, with one parameter. Its name is the period of a limit of requests, and
// the meter and the period of other limits, such as "tokens-month". The name of a limit of the key begins with "key:".
func appendQuota(b []byte, i int, u *core.LimitUsage, name string, n int64) []byte {
	return appendParameter(append(appendPolicy(beginName(b, i, u.Of), u.Limit), '"'), name, n)
}

// appendRate appends a rate as the i-th member of a list, with one parameter.
func appendRate(b []byte, i int, of core.Origin, name string, n int64) []byte {
	return appendParameter(append(append(beginName(b, i, of), ratePolicy...), '"'), name, n)
}

// ratePolicy is the name of the rate of a plan in the RateLimit fields.
const ratePolicy = "rate"

// PolicyName returns the name of the limit or rate that has refused a request, as it is in the RateLimit fields, or concurrency.
func PolicyName(d *service.Decision) string {
	if d.Outcome == service.OverConcurrency {
		return string(append(appendOrigin(nil, d.RefusedBy), core.ReasonConcurrency...))
	}
	if d.RetryAfter > 0 {
		return string(append(appendOrigin(nil, d.RefusedBy), ratePolicy...))
	}
	return string(appendPolicy(appendOrigin(nil, d.Of), d.Limit))
}

func appendPolicy(b []byte, l core.Limit) []byte {
	if l.Meter != core.MeterRequests {
		b = append(append(b, l.Meter...), '-')
	}
	return append(b, l.Period.String()...)
}

// appendOrigin appends the beginning of the name of a limit or rate: "key:" if it is of the key, which may have the same limits as the plan.
func appendOrigin(b []byte, of core.Origin) []byte {
	if of == core.OfKey {
		b = append(b, "key:"...)
	}
	return b
}

// beginName begins the name of the i-th member of a list, which is a string.
func beginName(b []byte, i int, of core.Origin) []byte {
	if i > 0 {
		b = append(b, ", "...)
	}
	return appendOrigin(append(b, '"'), of)
}

// appendParameter appends an integer parameter of a structured field.
func appendParameter(b []byte, name string, n int64) []byte {
	return strconv.AppendInt(append(b, name...), min(n, maxFieldInteger), 10)
}

// appendSafe appends a name. It percent-encodes the percent sign and every byte that is not printable
// ASCII, so decoding returns the name.
func appendSafe(b []byte, name string) []byte {
	const hex = "0123456789ABCDEF"
	for i := range len(name) {
		if c := name[i]; c < ' ' || c > '~' || c == '%' {
			b = append(b, '%', hex[c>>4], hex[c&15])
		} else {
			b = append(b, c)
		}
	}
	return b
}
