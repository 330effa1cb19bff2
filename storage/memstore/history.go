package memstore

import (
	"context"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// History implements [core.Store].
func (s *Store) History(_ context.Context, of core.CounterID, since time.Time, p core.Page) (list []core.Entry, total int, err error) {
	err = s.locked(func() error {
		var newest []core.Entry
		entries := s.histories[canonical(of)]
		for i := len(entries) - 1; i >= 0; i-- {
			if entries[i].At.After(since) {
				newest = append(newest, entries[i])
			}
		}
		list, total = page(newest, p, func(e core.Entry) core.Entry { return e }), len(newest)
		return nil
	})
	return list, total, err
}

// appendEntry appends the entry of a request to the histories of its key and user. The reason is "" unless it is denied.
func (s *Store) appendEntry(c *core.Consumption, reason core.Reason) {
	e := c.Entry
	e.At, e.Denied, e.Reason, e.Adjustment = normalTime(e.At), reason != "", reason, c.Adjustment
	for _, of := range []core.CounterID{
		{Account: c.Account, KeyID: c.KeyID},
		{Account: c.Account, UserID: c.UserID},
	} {
		if of.KeyID == "" && of.UserID == 0 {
			continue
		}
		s.histories[of] = append(s.histories[of], e)
	}
}
