package redisstore

import (
	"context"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// AppendHistory implements [core.Importer].
func (s *Store) AppendHistory(ctx context.Context, account string, entries []core.Entry, retention time.Duration) error {
	if len(entries) == 0 {
		return nil
	}
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	user := entries[0].UserID
	keys, err := s.keySeqs(ctx, account, entries)
	if err != nil {
		return err
	}
	for range maxAttempts {
		done, err := s.appendEntries(ctx, account, user, entries, keys, retention)
		if done || err != nil {
			return err
		}
		for id, seq := range keys {
			if err := s.ensureCounters(ctx, account, id, seq, user); err != nil {
				return err
			}
		}
	}
	return core.ErrKeyNotFound
}

// keySeqs returns the Seq of each key in the entries.
func (s *Store) keySeqs(ctx context.Context, account string, entries []core.Entry) (map[string]int64, error) {
	keys := map[string]int64{}
	for i := range entries {
		id := entries[i].KeyID
		if _, known := keys[id]; known {
			continue
		}
		k, err := fetch[keyRecord](ctx, s, s.o.account(account).apiKey(id), core.ErrKeyNotFound)
		if err != nil {
			return nil, err
		}
		keys[id] = k.Seq
	}
	return keys, nil
}

// appendEntries appends entries. It returns false, and appends nothing, if a counter does not exist.
func (s *Store) appendEntries(ctx context.Context, account string, user int64, entries []core.Entry, seqs map[string]int64, retention time.Duration) (bool, error) {
	n := s.o.usage(account, user)
	keys := []string{n.counters(), n.history(userField)}
	args := []string{strconv.Itoa(s.HistoryCap())}
	numbers := map[string]int{}
	for id, seq := range seqs {
		keys, args = append(keys, n.history(fieldOf(seq))), append(args, fieldOf(seq))
		numbers[id] = len(numbers) + 1
	}
	for i := range entries {
		e := &entries[i]
		b := record.AppendUint(nil, 2, uint64(numbers[e.KeyID]))
		if e.Denied {
			b = append(b, 1)
		} else {
			b = append(b, 0)
		}
		b = record.AppendUint(b, 5, uint64(max(0, e.At.Unix())))
		b = record.AppendUint(b, 4, uint64(e.At.Nanosecond()))
		b = record.AppendUint(b, 4, hourOf(e.At.Add(retention)))
		args = append(args, string(encodeEntry(b, e)))
	}
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	done, err := appendHistoryScript.write(ctx, s, keys, args).AsBool()
	return done, unavailable(err)
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
	return s.setAt(ctx, id, at, setCounterScript, []string{at.slot.counters()}, []string{at.field, encodeCounter(c, 0)})
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
		if _, err := fetch[core.User](ctx, s, s.o.account(id.Account).user(id.UserID), core.ErrUserNotFound); err != nil {
			return err
		}
		return s.createCounters(ctx, at.slot, "", "")
	}
	k, err := fetch[keyRecord](ctx, s, s.o.account(id.Account).apiKey(id.KeyID), core.ErrKeyNotFound)
	if err != nil {
		return err
	}
	return s.ensureCounters(ctx, id.Account, id.KeyID, k.Seq, k.UserID)
}

var (
	_ core.Importer      = (*Store)(nil)
	_ core.CappedHistory = (*Store)(nil)
)
