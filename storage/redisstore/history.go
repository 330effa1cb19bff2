package redisstore

import (
	"context"
	"strconv"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// History implements [core.Store]. It holds the newest entries, see [Options.History].
func (s *Store) History(ctx context.Context, of core.CounterID, since time.Time, p core.Page) ([]core.Entry, int, error) {
	if err := s.begin(); err != nil {
		return nil, 0, err
	}
	defer s.end()
	places, err := s.places(ctx, []core.CounterID{of})
	if err != nil || places[0].field == "" {
		return nil, 0, err
	}
	at := places[0]
	calls, cancel := s.within(ctx)
	defer cancel()
	seconds, nanoseconds := max(0, since.Unix()), 0
	if since.Unix() >= 0 {
		nanoseconds = since.Nanosecond()
	}
	all, err := historyScript.read(calls, s, []string{at.names.history(at.field)}, []string{
		strconv.FormatInt(seconds, 10), strconv.Itoa(nanoseconds), strconv.Itoa(p.Offset()), strconv.Itoa(p.Size)}).ToArray()
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
