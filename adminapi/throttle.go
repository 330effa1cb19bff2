package adminapi

import (
	"net/http"
	"strconv"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// throttle holds the requests of an owner's key to the service's own bound. Once a minute it
// logs whose requests it refuses, and where the bound is set.
func (c *call) throttle() error {
	wait, ok := c.svc.Admit(c.owner)
	if ok {
		return nil
	}
	if n := c.svc.Refused(c.owner); n > 0 {
		c.config.Logger.Warn("an owner's key is over the limit of the REST API: raise service_rate_limit, or spread the requests",
			"account", c.accountName(), "owner_key", c.owner.ID, "hint", c.owner.Hint, "refused", n)
	}
	retryAfter(c.w.Header(), wait)
	return core.ErrTooManyRequests
}

// accountName returns the name of the account for a log, or its id when the store cannot tell.
func (c *call) accountName() string {
	a, err := c.svc.Account(c.ctx(), c.account)
	if err != nil {
		return c.account
	}
	return core.MaskSecrets(a.Name)
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
