package adminapi

import (
	"net/http"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// viewMatch returns the JSON form of a match. last are the times of the last requests of its key.
func viewMatch(m *service.Match, last service.LastRequests) object {
	o := object{{"matched_by", m.By}, {"user", nil}, {"key", nil}, {"plan", nil}}
	if m.User != nil {
		o[1].value = viewUser(m.User)
	}
	if m.Key != nil {
		o[2].value = viewKey(m.Key, "", last)
	}
	if m.Plan != nil {
		o[3].value = viewPlan(m.Plan)
	}
	return o
}

// searchByQuery searches for the text in the query. It refuses the value of a key.
func searchByQuery(c *call) error {
	q := c.query()
	limit := q.page().Size
	if q.err != nil {
		return q.err
	}
	secret, err := c.svc.SearchHoldsSecret(c.ctx(), c.account, q.text("q"))
	if err != nil {
		return err
	}
	if secret {
		return core.Invalid("q", "The value of a key does not belong in a URL, because servers log URLs: send the value in the body of POST /search, as {\"q\": \"…\"}")
	}
	return c.search(q.text("q"), limit)
}

// searchByBody searches for the text in the body, which may be the value of a key.
func searchByBody(c *call) error {
	type search struct {
		text  string
		limit int
	}
	s, err := decode(c, func(m *members) search {
		s := search{core.OrZero(m.Text("q")), service.DefaultPageSize}
		if n := m.Whole("limit"); n != nil {
			if *n < 1 {
				m.Wrong("limit", "Must be a whole number of 1 or more")
			}
			s.limit = int(min(*n, service.MaxPageSize))
		}
		return s
	})
	if err != nil {
		return err
	}
	return c.search(s.text, s.limit)
}

// search answers with the users, keys and plans that a text identifies.
func (c *call) search(text string, limit int) error {
	r, err := c.svc.Search(c.ctx(), c.account, text, limit)
	if err != nil {
		return err
	}
	var keys []*core.Key
	for _, m := range r.Matches {
		if m.Key != nil {
			keys = append(keys, m.Key)
		}
	}
	times, err := c.svc.LastRequests(c.ctx(), c.account, keys)
	if err != nil {
		return err
	}
	views := make([]object, len(r.Matches))
	for i := range r.Matches {
		var last service.LastRequests
		if r.Matches[i].Key != nil {
			last, times = times[0], times[1:]
		}
		views[i] = viewMatch(&r.Matches[i], last)
	}
	return c.write(http.StatusOK, object{{"data", views}, {"complete", r.Complete}, {"names_read", r.NamesRead}})
}
