package memstore

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// History implements [core.Store].
func (s *Store) History(_ context.Context, of core.CounterID, since time.Time, p core.Page) (list []core.Entry, total int, err error) {
	err = s.locked(func() error {
		for _, e := range slices.Backward(s.usage(of).history) {
			if !e.At.After(since) {
				continue
			}
			if total++; total > p.Offset() && len(list) < p.Size {
				list = append(list, copyOfEntry(e))
			}
		}
		return nil
	})
	return list, total, err
}

// NewestEntries implements [core.HistoryIndex].
func (s *Store) NewestEntries(_ context.Context, ids []core.CounterID) (newest []time.Time, err error) {
	newest = make([]time.Time, len(ids))
	err = s.locked(func() error {
		for i, id := range ids {
			for _, e := range s.usage(id).history {
				if e.At.After(newest[i]) {
					newest[i] = e.At
				}
			}
		}
		return nil
	})
	return newest, err
}

// CountFrom implements [core.HistoryIndex].
func (s *Store) CountFrom(_ context.Context, of core.CounterID, since, from time.Time) (n int, err error) {
	err = s.locked(func() error {
		for _, e := range slices.Backward(s.usage(of).history) {
			if e.At.Before(from) || !e.At.After(since) {
				break
			}
			n++
		}
		return nil
	})
	return n, err
}

var _ core.HistoryIndex = (*Store)(nil)

// appendEntry appends the entry of a request with its result to the histories of its key and user.
func (s *Store) appendEntry(c *core.Consumption, v *core.ConsumeResult) {
	e := c.Recorded(v)
	for _, text := range []*string{&e.Endpoint, &e.Method, &e.IP, &e.RequestID} {
		*text = strings.Clone(*text) // it may be a part of a long body
	}
	e.At = normalTime(e.At)
	if c.KeyID != "" {
		s.usage(core.CounterID{Account: c.Account, KeyID: c.KeyID}).addEntry(e)
	}
	s.usage(core.CounterID{Account: c.Account, UserID: c.UserID}).addEntry(e)
}

// addEntry appends an entry to the history.
func (u *usage) addEntry(e core.Entry) {
	e.Late = 0
	if n := len(u.history); n > 0 {
		e.Late = max(0, u.history[n-1].LatestSoFar().Sub(e.At))
	}
	u.history = append(u.history, copyOfEntry(e))
}

// copyOfEntry returns a deep copy.
func copyOfEntry(e core.Entry) core.Entry {
	e.Costs = slices.Clone(e.Costs)
	if e.Limit != nil {
		e.Limit = new(*e.Limit)
	}
	if e.Adjustment != nil {
		e.Adjustment = new(*e.Adjustment)
	}
	if e.Settlement != nil {
		e.Settlement = new(*e.Settlement)
		e.Settlement.HeldAt, e.Settlement.Costs = normalTime(e.Settlement.HeldAt), slices.Clone(e.Settlement.Costs)
	}
	return e
}
