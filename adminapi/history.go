package adminapi

import (
	"context"
	"net/http"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// request is the JSON form of a history entry.
type request struct {
	Timestamp time.Time `json:"timestamp"`
	Endpoint  string    `json:"endpoint"`
	Method    string    `json:"method"`
	Status    string    `json:"status"` // allowed or denied
	IPAddress string    `json:"ip_address"`
	UserID    int64     `json:"user_id,omitempty"` // in the history of an account
	KeyID     string    `json:"key_id,omitempty"`  // in the history of a user or an account

	Costs  map[string]int64 `json:"costs,omitempty"`  // by meter, when they are not one request
	Reason string           `json:"reason,omitempty"` // of a denial or an adjustment

	Kind string `json:"kind,omitempty"` // adjust; absent for a request
	adjustment
}

// adjustment is the JSON form of an adjustment. It has a delta, or set and period.
type adjustment struct {
	Meter  string       `json:"meter,omitempty"`
	Delta  *int64       `json:"delta,omitempty"`
	Set    *int64       `json:"set,omitempty"`
	Period *core.Period `json:"period,omitempty"`
}

type requests struct {
	Requests []request `json:"requests"`
	Count    int       `json:"count"`
	Complete *bool     `json:"complete,omitempty"` // in the history of the account
	Cursor   string    `json:"cursor,omitempty"`   // in the history of the account: the place behind the last entry, if there are more
}

func viewKeyRequest(e core.Entry) request {
	status := core.Allowed
	if e.Denied {
		status = core.Denied
	}
	v := request{Timestamp: e.At, Endpoint: e.Endpoint, Method: e.Method, Status: string(status), IPAddress: e.IP, Reason: string(e.Reason)}
	switch a := e.Adjustment; {
	case a == nil:
		v.Costs = viewCosts(&e)
		return v
	case a.Set:
		v.adjustment = adjustment{Meter: a.Meter, Set: &a.Value, Period: &a.Period}
	default:
		v.adjustment = adjustment{Meter: a.Meter, Delta: &a.Value}
	}
	v.Kind, v.Reason = "adjust", e.Adjustment.Reason
	return v
}

// viewCosts returns the costs of an entry by meter, nil for one request.
func viewCosts(e *core.Entry) map[string]int64 {
	if e.Cost == 1 && len(e.Costs) == 0 {
		return nil
	}
	costs := map[string]int64{core.MeterRequests: e.Cost}
	for _, m := range e.Costs {
		costs[m.Meter] = m.Cost
	}
	return costs
}

func viewUserRequest(e core.Entry) request {
	v := viewKeyRequest(e)
	v.KeyID = e.KeyID
	return v
}

func viewAccountRequest(e core.Entry) request {
	v := viewUserRequest(e)
	v.UserID = e.UserID
	return v
}

// history answers with the page of the query.
func history[K any](of func(func(*call, K) error) handler,
	entries func(*core.Service, context.Context, string, K, core.Page) ([]core.Entry, int, error), view func(core.Entry) request) handler {
	return of(func(c *call, id K) error {
		list, total, err := pageOf(c, func(p core.Page) ([]core.Entry, int, error) { return entries(c.svc, c.ctx(), c.account, id, p) })
		if err != nil {
			return err
		}
		v := requests{Count: total}
		v.Requests, _ = viewEach(view)(list)
		return c.write(http.StatusOK, single{v})
	})
}

// accountRequests answers with the matching entries of all keys.
func accountRequests(c *call) error {
	q := c.query()
	f := core.HistoryFilter{
		Status: q.oneOf("status", string(core.Allowed), string(core.Denied)), Reason: q.reason(), KeyID: q.id("key_id", "key"),
		Endpoint: q.text("endpoint"), From: q.time("from"), To: q.time("to"),
	}
	if q.values.Has("user_id") {
		f.UserID = q.whole("user_id", 0)
	}
	p := q.page()
	if !f.From.IsZero() && !f.To.IsZero() && !f.From.Before(f.To) {
		q.wrong("to", "Must be after from")
	}
	if text := q.text("cursor"); text != "" {
		var err error
		if f.After, err = core.ParseHistoryCursor(text); err != nil {
			q.wrong("cursor", "Must be the cursor of an earlier answer")
		}
		if q.values.Has("page") {
			q.wrong("page", "Must not be given with a cursor")
		}
	}
	if p.Offset() >= core.MaxFound {
		q.wrong("page", "Only the newest 10000 entries have pages: go on with the cursor of the last page")
	}
	if q.err != nil {
		return q.err
	}
	h, err := c.svc.AccountHistory(c.ctx(), c.account, f, p)
	if err != nil {
		return err
	}
	v := requests{Count: h.Found, Complete: &h.Complete}
	v.Requests, _ = viewEach(viewAccountRequest)(h.Entries)
	if h.Next != nil {
		v.Cursor = h.Next.String()
	}
	return c.write(http.StatusOK, single{v})
}

func (q *query) reason() core.Reason {
	var words []string
	for _, r := range core.Reasons() {
		words = append(words, string(r))
	}
	return core.Reason(q.oneOf("reason", words...))
}
