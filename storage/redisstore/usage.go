package redisstore

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// What consume.lua answers.
const (
	denied = iota
	allowed
	repeated
	notHere
)

// verdictSize is how long an answer is, without terms.
const verdictSize = 1 + 7 + 3

// Flags of a request for consume.lua.
const (
	flagShared = 1 << iota
	flagWait   // for replicas, also for the first answer
)

// admissions is how often a request is tried whose key or user is not where it counts.
const admissions = 4

// Consume implements [core.Store]. A request that was not answered in time is
// [core.ErrUnavailable] and may be counted, now or once the server goes on.
func (s *Store) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	if err := s.begin(); err != nil {
		return core.ConsumeResult{}, err
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
			return core.ConsumeResult{}, err
		}
	}
	return core.ConsumeResult{}, core.ErrKeyNotFound
}

// consume is Consume, where both the key and the user are known to the slot of the user.
func (s *Store) consume(c *core.Consumption, flags byte) (v core.ConsumeResult, here bool, err error) {
	k := s.counting(c)
	packed, entry := s.packed(c, flags)
	keys, args := []string{k.counters, k.ofUser, k.ofKey}, []string{packed, k.field, entry}
	if c.RequestID != "" {
		n := s.o.usage(c.Account, c.UserID)
		keys = append(keys, n.requests(k.field), n.requests2(k.field))
		args = append(args, digestOfID(c.RequestID), string(encodeTerms(&c.Terms)), c.RequestID)
	}
	answer, err := consumeScript.write(s.calls.next(), s, keys, args).AsBytes()
	if err != nil {
		return core.ConsumeResult{}, false, unavailable(err)
	}
	return verdict(c, answer)
}

// packed returns what the script must know of a request, see consume.lua, and its entry.
func (s *Store) packed(c *core.Consumption, flags byte) (request, entry string) {
	if c.Shared {
		flags |= flagShared
	}
	at := c.Entry.At
	var room [256]byte
	b := append(room[:0], flags, byte(c.Period)+1)
	b = record.AppendUint(b, 7, uint64(max(0, c.Limit)))
	b = record.AppendUint(b, 4, uint64(c.Cost))
	b = append(b, s.today.starts(at)...)
	b = record.AppendUint(b, 4, uint64(s.HistoryCap()))
	n := len(b)
	b = append(b, 0) // not denied
	b = record.AppendUint(b, 5, uint64(max(0, at.Unix())))
	b = record.AppendUint(b, 4, uint64(at.Nanosecond()))
	b = record.AppendUint(b, 4, hourOf(at.Add(c.Retention)))
	both := string(encodeEntry(b, &c.Entry))
	return both[:n], both[n:]
}

// hourOf returns the number of the hour in which a time is, and then of the next.
func hourOf(t time.Time) uint64 { return uint64(max(0, t.Unix()/3600+1)) }

// verdict returns what the script has answered.
func verdict(c *core.Consumption, answer []byte) (v core.ConsumeResult, here bool, err error) {
	r := record.NewReader(answer)
	became, used, start := r.Uint(1), int64(r.Uint(7)), int64(r.Uint(3))*day
	switch {
	case r.Failed():
		return v, false, record.ErrDamaged
	case became == notHere:
		return v, false, nil
	}
	v.Allowed = became != denied
	v.Usage = core.Usage{Window: windowOf(c, start), Used: used}
	if became == repeated {
		terms, err := decodeTerms(string(answer[verdictSize:]))
		if err != nil {
			return core.ConsumeResult{}, true, err
		}
		v.FirstTerms = &terms
		v.Usage.Window = terms.Period.Window(time.Unix(start, 0))
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
	at := s.o.usage(account, user)
	if err := s.verify(ctx, s.slotOf(at.counters())); err != nil { // a counter that was lost must not begin at 0
		return err
	}
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
	return s.makeCounters(ctx, at, field, encodeCounter(&core.Counter{}, k.Moves))
}

// makeCounters makes the counter of a user, and that of a key if a field is given.
func (s *Store) makeCounters(ctx context.Context, n names, field, counter string) error {
	ctx, cancel := s.within(ctx)
	defer cancel()
	return unavailable(admitScript.write(ctx, s, []string{n.counters(), n.mark(userField), n.mark(field)},
		[]string{encodeCounter(&core.Counter{}, 0), field, counter}).Error())
}

// Counters implements [core.Store].
func (s *Store) Counters(ctx context.Context, ids []core.CounterID) ([]core.Counter, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.end()
	return atPlaces(ctx, s, ids, func(places []place) ([]core.Counter, []int, error) { return s.counters(ctx, places) })
}

// PlanTotals implements [core.Store].
func (s *Store) PlanTotals(ctx context.Context, account, plan string, p core.Period, at time.Time, n int) (d core.PlanTotals, err error) {
	if err := s.begin(); err != nil {
		return core.PlanTotals{}, err
	}
	defer s.end()
	var mu sync.Mutex // guards d
	part := func(ctx context.Context, ids []core.CounterID) error {
		list, err := atPlaces(ctx, s, ids, func(places []place) (some []core.CounterUsage, missing []int, err error) {
			counters, missing, err := s.counters(ctx, places)
			for i := range counters {
				some = append(some, core.CounterUsage{Seq: places[i].seq(), Usage: counters[i].Usage(p, at)})
			}
			return some, missing, err
		})
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for i, u := range list {
			d.Add(n, ids[i], u.Seq, u.Usage)
		}
		return nil
	}
	of := s.o.account(account)
	if err = s.eachPart(ctx, of.keys(core.KeyFilter{PlanID: &plan}), keyOf(account), part); err == nil {
		err = s.eachPart(ctx, of.users(core.UserFilter{PlanID: plan}), userOf(account), part)
	}
	if err != nil {
		return core.PlanTotals{}, err
	}
	return d, nil
}

// counters returns the counters at some places, and at which of them there is none that is
// there to stay.
func (s *Store) counters(ctx context.Context, places []place) (list []core.Counter, missing []int, err error) {
	list = make([]core.Counter, len(places))
	which := placed(places)
	cmds := make([]rueidis.Completed, len(which))
	for i, at := range which {
		cmds[i] = s.client.B().Hget().Key(places[at].names.counters()).Field(places[at].field).Build()
	}
	for i, r := range s.doMany(ctx, cmds) {
		if err := unavailable(r.Error()); err != nil {
			return nil, nil, err
		}
		at := which[i]
		b, err := r.ToString()
		if err != nil {
			missing = append(missing, at)
			continue
		}
		if list[at], err = decodeCounter(b); err != nil {
			return nil, nil, err
		}
		if leaves(b) {
			missing = append(missing, at)
		}
	}
	return list, missing, nil
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
