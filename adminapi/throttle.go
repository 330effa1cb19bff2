package adminapi

import (
	"net/http"
	"strconv"
	"time"
)

// throttle holds the requests of an owner's key to the service's own bound.
func (c *call) throttle() error {
	wait, ok := c.svc.Admit(c.owner)
	if ok {
		return nil
	}
	retryAfter(c.w.Header(), wait)
	return errThrottled
}

// retryAfter tells to come back after a time, in whole seconds rounded up.
func retryAfter(h http.Header, wait time.Duration) {
	h.Set("Retry-After", strconv.FormatInt(wholeSeconds(wait), 10))
}

// wholeSeconds rounds up to seconds, and to 1 at least: who waits that long is not
// refused for having come a moment too early.
func wholeSeconds(d time.Duration) int64 {
	return max(1, int64((d+time.Second-1)/time.Second))
}
