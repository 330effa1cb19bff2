package redisstore

import (
	"context"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
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
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	locs, err := s.locations(ctx, []core.CounterID{id})
	if err != nil {
		return err
	}
	at := locs[0]
	args := []string{at.field, replace, strconv.Itoa(s.HistoryCap())}
	for i := range entries {
		e := &entries[i]
		b := []byte{markAllowed}
		switch {
		case e.Adjustment != nil:
			b[0] = markAdjustment
		case e.Denied:
			b[0] = markOf(e.Reason)
		}
		b = record.AppendUint(b, 5, uint64(max(0, e.At.Unix())))
		b = record.AppendUint(b, 4, uint64(e.At.Nanosecond()))
		b = record.AppendUint(b, 4, hourOf(e.At.Add(retention)))
		args = append(args, string(encodeEntry(b, e)))
	}
	return s.setAt(ctx, id, at, importHistoryScript, []string{at.slot.counters(), at.slot.history(at.field)}, args)
}

// SetCounters implements [core.Importer].
func (s *Store) SetCounters(ctx context.Context, ids []core.CounterID, counters []core.Counter) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	locs, err := s.locations(ctx, ids)
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(maxParallel)
	for i := range ids {
		g.Go(func() error { return s.setCounter(ctx, ids[i], locs[i], &counters[i]) })
	}
	return g.Wait()
}

func (s *Store) setCounter(ctx context.Context, id core.CounterID, at location, c *core.Counter) error {
	return s.setAt(ctx, id, at, setCounterScript, []string{at.slot.counters()},
		[]string{at.field, encodeCounter(c, 0), encodeMeters(c), strconv.FormatInt(max(0, c.At/day), 10)})
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
		calls, cancel := s.withTimeout(ctx)
		done, err := c.write(calls, s, keys, args).AsBool()
		cancel()
		if done || err != nil {
			return unavailable(err)
		}
		if err := s.ensureCounter(ctx, id, at); err != nil {
			return err
		}
	}
	return core.ErrKeyNotFound
}

// ensureCounter creates a counter if its key or user exists. Otherwise it returns which does not.
func (s *Store) ensureCounter(ctx context.Context, id core.CounterID, at location) error {
	if id.KeyID == "" {
		if _, err := s.User(ctx, id.Account, id.UserID); err != nil {
			return err
		}
		return s.createCounters(ctx, at.slot, "", "")
	}
	k, err := s.Key(ctx, id.Account, id.KeyID)
	if err != nil {
		return err
	}
	return s.ensureCounters(ctx, id.Account, id.KeyID, k.Seq, k.UserID)
}

var (
	_ core.LiveStore     = (*Store)(nil)
	_ core.CappedHistory = (*Store)(nil)
	_ core.LossyStore    = (*Store)(nil)
)
