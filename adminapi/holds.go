package adminapi

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

func ofHold(h func(c *call, id string) error) handler { return ofID(core.ErrHoldNotFound, h) }

// readHold reads the members of a validation that open a hold.
func readHold(m *members, q *service.Request) {
	onExpiry := m.Take("on_expiry")
	seconds := m.Whole("hold_seconds")
	if seconds != nil && (*seconds < 1 || *seconds > int64(core.MaxHoldTime/time.Second)) {
		m.Wrong("hold_seconds", "Must be a whole number from 1 to 86400")
		return
	}
	q.HoldFor = time.Duration(core.OrZero(seconds)) * time.Second
	if onExpiry == nil || onExpiry.Kind == 'n' {
		return
	}
	switch {
	case onExpiry.Kind == '"' && onExpiry.Text == core.ReleaseHeld.String():
		q.OnExpiry = core.ReleaseHeld
	case onExpiry.Kind != '"' || onExpiry.Text != core.KeepHeld.String():
		m.Wrong("on_expiry", "Must be keep or release")
	}
	if seconds == nil {
		m.Wrong("on_expiry", "Must be given with hold_seconds")
	}
}

func readFinal(m *members) *service.Final {
	f := &service.Final{Model: m.model(), Usage: m.usage(), IP: m.call.config.ClientIP(m.call.r)}
	f.Costs, f.Requests = m.costs("costs")
	return f
}

// viewCosts returns the costs on each meter.
func viewCosts(requests int64, costs []core.MeterCost) map[string]int64 {
	v := map[string]int64{core.MeterRequests: requests}
	for _, m := range costs {
		v[m.Meter] = m.Cost
	}
	return v
}

func viewHold(h *core.Hold) object {
	v := object{{"hold_id", h.ID}, {"status", h.Status}, {"user_id", h.UserID}, {"key_id", orNull(h.KeyID)}, {"costs", viewCosts(h.Cost, h.Costs)}, {"created_at", h.At},
		{"expires_at", h.ExpiresAt}, {"on_expiry", h.OnExpiry.String()}, {"closed_at", orNull(h.ClosedAt)}}
	if h.Status == core.HoldSettled {
		return append(v, field{"settled_costs", viewCosts(h.Settled, h.SettledCosts)})
	}
	return append(v, field{"settled_costs", nil})
}

// settleHold ends a hold with final costs.
func settleHold(c *call, id string) error {
	f, err := decode(c, readFinal)
	if err != nil {
		return err
	}
	done, err := c.svc.Settle(c.ctx(), c.account, id, f)
	return c.writeSettled(done, err)
}

// releaseHold gives everything back that a hold has counted.
func releaseHold(c *call, id string) error {
	done, err := c.svc.Release(c.ctx(), c.account, id, c.config.ClientIP(c.r))
	return c.writeSettled(done, err)
}

// writeSettled answers with the end of a hold, in the form of a validation.
func (c *call) writeSettled(done *service.Settled, err error) error {
	if err != nil {
		return err
	}
	v := object{{"success", true}, {"hold_id", done.ID}, {"status", done.Status}, {"costs", viewCosts(done.Settled, done.SettledCosts)}}
	if over := done.Overrun(); len(over) > 0 {
		overrun := map[string]int64{}
		for _, m := range over {
			overrun[m.Meter] = m.Cost
		}
		v = append(v, field{"overrun", overrun})
	}
	if done.Repeated {
		v = append(v, field{"repeated", true})
	}
	d, err := c.svc.HoldUsage(c.ctx(), c.account, &done.Hold)
	if err != nil {
		return err
	}
	if c.config.OnSettled(done, &d); d.HasUsage() {
		(XRateLimitHeaders | IETFHeaders).Set(c.w.Header(), &d, d.At)
		v = append(v, field{"details", json.RawMessage(appendUsage(nil, &d))})
	}
	return c.write(http.StatusOK, v)
}
