package adminapi

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// maxFieldInteger is the largest integer of a structured field, RFC 9651 section 3.3.1.
const maxFieldInteger = 999_999_999_999_999

// SetRateLimitHeaders tells what a decision left, at the time now: in the
// X-RateLimit-* fields, which replace what was there, and in RateLimit and
// RateLimit-Policy (draft-ietf-httpapi-ratelimit-headers-11), which join the lists
// that are there, as other limits on the way may have their own. It does nothing for
// a decision without usage.
func SetRateLimitHeaders(h http.Header, d *core.Decision, now time.Time) {
	if !d.HasUsage() {
		return
	}
	window, limit, left := d.Usage.Window, d.Plan.Limit, d.Remaining()
	h.Set("X-RateLimit-Limit", strconv.FormatInt(limit, 10))
	h.Set("X-RateLimit-Remaining", strconv.FormatInt(left, 10))
	h.Set("X-RateLimit-Reset", strconv.FormatInt(window.End.Unix(), 10))
	h.Set("X-RateLimit-Plan", headerSafe(d.Plan.Name))

	joinList(h, "RateLimit-Policy", fmt.Sprintf(`"%s";q=%d;w=%d`,
		d.Plan.Period, fieldInteger(limit), fieldInteger(window.Seconds())))
	joinList(h, "RateLimit", fmt.Sprintf(`"%s";r=%d;t=%d`,
		d.Plan.Period, fieldInteger(left), fieldInteger(wholeSeconds(window.End.Sub(now)))))
}

// SetRetryAfter sets Retry-After to when the quota of a decision begins anew, at the
// time now: in whole seconds, rounded up. The decision has usage.
func SetRetryAfter(h http.Header, d *core.Decision, now time.Time) {
	retryAfter(h, d.Usage.Window.End.Sub(now))
}

// joinList adds a member to a field that is a list.
func joinList(h http.Header, name, member string) {
	h.Set(name, strings.Join(append(h.Values(name), member), ", "))
}

func fieldInteger(n int64) int64 { return min(n, maxFieldInteger) }

// headerSafe percent-encodes every byte that is not printable ASCII, and the percent
// sign, so that decoding always gives the name.
func headerSafe(name string) string {
	var b strings.Builder
	for i := range len(name) {
		if c := name[i]; c < ' ' || c > '~' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
