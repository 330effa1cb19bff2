package redisstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// A hold is a record in the slot of its user. Each counter that has counted an open hold lists the hold: see scripts/holds.lua. A sorted set in
// the slot of the account has the ids of all open holds by their ends. It bounds the open holds of the account, and ExpireHolds reads it.

// Outcomes of settle.lua.
const (
	settled = iota
	settleNotOpen
	settleExpired
	settleTooEarly
	settleNotFound
)

// Flags in a settlement for settle.lua.
const (
	settleShared   = 1 << iota // the counter of the user has counted the hold
	settleExpires              // the hold ends because it has expired
	settleWaits                // see flagWait
	settleKeeps                // the held costs stay counted
	settleReleased             // the hold gives back all its costs
)

// The statuses of a hold, by the first byte of its record.
var holdStatuses = []core.HoldStatus{core.HoldOpen, core.HoldSettled, core.HoldReleased, core.HoldExpired}

// hold returns the name of the record of a hold, from the random part of its id. holds returns the name of the sorted set of the holds of an account.
func (n keySlot) hold(random string) string { return string(n) + "w:" + random }
func (n keySlot) holds() string             { return string(n) + "holds" }

// openField returns the name of the field with the open holds of a counter. See scripts/holds.lua.
func openField(field string) string { return "o" + field }

// randomPart returns the random part of the id of a hold, which has 24 bytes: see [core.NewHoldID].
func randomPart(id string) string { return id[strings.LastIndexByte(id, '_')+1:] }

// randomSize is the size of the random part in the scripts.
const randomSize = 24

// encodeHold returns the record of a hold without its id.
func encodeHold(h *core.Hold) string {
	return string(record.Append(nil, func(c *record.Codec) { codeHold(c, h) }))
}

// decodeHold decodes the record of the hold with an id. The error is record.ErrDamaged.
func decodeHold(id, b string) (*core.Hold, error) {
	c, h := record.Decoder([]byte(b)), &core.Hold{ID: id}
	if codeHold(&c, h); c.Failed() || !c.Ended() {
		return nil, record.ErrDamaged
	}
	return h, nil
}

// codeHold codes the record of a hold: its members in the order of the calls. The scripts read the first 7 bytes only, the status and the end in
// milliseconds. The flags are 1 for Shared plus 2 for ReleaseHeld.
func codeHold(c *record.Codec, h *core.Hold) {
	ends := uint64(h.ExpiresAt.UnixMilli())
	record.Index(c, &h.Status, holdStatuses)
	if c.Fixed(6, &ends); c.Decodes() {
		h.ExpiresAt = time.UnixMilli(int64(ends)).UTC()
	}
	flags := byte(0)
	if h.Shared {
		flags |= 1
	}
	if h.OnExpiry == core.ReleaseHeld {
		flags |= 2
	}
	if c.Byte(&flags); c.Decodes() {
		h.Shared, h.OnExpiry = flags&1 != 0, core.OnExpiry(flags&2 != 0)
	}
	record.Number(c, &h.UserID)
	c.Text(&h.KeyID)
	record.Number(c, &h.KeySeq)
	c.Time(&h.At)
	record.Number(c, &h.Cost)
	c.Costs(&h.Costs)
	c.Text(&h.Method)
	c.Text(&h.Path)
	c.Time(&h.PricedAt)
	c.Time(&h.ClosedAt)
	record.Number(c, &h.Settled)
	c.Costs(&h.SettledCosts)
}

// holdLife returns the lifetime of the record of a hold from a time on, in milliseconds. After its end, a hold is remembered as long as a
// request id. A day is added, because the clock of a node may be wrong.
func holdLife(from, ends time.Time) string {
	life := max(0, ends.Sub(from)) + core.RequestIDRetention + 24*time.Hour
	return strconv.FormatInt(life.Milliseconds(), 10)
}

// reserveHold adds the hold of a request to the holds of the account. It returns ErrTooManyHolds if the account has too many open holds.
func (s *Store) reserveHold(ctx context.Context, c *core.Consumption) error {
	ok, err := reserveHoldScript.run(ctx, s.writes, []string{s.o.account(c.Account).holds()}, []string{c.Hold.ID, millis(c.Hold.ExpiresAt),
		millis(c.Entry.At), strconv.Itoa(core.MaxAccountHolds)}).AsBool()
	if err == nil && !ok {
		return core.ErrTooManyHolds
	}
	return unavailable(err)
}

// dropReservation removes the id of a hold from the holds of an account. It ignores errors: ExpireHolds removes the id after the end of the hold.
func (s *Store) dropReservation(ctx context.Context, account, id string) {
	_ = s.do(ctx, s.client.B().Zrem().Key(s.o.account(account).holds()).Member(id).Build()).Error()
}

func millis(t time.Time) string { return strconv.FormatInt(t.UnixMilli(), 10) }

// Hold implements [core.Store].
func (s *Store) Hold(ctx context.Context, account, id string) (*core.Hold, error) {
	user, ok := core.HoldUser(id)
	if !ok || len(randomPart(id)) != randomSize {
		return nil, core.ErrHoldNotFound
	}
	text, err := s.do(ctx, s.client.B().Get().Key(s.o.usage(account, user).hold(randomPart(id))).Build()).ToString()
	if rueidis.IsRedisNil(err) {
		return nil, core.ErrHoldNotFound
	}
	if err != nil {
		return nil, unavailable(err)
	}
	return decodeHold(id, text)
}

// Settle implements [core.Store].
func (s *Store) Settle(ctx context.Context, c *core.Consumption) (h *core.Hold, repeated bool, err error) {
	for range maxAttempts {
		h, err := s.Hold(ctx, c.Account, c.Settlement.HoldID)
		if err != nil {
			return nil, false, err
		}
		outcome, dated, err := s.settle(ctx, c, h, 0)
		switch {
		case err != nil:
			return nil, false, err
		case outcome == settled:
			s.dropReservation(ctx, c.Account, h.ID)
			after := h.Close(dated)
			after.SettledCosts = slices.Clone(after.SettledCosts)
			return after, false, nil
		case outcome == settleExpired:
			return nil, false, cmp.Or(s.endExpired(ctx, dated, h.ID), error(core.ErrHoldExpired))
		case outcome == settleNotFound:
			if err := s.ensureCounter(ctx, core.CounterID{Account: c.Account, KeyID: c.KeyID, UserID: c.UserID}, s.locationOf(c)); err != nil {
				return nil, false, err
			}
		case h.Status == core.HoldExpired:
			return nil, false, core.ErrHoldExpired
		case h.Status != core.HoldOpen:
			return h, true, nil
		}
	}
	return nil, false, core.Unavailable(errors.New("redis: the hold, or the slot of its user, has changed during each attempt to settle it"))
}

// settle runs settle.lua on a hold. dated is the settlement with the time that the script has used: it is not before the counters.
func (s *Store) settle(ctx context.Context, c *core.Consumption, h *core.Hold, flags byte) (outcome int64, dated *core.Consumption, err error) {
	if c.Shared {
		flags |= settleShared
	}
	if s.wait.Load().Replicas > 0 {
		flags |= settleWaits
	}
	if c.Settlement.Status != core.HoldSettled {
		flags |= settleReleased
	}
	for range maxAttempts {
		after := h.Close(c)
		n, field := s.o.usage(c.Account, c.UserID), s.locationOf(c).field
		e := c.Entry
		e.Settlement = c.Settlement
		keys := append([]string{n.counters(), n.history(userField), n.history(field), n.hold(randomPart(h.ID))}, n.dayKeys(field)...)
		answer, err := settleScript.run(ctx, s.writes, keys,
			[]string{s.packSettlement(c, flags), field, string(encodeEntry(nil, markSettlement, &e, c.Retention)), encodeHold(after),
				holdLife(c.Entry.At, c.Entry.At), randomPart(h.ID)}).AsIntSlice()
		if err != nil {
			return 0, nil, unavailable(err)
		}
		if outcome = answer[0]; outcome != settleTooEarly {
			return outcome, c, nil
		}
		c = c.WithSecond(answer[1])
	}
	return 0, nil, core.Unavailable(errors.New("redis: the clocks of the nodes differ too much"))
}

// packSettlement returns the first argument of settle.lua.
func (s *Store) packSettlement(c *core.Consumption, flags byte) string {
	var b []byte
	b = appendSigned(append(b, flags), c.Cost-c.Settlement.Cost)
	b = record.AppendUint(b, 5, uint64(max(0, c.Settlement.HeldAt.Unix())))
	b = record.AppendUint(b, 3, uint64(max(0, core.DateOf(c.Entry.At))))
	b = record.AppendUint(b, 4, uint64(s.HistoryCap()))
	changes := c.Settlement.Changes(c.Costs)
	b = append(b, byte(len(changes)))
	starts := c.Anchors.Since(c.Entry.At)
	for _, start := range starts[:core.Lifetime] {
		b = record.AppendUint(b, 5, uint64(max(0, start)))
	}
	for _, m := range changes {
		b = appendMeter(appendSigned(b, m.Cost), m.Meter)
	}
	return string(b)
}

// appendSigned appends the sign of a number, and then its absolute value.
func appendSigned(b []byte, n int64) []byte {
	if n < 0 {
		return record.AppendUint(append(b, 0xff), 7, uint64(-n))
	}
	return record.AppendUint(append(b, 1), 7, uint64(n))
}

// locationOf returns the location of the counter of the key of a request, or of its user if it has no key.
func (s *Store) locationOf(c *core.Consumption) location {
	at := s.userLocation(c.Account, c.UserID)
	if c.KeyID != "" {
		at.field = fieldOf(c.KeySeq)
	}
	return at
}

// endExpired ends a hold that has expired at the time of a request. If the record of the hold is gone, endExpired removes the hold from the lists.
func (s *Store) endExpired(ctx context.Context, c *core.Consumption, id string) error {
	h, err := s.Hold(ctx, c.Account, id)
	if errors.Is(err, core.ErrHoldNotFound) {
		user, _ := core.HoldUser(id)
		h, err = &core.Hold{ID: id, UserID: user, KeyID: c.KeyID, KeySeq: c.KeySeq}, nil
	}
	if err != nil {
		return err
	}
	end := h.Expiry(c)
	outcome := int64(settleNotFound)
	if h.OnExpiry == core.ReleaseHeld && h.Status == core.HoldOpen {
		outcome, _, err = s.settle(ctx, end, h, settleExpires)
	}
	if err == nil && outcome == settleNotFound {
		_, _, err = s.settle(ctx, end, h, settleExpires|settleKeeps)
	}
	if err == nil {
		s.dropReservation(ctx, c.Account, id)
	}
	return err
}

// ExtendHold implements [core.Store].
func (s *Store) ExtendHold(ctx context.Context, account, id string, at, until time.Time) error {
	h, err := s.Hold(ctx, account, id)
	if err != nil {
		return err
	}
	n, field, shared := s.o.usage(account, h.UserID), userField, "0"
	if h.KeyID != "" {
		field = fieldOf(h.KeySeq)
	}
	if h.Shared {
		shared = "1"
	}
	outcome, err := extendHoldScript.run(ctx, s.writes, []string{n.counters(), n.hold(randomPart(id))},
		[]string{field, shared, randomPart(id), millis(at), millis(until), holdLife(at, until)}).AsInt64()
	switch {
	case err != nil:
		return unavailable(err)
	case outcome == 0:
		return core.ErrHoldExpired
	case outcome == 2:
		return nil
	}
	return unavailable(s.do(ctx, s.client.B().Zadd().Key(s.o.account(account).holds()).ScoreMember().ScoreMember(float64(until.UnixMilli()), id).Build()).Error())
}

// holdsOf returns the holds with some ids, without the holds whose records are gone.
func (s *Store) holdsOf(ctx context.Context, account string, ids []string) (list []*core.Hold, err error) {
	var cmds []rueidis.Completed
	for _, id := range ids {
		user, _ := core.HoldUser(id)
		cmds = append(cmds, s.client.B().Get().Key(s.o.usage(account, user).hold(randomPart(id))).Build())
	}
	for i, result := range s.reads.DoMulti(ctx, cmds...) {
		text, err := result.ToString()
		if rueidis.IsRedisNil(err) {
			continue
		}
		if err != nil {
			return nil, unavailable(err)
		}
		h, err := decodeHold(ids[i], text)
		if err != nil {
			return nil, err
		}
		list = append(list, h)
	}
	return list, nil
}

// OldestHolds implements [core.Store].
func (s *Store) OldestHolds(ctx context.Context, account string) (map[int64]time.Time, error) {
	ids, err := s.do(ctx, s.client.B().Zrange().Key(s.o.account(account).holds()).Min("0").Max("-1").Build()).AsStrSlice()
	if err != nil {
		return nil, unavailable(err)
	}
	oldest := map[int64]time.Time{}
	for part := range slices.Chunk(ids, scanBatch) {
		holds, err := s.holdsOf(ctx, account, part)
		if err != nil {
			return nil, err
		}
		for _, h := range holds {
			if h.Status == core.HoldOpen {
				core.NoteOldest(oldest, h.UserID, h.At)
			}
		}
	}
	return oldest, nil
}

// ExpireHolds implements [core.Store].
func (s *Store) ExpireHolds(ctx context.Context, account string, at time.Time, retention time.Duration) error {
	holds := s.o.account(account).holds()
	for {
		ids, err := s.do(ctx, s.client.B().Zrange().Key(holds).Min("-inf").Max(millis(at)).Byscore().Limit(0, scanBatch).Build()).AsStrSlice()
		if err != nil || len(ids) == 0 {
			return unavailable(err)
		}
		c := &core.Consumption{Account: account, Entry: core.Entry{At: at}, Retention: retention}
		for _, id := range ids {
			user, _ := core.HoldUser(id)
			u, err := s.User(ctx, account, user)
			if err == nil {
				c.Anchors = u.Anchors
			}
			if err == nil || errors.Is(err, core.ErrUserNotFound) {
				err = s.endExpired(ctx, c, id)
			}
			if err != nil {
				return err
			}
		}
	}
}
