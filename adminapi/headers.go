package adminapi

import (
	"net/http"
	"strconv"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// maxFieldInteger is the largest integer of a structured field, RFC 9651 section 3.3.1.
const maxFieldInteger = 999_999_999_999_999

// RateLimitHeaders selects the families of rate limit headers on an answer. The zero value
// selects none.
type RateLimitHeaders uint8

// The families.
const (
	XRateLimitHeaders RateLimitHeaders = 1 << iota // X-RateLimit-Limit, -Remaining, -Reset and -Plan
	IETFHeaders                                    // RateLimit-Policy and RateLimit, draft-ietf-httpapi-ratelimit-headers-11
)

// SetRateLimitHeaders sets the headers of both families. See [RateLimitHeaders.Set].
func SetRateLimitHeaders(h http.Header, d *core.Decision, now time.Time) {
	(XRateLimitHeaders | IETFHeaders).Set(h, d, now)
}

// Set writes the usage of a decision into the selected headers. X-RateLimit-* headers replace
// existing values. RateLimit-Policy and RateLimit are lists: their members are appended to
// existing ones, because other services on the way may have limits of their own. The seconds
// until the reset count from now. Set does nothing for a decision without usage.
func (s RateLimitHeaders) Set(h http.Header, d *core.Decision, now time.Time) {
	if s == 0 || !d.HasUsage() {
		return
	}
	window, limit, left := d.Usage.Window, d.Plan.Limit, d.Remaining()
	var room [192]byte // for the values of most decisions
	var f fields
	b := room[:0]
	if s&XRateLimitHeaders != 0 {
		b = strconv.AppendInt(b, limit, 10)
		f.end("X-Ratelimit-Limit", b)
		b = strconv.AppendInt(b, left, 10)
		f.end("X-Ratelimit-Remaining", b)
		b = strconv.AppendInt(b, window.End.Unix(), 10)
		f.end("X-Ratelimit-Reset", b)
		b = appendSafe(b, d.Plan.Name)
		f.end("X-Ratelimit-Plan", b)
	}
	if s&IETFHeaders != 0 {
		b = appendList(b, h["Ratelimit-Policy"])
		b = appendQuota(b, d.Plan.Period, ";q=", limit, ";w=", window.Seconds())
		f.end("Ratelimit-Policy", b)
		b = appendList(b, h["Ratelimit"])
		b = appendQuota(b, d.Plan.Period, ";r=", left, ";t=", core.WholeSeconds(window.End.Sub(now)))
		f.end("Ratelimit", b)
	}
	f.set(h, b)
}

// SetRetryAfter sets Retry-After to when the quota of a decision begins anew, at the
// time now: in whole seconds, rounded up. The decision has usage.
func SetRetryAfter(h http.Header, d *core.Decision, now time.Time) {
	retryAfter(h, d.Usage.Window.End.Sub(now))
}

// fields are header fields with one value each, whose values are made one after
// another in one text. They are set with two allocations, and share nothing with the
// header of another answer: who comes after may change a value in place.
type fields struct {
	names [maxFields]string // canonical
	ends  [maxFields]int    // of the values, in the text
	n     int
}

const maxFields = 6

// end says that the text ends with the value of the field with the canonical name.
func (f *fields) end(name string, text []byte) {
	f.names[f.n], f.ends[f.n] = name, len(text)
	f.n++
}

// set puts the fields into a header.
func (f *fields) set(h http.Header, text []byte) {
	all, values, from := string(text), make([]string, f.n), 0
	for i, to := range f.ends[:f.n] {
		values[i], from = all[from:to], to
		h[f.names[i]] = values[i : i+1 : i+1]
	}
}

// appendList begins a value with the members that a field, which is a list, has.
func appendList(b []byte, members []string) []byte {
	for _, member := range members {
		b = append(b, member...)
		b = append(b, ", "...)
	}
	return b
}

// appendQuota adds what a member of RateLimit or RateLimit-Policy says.
func appendQuota(b []byte, p core.Period, first string, x int64, second string, y int64) []byte {
	b = append(b, '"')
	b = append(b, p.String()...)
	b = append(b, '"')
	b = append(b, first...)
	b = strconv.AppendInt(b, min(x, maxFieldInteger), 10)
	b = append(b, second...)
	return strconv.AppendInt(b, min(y, maxFieldInteger), 10)
}

// appendSafe adds a name, in which every byte that is not printable ASCII, and the
// percent sign, is percent-encoded, so that decoding always gives the name.
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
