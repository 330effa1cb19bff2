package redisstore

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// What consume.lua answers.
const (
	notHere = iota - 1
	denied
	allowed
	repeated
)

// Flags of a request for consume.lua.
const (
	flagShared = 1 << iota
	flagWait   // for replicas, also for the first answer
)

// admissions is how often a request is tried whose key or user is not where it counts.
const admissions = 4

// Consume implements [core.Store]. A request that was not answered in time is
// [core.ErrUnavailable] and may be counted, now or once the server goes on.
func (s *Store) Consume(ctx context.Context, c *core.Consumption) (core.Verdict, error) {
	if err := s.begin(); err != nil {
		return core.Verdict{}, err
	}
	defer s.end()
	flags := byte(0)
	if s.tuned.Load().wait.Replicas > 0 {
		flags |= flagWait
	}
	for range admissions {
		v, here, err := s.consume(c, flags)
		if here || err != nil {
			return v, err
		}
		if err := s.admit(ctx, c.Account, c.KeyID, c.KeySeq, c.UserID); err != nil {
			return core.Verdict{}, err
		}
	}
	return core.Verdict{}, core.ErrKeyNotFound
}

// consume is Consume, where both the key and the user are known to the slot of the user.
func (s *Store) consume(c *core.Consumption, flags byte) (v core.Verdict, here bool, err error) {
	n, field := s.o.usage(c.Account, c.UserID), fieldOf(c.KeySeq)
	keys := []string{n.counters(), n.history(userField), n.history(field)}
	args := []string{s.packed(c, flags), field, string(encodeEntry(nil, &c.Entry))}
	if c.RequestID != "" {
		keys = append(keys, n.requests(field), n.requests2(field))
		args = append(args, c.RequestID, string(encodeTerms(&c.Terms)))
	}
	all, err := consumeScript.write(s.calls.next(), s, keys, args).ToArray()
	if err != nil {
		return core.Verdict{}, false, unavailable(err)
	}
	return verdict(c, all)
}

// packed returns what the script must know of a request, see consume.lua.
func (s *Store) packed(c *core.Consumption, flags byte) string {
	if c.Shared {
		flags |= flagShared
	}
	at := c.Entry.At
	b := make([]byte, 0, 48)
	b = append(b, flags, byte(c.Period)+1)
	b = record.AppendUint(b, 7, uint64(max(0, c.Limit)))
	b = record.AppendUint(b, 4, uint64(c.Cost))
	for _, p := range core.Periods() {
		b = record.AppendUint(b, 3, uint64(p.Window(at).Start.Unix()/day))
	}
	b = record.AppendUint(b, 5, uint64(max(0, at.Unix())))
	b = record.AppendUint(b, 4, uint64(at.Nanosecond()))
	b = record.AppendUint(b, 4, hourOf(at.Add(c.Retention)))
	return string(record.AppendUint(b, 4, uint64(s.HistoryCap())))
}

// hourOf returns the number of the hour in which a time is, and then of the next.
func hourOf(t time.Time) uint64 { return uint64(max(0, t.Unix()/3600+1)) }

// verdict returns what the script has answered.
func verdict(c *core.Consumption, all []rueidis.RedisMessage) (v core.Verdict, here bool, err error) {
	became := number(all[0])
	if became == notHere {
		return v, false, nil
	}
	v.Allowed = became != denied
	v.Usage = core.Usage{Window: windowOf(c, number(all[2])*day), Used: number(all[1])}
	if became == repeated {
		terms, err := decodeTerms(textOf(all[3]))
		if err != nil {
			return core.Verdict{}, true, err
		}
		v.First = &terms
		v.Usage.Window = terms.Period.Window(time.Unix(number(all[2])*day, 0))
	}
	return v, true, nil
}

// windowOf returns the window of the request's period that begins at a time in Unix
// seconds: nearly always the one that the request is in.
func windowOf(c *core.Consumption, start int64) core.Window {
	if w := c.Period.Window(c.Entry.At); w.Start.Unix() == start {
		return w
	}
	return c.Period.Window(time.Unix(start, 0))
}

// admit makes the counters of a key and its user that are to be, or says which of them
// does not exist.
func (s *Store) admit(ctx context.Context, account, keyID string, seq, user int64) error {
	n := s.o.account(account)
	answers, err := s.lookSettled(ctx, account, func(b *batch) {
		b.add("GET", n.apiKey(keyID))
		b.add("EXISTS", n.user(user))
	})
	if err != nil {
		return err
	}
	r, ok := text(answers[0])
	if !ok {
		return core.ErrKeyNotFound
	}
	k, err := record.Decode[keyRecord]([]byte(r))
	switch {
	case err != nil:
		return err
	case number(answers[1]) == 0:
		return core.ErrUserNotFound
	case k.Seq != seq, k.UserID != user: // another one now: whoever asks reads it again
		return fmt.Errorf("key %s of user %d is not what it was: %w", keyID, user, core.ErrKeyNotFound)
	}
	field := fieldOf(seq)
	return s.makeCounters(ctx, s.o.usage(account, user), field, encodeCounter(&core.Counter{}, k.Moves))
}

// makeCounters makes the counter of a user, and that of a key if a field is given.
func (s *Store) makeCounters(ctx context.Context, n names, field, counter string) error {
	ctx, cancel := s.within(ctx)
	defer cancel()
	return unavailable(admitScript.write(ctx, s, []string{n.counters(), n.mark(userField), n.mark(field)},
		[]string{encodeCounter(&core.Counter{}, 0), field, counter}).Error())
}

// place is where the counter of a key or user is.
type place struct {
	names names
	field string
}

// Counters implements [core.Store].
func (s *Store) Counters(ctx context.Context, ids []core.CounterID) ([]core.Counter, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.end()
	places, err := s.places(ctx, ids)
	if err != nil {
		return nil, err
	}
	list := make([]core.Counter, len(ids))
	cmds := make([]rueidis.Completed, 0, len(ids))
	at := make([]int, 0, len(ids))
	for i, p := range places {
		if p.field != "" {
			cmds = append(cmds, s.client.B().Hget().Key(p.names.counters()).Field(p.field).Build())
			at = append(at, i)
		}
	}
	for i, r := range s.doMany(ctx, cmds) {
		if err := unavailable(r.Error()); err != nil {
			return nil, err
		}
		if b, err := r.ToString(); err == nil {
			if list[at[i]], err = decodeCounter(b); err != nil {
				return nil, err
			}
		}
	}
	return list, nil
}

// places returns where counters are; the zero place for keys that do not exist.
func (s *Store) places(ctx context.Context, ids []core.CounterID) ([]place, error) {
	places := make([]place, len(ids))
	byAccount := map[string][]int{}
	for i, id := range ids {
		if id.KeyID == "" {
			places[i] = place{s.o.usage(id.Account, id.UserID), userField}
		} else {
			byAccount[id.Account] = append(byAccount[id.Account], i)
		}
	}
	for account, which := range byAccount {
		n := s.o.account(account)
		answers, err := s.lookSettled(ctx, account, func(b *batch) {
			for _, i := range which {
				b.add("GET", n.apiKey(ids[i].KeyID))
			}
		})
		if err != nil {
			return nil, err
		}
		for j, i := range which {
			r, ok := text(answers[j])
			if !ok {
				continue
			}
			k, err := record.Decode[keyRecord]([]byte(r))
			if err != nil {
				return nil, err
			}
			places[i] = place{s.o.usage(account, k.UserID), fieldOf(k.Seq)}
		}
	}
	return places, nil
}

// doMany sends commands that read, each to where it belongs.
func (s *Store) doMany(ctx context.Context, cmds []rueidis.Completed) []rueidis.RedisResult {
	if len(cmds) == 0 {
		return nil
	}
	ctx, cancel := s.within(ctx)
	defer cancel()
	for _, cmd := range cmds {
		if why := s.nodes.of(cmd.Slot()).away.Load(); why != nil {
			return []rueidis.RedisResult{rueidis.NewErrorResult(*why)}
		}
	}
	return s.client.DoMulti(ctx, cmds...)
}
