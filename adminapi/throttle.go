package adminapi

import (
	"net/http"
	"strconv"
	"time"

	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// throttle refuses requests above service_rate_limit and logs the owner's key once a minute.
func (c *call) throttle() error {
	wait, ok := c.svc.Admit(c.owner)
	if ok {
		return nil
	}
	if n := c.svc.CountRefusal(c.owner); n > 0 {
		c.config.Logger.Warn("an owner's key is over the limit of the REST API: raise service_rate_limit, or spread the requests",
			"account", c.accountName(), "owner_key", c.owner.ID, "hint", c.owner.Hint, "refused", n)
	}
	retryAfter(c.w.Header(), wait)
	return service.ErrTooManyRequests
}

// accountName returns the name of the account for a log, or its id if the store is unavailable.
func (c *call) accountName() string {
	a, err := c.svc.Account(c.ctx(), c.account)
	if err != nil {
		return c.account
	}
	return secrets.MaskSecrets(a.Name)
}

// retryAfter sets Retry-After, in whole seconds rounded up.
func retryAfter(h http.Header, wait time.Duration) {
	h.Set("Retry-After", strconv.FormatInt(service.WholeSeconds(wait), 10))
}
