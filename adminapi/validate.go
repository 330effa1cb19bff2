package adminapi

import (
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
)

const validatePath = "/validate"

// validate decides on a request of an end user. It answers 200 for every decision.
func validate(c *call) error {
	q, err := decode(c, readRequest)
	if err != nil {
		return err
	}
	if q.IP == "" {
		q.CallerIP = c.config.ClientIP(c.r)
	}
	if err := q.Check(); err != nil {
		return err
	}
	began := time.Now()
	d, err := c.svc.Validate(c.ctx(), c.account, q)
	c.config.OnDecision(time.Since(began))
	if err != nil {
		return err
	}
	c.logRefusal(&d)
	WriteValidation(c.w, http.StatusOK, &d, XRateLimitHeaders|IETFHeaders)
	return nil
}

// logRefusal logs a refused request at level DEBUG, without its key. It does nothing for an allowed request.
func (c *call) logRefusal(d *service.Decision) {
	if d.Allowed() || !c.config.Logger.Enabled(c.ctx(), slog.LevelDebug) {
		return
	}
	attrs := []slog.Attr{slog.String("account", c.accountName()), slog.String("outcome", string(d.Outcome))}
	if d.Plan != nil {
		attrs = append(attrs, slog.String("plan", secrets.MaskSecrets(d.Plan.Name)), slog.Int64("limit", d.Limit.Max), slog.Int64("used", d.Usage.Used))
	}
	if d.Key != nil {
		attrs = append(attrs, slog.Int64("user_id", d.Key.UserID), slog.String("key_id", d.Key.ID))
	}
	c.config.Logger.LogAttrs(c.ctx(), slog.LevelDebug, "request refused", attrs...)
}

func readRequest(m *members) service.Request {
	q := service.Request{
		Secret:   m.Word("api_key"),
		Endpoint: m.Word("endpoint"),
		Method:   m.Word("method"),
		IP:       m.Word("ip_address"),
		Model:    m.model(),
		Usage:    m.usage(),
	}
	cost := m.Whole("cost")
	costs, requests := m.costs("costs")
	switch q.Costs = costs; {
	case cost != nil && requests != nil:
		m.Wrong("costs", "The cost of requests is given twice: cost and costs.requests")
	case cost != nil:
		q.Cost = *cost
	case requests != nil:
		q.Cost = *requests
	default:
		q.CostByPrice = true
	}
	q.Later = laterOf(costs, requests)
	q.Scopes, q.Features = m.texts("scopes"), m.texts("features")
	q.RequestID = m.requestID()
	readHold(m, &q)
	m.Ignore("context") // published clients send it
	return q
}

// laterOf returns the meters that costs name with 0, sorted: they are charged afterwards.
func laterOf(costs []core.MeterCost, requests *int64) (later []string) {
	for _, m := range costs {
		if m.Cost == 0 {
			later = append(later, strings.Clone(m.Meter)) // a store may keep it
		}
	}
	if requests != nil && *requests == 0 {
		later = append(later, core.MeterRequests)
		slices.Sort(later)
	}
	return later
}

// texts returns a list of texts, nil if it is missing or null.
func (m *members) texts(name string) []string {
	v, _ := m.Member(name, core.TypeTexts, true)
	list, _ := v.([]string)
	return list
}

// requestID returns the member request_id, "" if it is missing or null. An empty id is an error, because its
// sender expects to be counted once.
func (m *members) requestID() string {
	if v := m.Take("request_id"); v == nil || v.Kind == 'n' {
		return ""
	}
	id, err := service.ParseRequestID(m.Word("request_id"))
	if e, ok := errors.AsType[*core.Error](err); ok {
		m.Wrong(e.Field, e.Detail)
	}
	return id
}

// WriteRefusal answers with an error in the form of a validation: success is false.
func WriteRefusal(w http.ResponseWriter, status int, e *core.Error) {
	writeError(w, status, object{{"success", false}}.andError(e))
}
