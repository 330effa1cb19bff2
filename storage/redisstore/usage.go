package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// Outcomes in the reply of consume.lua.
const (
	outcomeDenied = iota
	outcomeAllowed
	outcomeRepeated
	outcomeNotFound
	outcomeOverRate
)

// unreachable is a limit that no usage reaches: a power of two, which a Lua number represents exactly.
const unreachable = 1 << 54

// Flags in a request to consume.lua.
const (
	flagShared = 1 << iota
	flagWait   // write even if the request is repeated, so that WAIT covers the first write
	flagRate   // the request takes a token
)

// maxAttempts is how often a request is tried that finds no counters.
const maxAttempts = 4

// Consume implements [core.Store]. A request without answer in time is [core.ErrUnavailable]. It may be
// counted, even later, when the server continues.
func (s *Store) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	if err := s.begin(); err != nil {
		return core.ConsumeResult{}, err
	}
	defer s.end()
	flags := byte(0)
	if s.settings.Load().wait.Replicas > 0 {
		flags |= flagWait
	}
	for range maxAttempts {
		v, here, err := s.consume(c, flags)
		if here || err != nil {
			return v, err
		}
		if err := s.ensureCounters(ctx, c.Account, c.KeyID, c.KeySeq, c.UserID); err != nil {
			return core.ConsumeResult{}, err
		}
	}
	return core.ConsumeResult{}, core.ErrKeyNotFound
}

// consume runs consume.lua. here is false if the key or the user has no counter in the slot of the user.
func (s *Store) consume(c *core.Consumption, flags byte) (v core.ConsumeResult, here bool, err error) {
	n, field := s.o.usage(c.Account, c.UserID), fieldOf(c.KeySeq)
	ids := field
	if c.KeyID == "" {
		field = userField
		ids = userField + digestOfID(c.RequestID) // a user has no hash of request ids, so each id has a hash of its own
	}
	packed, entry := s.packRequest(c, flags)
	keys, args := []string{n.counters(), n.history(userField), n.history(field)}, []string{packed, field, entry}
	if c.RequestID != "" {
		keys = append(keys, n.requestIDs(ids), n.earlierRequestIDs(ids))
		args = append(args, digestOfID(c.RequestID), string(encodeTerms(c)))
	}
	answer, err := consumeScript.write(s.deadlines.next(), s, keys, args).AsBytes()
	if err != nil {
		return core.ConsumeResult{}, false, unavailable(err)
	}
	return decodeReply(c, answer)
}

// packRequest returns the first argument of consume.lua, and the history entry.
func (s *Store) packRequest(c *core.Consumption, flags byte) (request, entry string) {
	if c.Shared {
		flags |= flagShared
	}
	rated := c.Rate != nil && c.Adjustment == nil && c.Refused == ""
	if rated {
		flags |= flagRate
	}
	at := c.Entry.At
	var buf [256]byte
	b := append(buf[:0], flags, byte(c.Period)+1)
	b = appendLimit(b, c.Limit)
	b = record.AppendUint(b, 4, uint64(c.Cost))
	since := c.Anchors.Since(at)
	for _, start := range since[:core.Lifetime] {
		b = record.AppendUint(b, 5, uint64(max(0, start)))
	}
	b = record.AppendUint(b, 3, uint64(max(0, core.DateOf(at))))
	b = record.AppendUint(b, 4, uint64(s.HistoryCap()))
	b = append(b, byte(len(c.Costs)), byte(len(c.Further)))
	for _, m := range c.Costs {
		b = appendMeter(record.AppendUint(b, 4, uint64(m.Cost)), m.Meter)
	}
	for _, l := range c.Further {
		b = appendMeter(append(appendLimit(b, l.Max), byte(l.Period)+1), l.Meter)
	}
	mark := markAllowed // the script changes it for a denial
	switch {
	case rated:
		b = record.AppendUint(record.AppendUint(b, 4, uint64(c.Rate.PerMillisecond())), 6, uint64(c.Rate.Capacity()))
	case c.Adjustment != nil:
		mark = markAdjustment
		b = appendAdjustment(b, c.Adjustment)
	case c.Refused != "":
		mark = markOf(c.Refused)
	}
	n := len(b)
	b = append(b, mark)
	b = record.AppendUint(b, 5, uint64(max(0, at.Unix())))
	b = record.AppendUint(b, 4, uint64(at.Nanosecond()))
	b = record.AppendUint(b, 4, hourOf(at.Add(c.Retention)))
	e := c.Entry
	e.Adjustment = c.Adjustment
	both := string(encodeEntry(b, &e))
	return both[:n], both[n:]
}

// appendLimit appends a limit.
func appendLimit(b []byte, limit int64) []byte {
	return record.AppendUint(b, 7, uint64(min(max(0, limit), unreachable)))
}

// appendAdjustment appends an adjustment: set, period from 1, sign, the value without its sign, and the meter.
func appendAdjustment(b []byte, a *core.Adjustment) []byte {
	set, sign, value := byte(0), byte(1), a.Value
	if a.Set {
		set = 1
	}
	if value < 0 {
		sign, value = 0xff, -value
	}
	return appendMeter(record.AppendUint(append(b, set, byte(a.Period)+1, sign), 7, uint64(value)), a.Meter)
}

// hourOf returns the first full hour after a time, in hours since 1970.
func hourOf(t time.Time) uint64 { return uint64(max(0, t.Unix()/3600+1)) }

// decodeReply decodes the reply of consume.lua.
func decodeReply(c *core.Consumption, answer []byte) (v core.ConsumeResult, here bool, err error) {
	r := record.NewReader(answer)
	switch r.Uint(1) {
	case outcomeNotFound:
		return v, false, nil
	case outcomeRepeated:
		if c.Adjustment != nil { // no limit has decided
			return core.ConsumeResult{Allowed: true, FirstTerms: &core.Terms{}}, true, nil
		}
		v, err := decodeRepeated(r)
		return v, true, err
	case outcomeAllowed:
		v = decodeResult(c, r, "")
	case outcomeOverRate:
		v = decodeResult(c, r, core.ReasonRate)
		v.RetryAfter = time.Duration(r.Uint(5)) * time.Millisecond
	default:
		v = decodeResult(c, r, cmp.Or(c.Refused, core.ReasonQuota))
	}
	if r.Failed() {
		return core.ConsumeResult{}, true, record.ErrDamaged
	}
	return v, true, nil
}

// decodeResult decodes the second that the windows contain, and the usage under each limit.
func decodeResult(c *core.Consumption, r *record.Reader, reason core.Reason) core.ConsumeResult {
	at := time.Unix(int64(r.Uint(5)), 0)
	var few [4]int64
	used := few[:0]
	for range 1 + len(c.Further) {
		used = append(used, int64(r.Uint(7)))
	}
	if c.Adjustment != nil {
		return core.ConsumeResult{Allowed: true}
	}
	return c.Result(reason, at, used)
}

// decodeRepeated decodes a stored first answer.
func decodeRepeated(r *record.Reader) (v core.ConsumeResult, err error) {
	first := core.Consumption{Cost: 1}
	decodeTerms(r, &first)
	v = decodeResult(&first, r, "")
	v.FirstTerms = &first.Terms
	if r.Failed() {
		err = record.ErrDamaged
	}
	return v, err
}

// ensureCounters creates the counters of a key and its user if both exist. Otherwise it returns which does
// not. Without a key it creates the counter of the user.
func (s *Store) ensureCounters(ctx context.Context, account, keyID string, seq, user int64) error {
	at := s.o.usage(account, user)
	if err := s.verify(ctx, s.slotOf(at.counters())); err != nil { // refuse to create a counter at 0 in place of a lost one
		return err
	}
	if keyID == "" {
		return s.ensureCounter(ctx, core.CounterID{Account: account, UserID: user}, location{slot: at})
	}
	n := s.o.account(account)
	answers, err := s.readDrained(ctx, account, func(b *batch) {
		b.add("HGET", n.key("locations"), keyID)
		b.add("EXISTS", n.user(user))
	})
	if err != nil {
		return err
	}
	stored, ok := text(answers[0])
	switch {
	case !ok:
		return core.ErrKeyNotFound
	case number(answers[1]) == 0:
		return core.ErrUserNotFound
	}
	now, err := s.decodeLocation(account, stored)
	switch {
	case err != nil:
		return err
	case now.slot != at || now.field != fieldOf(seq): // the caller has an old version of the key
		return fmt.Errorf("key %s of user %d has changed: %w", keyID, user, core.ErrKeyNotFound)
	}
	return s.createCounters(ctx, at, now.field, encodeCounter(&core.Counter{}, now.moves))
}

// createCounters creates the counter of a user, and of a key unless field is empty. It skips existing
// counters.
func (s *Store) createCounters(ctx context.Context, n keySlot, field, counter string) error {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	return unavailable(createCountersScript.write(ctx, s, []string{n.counters(), n.tombstone(userField), n.tombstone(field)},
		[]string{encodeCounter(&core.Counter{}, 0), field, counter}).Error())
}

// Counters implements [core.Store].
func (s *Store) Counters(ctx context.Context, ids []core.CounterID) ([]core.Counter, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.end()
	return readLocated(ctx, s, ids, func(locs []location) ([]core.Counter, []int, error) { return s.counters(ctx, locs) })
}

// PlanTotals implements [core.Store].
func (s *Store) PlanTotals(ctx context.Context, account, plan string, p core.Period, at time.Time, n int) (d core.PlanTotals, err error) {
	if err := s.begin(); err != nil {
		return core.PlanTotals{}, err
	}
	defer s.end()
	var mu sync.Mutex // guards d
	part := func(ctx context.Context, ids []core.CounterID) error {
		list, err := readLocated(ctx, s, ids, func(locs []location) (usages []core.CounterUsage, missing []int, err error) {
			counters, missing, err := s.counters(ctx, locs)
			for i := range counters {
				usages = append(usages, core.CounterUsage{Seq: locs[i].seq(), Usage: counters[i].Usage(core.MeterRequests, p, nil, at)})
			}
			return usages, missing, err
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
	if err = s.scanIndex(ctx, of.keys(core.KeyFilter{PlanID: &plan}), keyCounterID(account), part); err == nil {
		err = s.scanIndex(ctx, of.users(core.UserFilter{PlanID: plan}), userCounterID(account), part)
	}
	if err != nil {
		return core.PlanTotals{}, err
	}
	return d, nil
}

// counters reads the counters at the locations. missing are the indexes of counters that do not exist or
// are about to move.
func (s *Store) counters(ctx context.Context, locs []location) (list []core.Counter, missing []int, err error) {
	list = make([]core.Counter, len(locs))
	which := existing(locs)
	cmds := make([]rueidis.Completed, len(which))
	for i, at := range which {
		field := locs[at].field
		cmds[i] = s.client.B().Hmget().Key(locs[at].slot.counters()).Field(field, metersField(field)).Build()
	}
	for i, r := range s.doMany(ctx, cmds) {
		parts, err := r.ToArray()
		if err != nil {
			return nil, nil, unavailable(err)
		}
		at := which[i]
		b, here := text(parts[0])
		if !here {
			missing = append(missing, at)
			continue
		}
		meters, _ := text(parts[1])
		if list[at], err = decodeWithMeters(b, meters); err != nil {
			return nil, nil, err
		}
		if isMoving(b) {
			missing = append(missing, at)
		}
	}
	return list, missing, nil
}

// doMany sends read commands, each to its master.
func (s *Store) doMany(ctx context.Context, cmds []rueidis.Completed) []rueidis.RedisResult {
	if len(cmds) == 0 {
		return nil
	}
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	for _, cmd := range cmds {
		if why := s.nodes.ofSlot(cmd.Slot()).away.Load(); why != nil {
			return []rueidis.RedisResult{rueidis.NewErrorResult(*why)}
		}
	}
	began := time.Now()
	results := s.client.DoMulti(ctx, cmds...)
	s.observe(began, results[0].NonRedisError())
	return results
}
