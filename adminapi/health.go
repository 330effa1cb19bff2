package adminapi

import (
	"net/http"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// healthy is the answer of a service that works, without details.
func healthy() object { return object{{"status", "ok"}} }

// health answers whether the store is available, or why not, and whether the clock has jumped. Over plain HTTP it says
// neither the reason nor the clock.
func health(c *call) error {
	if err := c.storeHealth(); err != nil {
		return err
	}
	h := healthy()
	if s := c.config.Clock(); s.Held && c.config.Secure(c.r) {
		h = append(h, field{"clock", object{
			{"used", s.Used.UTC().Truncate(time.Millisecond)},   // the time used for counting
			{"ahead_seconds", int64(s.Ahead() / time.Second)}}}) // lead of the machine's clock
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
	return c.write(http.StatusOK, healthy())
}

// live answers that the process works, whatever the state of the store.
func live(c *call) error { return c.write(http.StatusOK, healthy()) }

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
