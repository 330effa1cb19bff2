package dashboard

import (
	"context"
	"fmt"

	"github.com/limitkeeper/limitkeeper/core"
)

// historyView is the history of a key or user, the newest request first. Its first page is
// live.
type historyView struct {
	Rows  []historyRow
	Pager pager
	Keys  bool   // the keys are shown, as it is that of a user
	Live  string // where it is asked for again, "" when it is not live
	state string // what Live says was seen
}

// historyRow is a request in a history.
type historyRow struct {
	core.Entry
	Key *core.Key // nil when it was deleted, or is not shown
}

// keyHistory returns the history of a key.
func (q *request) keyHistory(id string) (*historyView, error) {
	return newHistory(q, q.svc.KeyHistory, id)
}

// userHistory returns the history of a user.
func (q *request) userHistory(id int64) (*historyView, error) {
	h, err := newHistory(q, q.svc.UserHistory, id)
	if err != nil {
		return nil, err
	}
	h.Keys = true
	return h, q.nameKeys(h.Rows)
}

// newHistory returns the page that is asked for of what list returns.
func newHistory[ID any](q *request, list func(context.Context, string, ID, core.Page) ([]core.Entry, int, error), id ID) (*historyView, error) {
	p := q.page()
	entries, total, err := list(q.r.Context(), q.account(), id, p)
	if err != nil {
		return nil, err
	}
	h := &historyView{Pager: q.pager(p, len(entries), total, p.Offset()+len(entries) < total).at("history")}
	for _, e := range entries {
		h.Rows = append(h.Rows, historyRow{Entry: e})
	}
	if p.Number == 1 {
		h.state = fmt.Sprint(total)
		if total > 0 {
			h.state += fmt.Sprint("-", entries[0].At.UnixMilli())
		}
		h.Live = q.with("part", "history") + "&seen=" + h.state
	}
	return h, nil
}

// nameKeys finds the keys of the requests.
func (q *request) nameKeys(rows []historyRow) (err error) {
	key := cachedLookup(q, q.svc.Key)
	for i := range rows {
		if rows[i].Key, err = key(rows[i].KeyID); err != nil {
			return err
		}
	}
	return nil
}

// renderHistory answers with the rows of a history alone, and with nothing when the browser
// has seen them.
func (q *request) renderHistory(page string, h *historyView) error {
	if h.Live != "" && q.r.URL.Query().Get("seen") == h.state {
		return q.unchanged()
	}
	return q.renderPart(page, "history-rows", h)
}
