package adminapi

import (
	"net/http"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

const validatePath = "/validate"

// usage is what a verdict says of the quota.
type usage struct {
	CurrentUsage int64     `json:"current_usage"`
	Limit        int64     `json:"limit"`
	Remaining    int64     `json:"remaining"`
	ResetTime    time.Time `json:"reset_time"`
	PlanName     string    `json:"plan_name"`
}

// validate decides on a request of an end user. Every decision is a 200.
func validate(c *call) error {
	q, err := decode(c, readRequest)
	if err != nil {
		return err
	}
	if q.IP == "" {
		q.IP = c.config.ClientIP(c.r)
	}
	if err := q.Check(); err != nil {
		return err
	}
	d, err := c.svc.Validate(c.ctx(), c.account, q)
	if err != nil {
		return err
	}
	SetRateLimitHeaders(c.w.Header(), &d, c.svc.Now())
	WriteVerdict(c.w, http.StatusOK, &d)
	return nil
}

func readRequest(m *members) core.Request {
	q := core.Request{
		Secret:   orZero(m.text("api_key")),
		Endpoint: orZero(m.text("endpoint")),
		Method:   orZero(m.text("method")),
		IP:       orZero(m.text("ip_address")),
		Cost:     1,
	}
	if cost := m.whole("cost"); cost != nil {
		q.Cost = *cost
	}
	q.RequestID = m.requestID()
	return q
}

// requestID returns the id of a request, "" without one. An empty one is a fault: who
// sends it means to be counted once.
func (m *members) requestID() string {
	id := m.optionalText("request_id").Value
	if id == nil {
		return ""
	}
	if err := core.CheckRequestID(*id); err != nil && m.err == nil {
		m.err = err
	}
	return *id
}

func orZero[T any](p *T) (v T) {
	if p != nil {
		return *p
	}
	return v
}

// WriteVerdict answers with a decision: success, error and code of a refusal, and
// the usage when the quota was looked at. It does not set the rate limit fields.
func WriteVerdict(w http.ResponseWriter, status int, d *core.Decision) {
	var a answer
	if e := d.Refusal(); e != nil {
		a = errorAnswer(e)
	}
	a.Success = new(d.Allowed())
	if d.HasUsage() {
		a.Details = usage{
			CurrentUsage: d.Usage.Used,
			Limit:        d.Plan.Limit,
			Remaining:    d.Remaining(),
			ResetTime:    d.Usage.Window.End,
			PlanName:     d.Plan.Name,
		}
	}
	_ = writeJSON(w, status, a) // a verdict can be marshalled
}

// WriteRefusal answers with an error in the form of a verdict: success is false.
func WriteRefusal(w http.ResponseWriter, status int, e *core.Error) {
	a := errorAnswer(e)
	a.Success = new(false)
	_ = writeJSON(w, status, a) // an error answer can be marshalled
}
