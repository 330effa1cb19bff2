package dashboard

import (
	"context"
	"fmt"

	"github.com/limitkeeper/limitkeeper/core"
)

// historyView is a page of the history of a key or user, newest request first. The first page
// refreshes itself.
type historyView struct {
	Rows  []historyRow
	Pager pager
	Keys  bool   // show the key of each request, in the history of a user
	Live  string // URL of the refresh, "" for no refresh
	state string // version of the rows, in Live
}

type historyRow struct {
	core.Entry
	Key *core.Key // nil if the key was deleted or is not shown
}

// userHistory returns the history of a user, with the keys.
func (q *request) userHistory(id int64) (*historyView, error) {
	h, err := newHistory(q, q.svc.UserHistory, id)
	if err != nil {
		return nil, err
	}
	h.Keys = true
	key := cachedLookup(q, q.svc.Key)
	for i := range h.Rows {
		if h.Rows[i].Key, err = key(h.Rows[i].KeyID); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// newHistory returns the requested page of the history that list reads.
func newHistory[ID any](q *request, list func(context.Context, string, ID, core.Page) ([]core.Entry, int, error), id ID) (*historyView, error) {
	entries, pg, err := listed(q, func(p core.Page) ([]core.Entry, int, error) { return list(q.r.Context(), q.account(), id, p) })
	if err != nil {
		return nil, err
	}
	h := &historyView{Pager: pg.at("history")}
	for _, e := range entries {
		h.Rows = append(h.Rows, historyRow{Entry: e})
	}
	if pg.Number == 1 {
		h.state = fmt.Sprint(pg.Total)
		if pg.Total > 0 {
			h.state += fmt.Sprint("-", entries[0].At.UnixMilli())
		}
		h.Live = q.with("part", "history") + "&seen=" + h.state
	}
	return h, nil
}

// renderHistory answers to a refresh: with the rows, or with 204 if they have not changed. It returns err.
func (q *request) renderHistory(page string, h *historyView, err error) error {
	if err != nil {
		return err
	}
	if h.Live != "" && q.r.URL.Query().Get("seen") == h.state {
		return q.unchanged()
	}
	return q.renderPart(page, "history-rows", h)
}
