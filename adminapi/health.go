package adminapi

import (
	"net/http"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// serviceHealth is the JSON form of the health.
type serviceHealth struct {
	Status string       `json:"status"`
	Clock  *clockHealth `json:"clock,omitempty"` // only while the clock is held after a jump
}

// clockHealth is the JSON form of a clock jump.
type clockHealth struct {
	Used         time.Time `json:"used"`          // the time used for counting
	AheadSeconds int64     `json:"ahead_seconds"` // lead of the machine's clock
}

// healthy is the answer of a service that works, without details.
var healthy = serviceHealth{Status: "ok"}

// health answers whether the store is available, or why not, and whether the clock has jumped. Over plain HTTP it says
// neither the reason nor the clock.
func health(c *call) error {
	if err := c.storeHealth(); err != nil {
		return err
	}
	h := healthy
	if s := c.config.Clock(); s.Held && c.config.Secure(c.r) {
		h.Clock = &clockHealth{s.Used.UTC().Truncate(time.Millisecond), int64(s.Ahead() / time.Second)}
	}
	return c.write(http.StatusOK, h)
}

// ready answers whether to send requests here: the store is available, and the server is not about to stop.
func ready(c *call) error {
	if c.config.Stopping(c.r) {
		return core.Logged(core.ErrUnavailable)
	}
	if err := c.storeHealth(); err != nil {
		return err
	}
	return c.write(http.StatusOK, healthy)
}

// live answers that the process works, whatever the state of the store.
func live(c *call) error { return c.write(http.StatusOK, healthy) }

// storeHealth returns why requests are not counted, nil while they are. Over plain HTTP the error has no reason. The error
// is not logged: anyone can request it without limit, and stores log their changes of state.
func (c *call) storeHealth() error {
	svc, err := c.service()
	if err == nil {
		err = svc.Health(c.ctx())
	}
	switch {
	case err == nil || core.ErrorCode(err) != core.CodeUnavailable:
		return err
	case !c.config.Secure(c.r):
		err = core.ErrUnavailable
	}
	return core.Logged(err)
}
