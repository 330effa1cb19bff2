package redisstore

import (
	"context"
	"strconv"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// History implements [core.Store]. It holds the newest entries, see [Options.History].
func (s *Store) History(ctx context.Context, of core.CounterID, since time.Time, p core.Page) (entries []core.Entry, total int, err error) {
	if err := s.begin(); err != nil {
		return nil, 0, err
	}
	defer s.end()
	_, err = atPlaces(ctx, s, []core.CounterID{of}, func(places []place) (_ []struct{}, missing []int, err error) {
		if of.KeyID != "" { // it may have moved meanwhile
			missing = []int{0}
		}
		entries, total, err = s.historyAt(ctx, places[0], since, p)
		return nil, missing, err
	})
	if err != nil {
		return nil, 0, err
	}
	return entries, total, nil
}

// historyAt returns a page of the history at a place.
func (s *Store) historyAt(ctx context.Context, at place, since time.Time, p core.Page) ([]core.Entry, int, error) {
	if at.field == "" {
		return nil, 0, nil
	}
	calls, cancel := s.within(ctx)
	defer cancel()
	seconds, nanoseconds := max(0, since.Unix()), 0
	if since.Unix() >= 0 {
		nanoseconds = since.Nanosecond()
	}
	all, err := historyScript.read(calls, s, []string{at.names.counters(), at.names.history(at.field)}, []string{
		strconv.FormatInt(seconds, 10), strconv.Itoa(nanoseconds), strconv.Itoa(p.Offset()), strconv.Itoa(p.Size), lateness(at.field)}).ToArray()
	if err != nil {
		return nil, 0, unavailable(err)
	}
	entries := make([]core.Entry, 0, len(all)-1)
	for _, m := range all[1:] {
		e, err := decodeEntry(textOf(m))
		if err != nil {
			return nil, 0, err
		}
		entries = append(entries, e)
	}
	return entries, int(number(all[0])), nil
}
