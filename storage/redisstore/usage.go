package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
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
	outcomeOverOwnRate
	outcomeExpired // an open hold has expired
	outcomeTooEarly
	outcomeOverConcurrency
	outcomeOverOwnConcurrency
	outcomeTooManyHolds
	outcomeLaterCounter // several limits have no room, at the later time of a counter
)

// unreachable is a limit that no usage reaches: a power of two, which a Lua number represents exactly.
const unreachable = 1 << 54

// Flags in a request to consume.lua.
const (
	flagShared  = 1 << iota
	flagWait    // write even if the request is repeated, so that WAIT covers the first write
	flagRate    // the request takes a token from the bucket of the deciding counter
	flagLook    // the request costs nothing
	flagOwnRate // the request takes a token from the bucket for the own rate of its key
	flagHold    // the request opens a hold
)

// maxAttempts is how often a request is tried that finds no counters.
const maxAttempts = 4

// Consume implements [core.Store]. A request without answer in time is [core.ErrUnavailable]. It may be
// counted, even later, when the server continues.
func (s *Store) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	flags := byte(0)
	if s.wait.Load().Replicas > 0 {
		flags |= flagWait
	}
	if c.Hold != nil {
		return s.consumeHold(ctx, c, flags|flagHold)
	}
	return s.consumeAgain(ctx, c, flags)
}

// consumeHold is Consume for a request that opens a hold.
func (s *Store) consumeHold(ctx context.Context, c *core.Consumption, flags byte) (core.ConsumeResult, error) {
	if err := s.reserveHold(ctx, c); err != nil {
		return core.ConsumeResult{}, err
	}
	v, err := s.consumeAgain(ctx, c, flags)
	if v.HoldID != c.Hold.ID && !errors.Is(err, core.ErrUnavailable) { // otherwise it may have been opened
		s.dropReservation(ctx, c.Account, c.Hold.ID)
	}
	return v, err
}

// consumeAgain runs consume.lua until its outcome is an answer.
func (s *Store) consumeAgain(ctx context.Context, c *core.Consumption, flags byte) (core.ConsumeResult, error) {
	missing, at := 0, decidedAt{c.Entry.At, c.Entry.At, false}
	for range maxAttempts + core.MaxOpenHolds {
		answer, err := s.consume(ctx, c, flags, at)
		if err != nil {
			return core.ConsumeResult{}, err
		}
		switch answer[0] {
		default:
			return decodeReply(c, answer)
		case outcomeTooManyHolds:
			return core.ConsumeResult{}, core.ErrTooManyHolds
		case outcomeExpired:
			err = s.endExpired(ctx, c, fmt.Sprintf("hold_%d_%s", c.UserID, answer[len(answer)-randomSize:]))
		case outcomeTooEarly:
			r := record.NewReader(answer[1:])
			c = c.WithSecond(int64(r.Uint(5)))
			at = decidedAt{c.Entry.At, c.Entry.At, false}
		case outcomeLaterCounter:
			r := record.NewReader(answer[1:])
			at.deciding, _, at.key, at.settled = time.Unix(int64(r.Uint(5)), 0), r.Uint(7), time.Unix(int64(r.Uint(5)), 0), true
		case outcomeNotFound:
			if missing++; missing == maxAttempts {
				return core.ConsumeResult{}, core.ErrKeyNotFound
			}
			err = s.ensureCounter(ctx, core.CounterID{Account: c.Account, KeyID: c.KeyID, UserID: c.UserID}, s.locationOf(c))
		}
		if err != nil {
			return core.ConsumeResult{}, err
		}
	}
	return core.ConsumeResult{}, core.Unavailable(errors.New("redis: the holds of the counter keep expiring"))
}

// decidedAt has the times whose windows decide: of the deciding counter, and of the counter of the key. Until they are settled, a counter may be
// later than the request.
type decidedAt struct {
	deciding, key time.Time
	settled       bool
}

// appendOrder appends whether the times are settled, and the index of each limit of a request: that which resets last first, as
// [core.Consumption.Result] chooses the deciding limit. Without further limits it appends nothing.
func (at *decidedAt) appendOrder(b []byte, c *core.Consumption) []byte {
	n := c.Limits()
	if n == 1 {
		return b
	}
	ends := make([]time.Time, n)
	for i := range ends {
		t := at.deciding
		if c.OriginAt(i) == core.OfKey {
			t = at.key
		}
		ends[i] = c.Anchors.Window(c.LimitAt(i).Period, t).End
	}
	settled := byte(0)
	if at.settled {
		settled = 1
	}
	b = append(b, settled)
	begin := len(b)
	for i := range n {
		b = append(b, byte(i))
	}
	slices.SortStableFunc(b[begin:], func(i, j byte) int {
		if x, y := ends[i], ends[j]; x.IsZero() || y.IsZero() {
			return cmp.Compare(x.Unix(), y.Unix()) // a window without an end has the lowest Unix time
		}
		return ends[j].Compare(ends[i])
	})
	return b
}

// consume runs consume.lua, and returns its reply.
func (s *Store) consume(ctx context.Context, c *core.Consumption, flags byte, at decidedAt) ([]byte, error) {
	n, field := s.o.usage(c.Account, c.UserID), fieldOf(c.KeySeq)
	ids := field
	if c.KeyID == "" {
		field = userField
		ids = userField + digestOfID(c.RequestID) // a user has no hash of request ids, so each id has a hash of its own
	}
	packed, entry := s.packRequest(c, flags, at)
	keys, args := []string{n.counters(), n.history(userField), n.history(field)}, []string{packed, field, entry}
	script := consumeScript
	if c.Hold != nil || c.Adjustment != nil || c.Cost != 1 || len(c.Costs) > 0 {
		script = consumeMoreScript
	}
	switch {
	case c.RequestID != "" && c.Refused == "":
		keys = append(keys, n.requestIDs(ids), n.earlierRequestIDs(ids))
		args = append(args, digestOfID(c.RequestID), string(encodeTerms(c)))
	case c.Hold != nil:
		keys = append(keys, n.requestIDs(ids), n.earlierRequestIDs(ids)) // not used
		args = append(args, "", "")
	}
	if c.Hold != nil {
		keys, args = append(keys, n.hold(randomPart(c.Hold.ID))), append(args, encodeHold(c.OpenHold()), holdLife(c.Entry.At, c.Hold.ExpiresAt))
	}
	if script == consumeMoreScript {
		keys = append(keys, n.dayKeys(field)...)
	}
	answer, err := script.run(ctx, s.writes, keys, args).AsBytes()
	return answer, unavailable(err)
}

// packRequest returns the first argument of consume.lua, and the history entry.
func (s *Store) packRequest(c *core.Consumption, flags byte, decided decidedAt) (request, entry string) {
	if c.Shared {
		flags |= flagShared
	}
	if !c.Counts() && c.Adjustment == nil {
		flags |= flagLook
	}
	decides := c.Adjustment == nil && c.Refused == ""
	if decides && c.Rate != nil {
		flags |= flagRate
	}
	if decides && c.Own.Rate != nil {
		flags |= flagOwnRate
	}
	at := c.Entry.At
	var buf [256]byte
	b := append(buf[:0], flags, periodOf(c, 0))
	b = appendMax(b, c.Limit)
	b = record.AppendUint(b, 4, uint64(c.Cost))
	starts := c.Anchors.Since(at)
	b = record.AppendUint(b, 5, uint64(max(0, slices.Max(starts[:]))))
	b = record.AppendUint(b, 3, uint64(max(0, core.DateOf(at))))
	b = record.AppendUint(b, 4, uint64(s.HistoryCap()))
	b = append(b, byte(len(c.Costs)), byte(len(c.Further)), byte(len(c.Own.Limits)), byte(len(c.Later)))
	for _, start := range starts[:core.Lifetime] {
		b = record.AppendUint(b, 5, uint64(max(0, start)))
	}
	for _, m := range c.Costs {
		b = appendMeter(record.AppendUint(b, 7, uint64(m.Cost)), m.Meter)
	}
	for _, meter := range c.Later {
		b = appendMeter(b, meter)
	}
	for i := 1; i < c.Limits(); i++ {
		l := c.LimitAt(i)
		b = appendMeter(append(appendMax(b, l.Max), periodOf(c, i)), l.Meter)
	}
	b = decided.appendOrder(b, c)
	if flags&flagHold != 0 {
		b = record.AppendUint(record.AppendUint(b, 2, uint64(c.Concurrency)), 2, uint64(c.Own.Concurrency))
		b = record.AppendUint(b, 6, uint64(max(0, c.RequestedAt().UnixMilli())))
		b = append(record.AppendUint(b, 6, uint64(c.Hold.ExpiresAt.UnixMilli())), randomPart(c.Hold.ID)...)
	}
	if flags&flagRate != 0 {
		b = appendRate(b, c.Rate)
	}
	if flags&flagOwnRate != 0 {
		b = appendRate(b, c.Own.Rate)
	}
	mark := markAllowed // the script changes it for a denial
	switch {
	case c.Adjustment != nil:
		mark = markAdjustment
		b = appendAdjustment(b, c)
	case c.Refused != "":
		mark = markOf(c.Refused)
	}
	n := len(b)
	e := c.Entry
	e.Adjustment, e.RequestID = c.Adjustment, core.ShownRequestID(c.RequestID)
	both := string(encodeEntry(b, mark, &e, c.Retention))
	return both[:n], both[n:]
}

// appendMax appends the maximum of a limit.
func appendMax(b []byte, limit int64) []byte {
	return record.AppendUint(b, 7, uint64(min(max(0, limit), unreachable)))
}

// periodOf returns the limitCode of the limit at an index, plus 128 for a limit that denies nothing.
func periodOf(c *core.Consumption, i int) byte {
	l := c.LimitAt(i)
	p := limitCode(l.Period, c.OriginAt(i))
	if l.OnExceed == core.AllowExceed {
		p += 128
	}
	return p
}

// appendRate appends the units that a bucket gets back in a millisecond, and its capacity.
func appendRate(b []byte, r *core.Rate) []byte {
	return record.AppendUint(record.AppendUint(b, 4, uint64(r.PerMillisecond())), 6, uint64(r.Capacity()))
}

// appendAdjustment appends an adjustment: 1 for set plus 2 for OwnOnly, period from 1, sign, the value without its sign, and the meter.
func appendAdjustment(b []byte, c *core.Consumption) []byte {
	a := c.Adjustment
	set, sign, value := byte(0), byte(1), a.Value
	if a.Set {
		set = 1
	}
	if c.OwnOnly {
		set += 2
	}
	if value < 0 {
		sign, value = 0xff, -value
	}
	return appendMeter(record.AppendUint(append(b, set, byte(a.Period)+1, sign), 7, uint64(value)), a.Meter)
}

// hourOf returns the first full hour after a time, in hours since 1970.
func hourOf(t time.Time) uint64 { return uint64(max(0, t.Unix()/3600+1)) }

// ensureCounter creates the counter at a location, and that of its user, if the key or user is still there.
func (s *Store) ensureCounter(ctx context.Context, id core.CounterID, at location) error {
	if err := s.verify(ctx, s.slotOf(at.slot.counters())); err != nil { // refuse to create a counter at 0 in place of a lost one
		return err
	}
	now, err := s.locations(ctx, []core.CounterID{id, {Account: id.Account, UserID: at.user}})
	switch {
	case err != nil:
		return err
	case now[0].field == "" && id.KeyID != "":
		return core.ErrKeyNotFound
	case now[1].field == "":
		return core.ErrUserNotFound
	case now[0].slot != at.slot || now[0].field != at.field: // the caller has an old version of the key
		return fmt.Errorf("key %s of user %d has changed: %w", id.KeyID, at.user, core.ErrKeyNotFound)
	case id.KeyID == "":
		return s.createCounters(ctx, at.slot, "", "")
	}
	return s.createCounters(ctx, at.slot, at.field, encodeCounter(&core.Counter{}, now[0].moves))
}

// createCounters creates the counter of a user, and of a key unless field is empty. It skips existing
// counters.
func (s *Store) createCounters(ctx context.Context, n keySlot, field, counter string) error {
	return unavailable(createCountersScript.run(ctx, s.writes, []string{n.counters(), n.tombstone(userField), n.tombstone(field)},
		[]string{encodeCounter(&core.Counter{}, 0), field, counter}).Error())
}

// Counters implements [core.Store].
func (s *Store) Counters(ctx context.Context, ids []core.CounterID) ([]core.Counter, error) {
	return readLocated(ctx, s, ids, reading[core.Counter]{s.readCounter, func(at location, r rueidis.RedisResult) (core.Counter, bool, error) {
		return decodeCounterReply(at, r)
	}})
}

// PlanUsed implements [core.Store].
func (s *Store) PlanUsed(ctx context.Context, account, plan string, p core.Period, at time.Time) (used int64, err error) {
	read := func(ctx context.Context, ids []core.CounterID) ([]int64, error) {
		return readLocated(ctx, s, ids, reading[int64]{s.readCounter, func(loc location, r rueidis.RedisResult) (int64, bool, error) {
			c, here, err := decodeCounterReply(loc, r)
			return c.Usage(core.MeterRequests, p, nil, at).Used, here, err
		}})
	}
	err = scan(ctx, s, core.DaysFilter{Account: account, PlanID: plan}, read, func(_ core.CounterID, n int64) {
		used = core.AddSaturating(used, n)
	})
	if err != nil {
		return 0, err
	}
	return used, nil
}

// readCounter is the command of a [reading] of counters.
func (s *Store) readCounter(at location, _ bool) rueidis.Completed {
	return s.client.B().Hmget().Key(at.slot.counters()).Field(at.field, metersField(at.field), keylessField(at.field)).Build()
}

// decodeCounterReply decodes the answer to readCounter.
func decodeCounterReply(at location, r rueidis.RedisResult) (c core.Counter, here bool, err error) {
	parts, err := r.ToArray()
	if err != nil {
		return c, false, unavailable(err)
	}
	b, exists := text(parts[0])
	if !exists {
		return c, false, nil
	}
	meters, _ := text(parts[1])
	denials, _ := text(parts[2])
	c, err = decodeWithMeters(at.field, b, meters, denials)
	return c, err == nil && !isMoving(b), err
}
