package adminapi

import (
	"context"
	"net/http"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// viewRequest returns the JSON form of a history entry, with the ids that the history does not have in its path.
func viewRequest(e core.Entry, ids object) object {
	status := service.Allowed
	if e.Denied {
		status = service.Denied
	}
	o := object{{"timestamp", e.At}, {"endpoint", e.Endpoint}, {"method", e.Method}, {"status", string(status)}, {"ip_address", e.IP}}
	o = append(o, ids...)
	if a := e.Adjustment; a != nil {
		o = append(o, field{"reason", a.Reason}, field{"kind", "adjust"}, field{"meter", a.Meter})
		if a.Set {
			o = append(o, field{"set", a.Value}, field{"period", a.Period})
		} else {
			o = append(o, field{"delta", a.Value})
		}
		return append(o, some("request_id", e.RequestID)...)
	}
	if st := e.Settlement; st != nil {
		o = append(o, field{"kind", kindsOfEnd[st.Status]}, field{"hold_id", st.HoldID}, field{"held", viewCosts(st.Cost, st.Costs)})
	}
	if e.Cost != 1 || len(e.Costs) > 0 || e.Settlement != nil { // not just one request
		o = append(o, field{"costs", viewCosts(e.Cost, e.Costs)})
	}
	o = append(o, some("hold_id", e.HoldID)...)
	o = append(o, some("reason", e.Reason)...)
	if l := e.Limit; l != nil {
		o = append(o, field{"limit", object{{"of", string(l.Of)}, {"meter", l.Meter}, {"period", l.Period.String()}, {"max", l.Max}, {"used", l.Used}}})
	}
	return append(o, some("request_id", e.RequestID)...)
}

// kindsOfEnd are the kinds of entries that end a hold.
var kindsOfEnd = map[core.HoldStatus]string{core.HoldSettled: "settle", core.HoldReleased: "release", core.HoldExpired: "release"}

func viewKeyRequest(e core.Entry) object { return viewRequest(e, nil) }

func viewUserRequest(e core.Entry) object { return viewRequest(e, some("key_id", e.KeyID)) }

func viewAccountRequest(e core.Entry) object {
	return viewRequest(e, append(some("user_id", e.UserID), some("key_id", e.KeyID)...))
}

// history answers with the page of the query.
func history[K any](of func(func(*call, K) error) handler,
	entries func(*service.Service, context.Context, string, K, core.Page) ([]core.Entry, int, error), view func(core.Entry) object) handler {
	return of(func(c *call, id K) error {
		list, total, err := pageOf(c.query(), func(p core.Page) ([]core.Entry, int, error) { return entries(c.svc, c.ctx(), c.account, id, p) })
		if err != nil {
			return err
		}
		return c.writeData(http.StatusOK, object{{"requests", viewEach(view, list)}, {"count", total}})
	})
}

// historyFilter returns the filters of the history of an account.
func (c *call) historyFilter(q *query) service.HistoryFilter {
	f := service.HistoryFilter{
		Status: q.oneOf("status", string(service.Allowed), string(service.Denied)), Reason: q.reason(), KeyID: q.id("key_id", "key"),
		Endpoint: q.text("endpoint"), From: q.time("from"), To: q.time("to"), UserID: q.whole("user_id", 0),
		Meter: q.text("meter"), Method: q.text("method"), IP: q.text("ip_address"), RequestID: q.text("request_id"),
	}
	if !f.From.IsZero() && !f.To.IsZero() && !f.From.Before(f.To) {
		q.wrong("to", "Must be after from")
	}
	if q.err == nil {
		q.err = c.svc.CheckMeter(c.ctx(), c.account, f.Meter)
	}
	return f
}

// accountRequests answers with the matching entries of all keys: with a page, or with all as a stream.
func accountRequests(c *call) error {
	if kind := c.streamType(); kind != typeJSON {
		return streamRequests(c, kind)
	}
	q := c.query()
	f, p := c.historyFilter(q), q.page()
	if text := q.text("cursor"); text != "" {
		var err error
		if f.After, err = service.ParseHistoryCursor(text); err != nil {
			q.wrong("cursor", "Must be the cursor of an earlier answer")
		}
		if q.values.Has("page") {
			q.wrong("page", "Must not be given with a cursor")
		}
	}
	if p.Offset() >= service.MaxFound {
		q.wrong("page", "Only the newest 10000 entries have pages: go on with the cursor of the last page")
	}
	if q.err != nil {
		return q.err
	}
	h, err := c.svc.AccountHistory(c.ctx(), c.account, f, p)
	if err != nil {
		return err
	}
	v := object{{"requests", viewEach(viewAccountRequest, h.Entries)}, {"count", h.Found}, {"complete", h.Complete}}
	if !h.SearchedTo.IsZero() {
		v = append(v, field{"searched_to", h.SearchedTo})
	}
	if h.Next != nil {
		v = append(v, field{"cursor", h.Next.String()}) // the place behind the last entry
	}
	c.w.Header().Set("Vary", "Accept")
	return c.writeData(http.StatusOK, v)
}

func (q *query) reason() core.Reason {
	var words []string
	for _, r := range core.Reasons() {
		words = append(words, string(r))
	}
	return core.Reason(q.oneOf("reason", words...))
}
