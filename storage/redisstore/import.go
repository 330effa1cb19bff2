package redisstore

import (
	"context"
	"strconv"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// SetHistory implements [core.Importer].
func (s *Store) SetHistory(ctx context.Context, id core.CounterID, entries []core.Entry, retention time.Duration) error {
	return s.importHistory(ctx, id, entries, retention, "1")
}

// AppendHistory implements [core.Importer].
func (s *Store) AppendHistory(ctx context.Context, id core.CounterID, entries []core.Entry, retention time.Duration) error {
	return s.importHistory(ctx, id, entries, retention, "0")
}

// importHistory appends entries to a history. If replace is "1" it removes the entries before.
func (s *Store) importHistory(ctx context.Context, id core.CounterID, entries []core.Entry, retention time.Duration, replace string) error {
	locs, err := s.locations(ctx, []core.CounterID{id})
	if err != nil {
		return err
	}
	at := locs[0]
	args := []string{at.field, replace, strconv.Itoa(s.HistoryCap())}
	for i := range entries {
		e := &entries[i]
		args = append(args, string(encodeEntry(nil, markFor(e), e, retention)))
	}
	return s.setAt(ctx, id, at, importHistoryScript, []string{at.slot.counters(), at.slot.history(at.field)}, args)
}

// SetCounters implements [core.Importer].
func (s *Store) SetCounters(ctx context.Context, ids []core.CounterID, counters []core.Counter) error {
	locs, err := s.locations(ctx, ids)
	if err != nil {
		return err
	}
	return parallel(len(ids), func(i int) error {
		at, c := locs[i], &counters[i]
		return s.setAt(ctx, ids[i], at, setCounterScript, []string{at.slot.counters()},
			[]string{at.field, encodeCounter(c, 0), encodeMeters(c), strconv.FormatInt(max(0, c.At/day), 10), strconv.FormatInt(c.LastRefused, 10)})
	})
}

// setAt runs a script on an existing counter. It creates a missing counter and retries.
func (s *Store) setAt(ctx context.Context, id core.CounterID, at location, c *script, keys, args []string) error {
	switch {
	case at.field == "" && id.KeyID == "":
		return core.ErrUserNotFound
	case at.field == "":
		return core.ErrKeyNotFound
	}
	for range maxAttempts {
		done, err := c.run(ctx, s.writes, keys, args).AsBool()
		if done || err != nil {
			return unavailable(err)
		}
		if err := s.ensureCounter(ctx, id, at); err != nil {
			return err
		}
	}
	return core.ErrKeyNotFound
}

var (
	_ core.LiveStore     = (*Store)(nil)
	_ core.CappedHistory = (*Store)(nil)
	_ core.LossyStore    = (*Store)(nil)
)
