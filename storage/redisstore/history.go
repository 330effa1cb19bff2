package redisstore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// History implements [core.Store]. [Options.History] bounds the number of entries.
func (s *Store) History(ctx context.Context, of core.CounterID, since time.Time, p core.Page) (entries []core.Entry, total int, err error) {
	seconds, nanoseconds := max(0, since.Unix()), 0
	if since.Unix() >= 0 {
		nanoseconds = since.Nanosecond()
	}
	_, err = readLocated(ctx, s, []core.CounterID{of}, reading[struct{}]{func(at location, loaded bool) rueidis.Completed {
		return readHistoryScript.command(s.client.B(), loaded, []string{at.slot.counters(), at.slot.history(at.field)}, []string{
			strconv.FormatInt(seconds, 10), strconv.Itoa(nanoseconds), strconv.Itoa(p.Offset()), strconv.Itoa(p.Size), latenessField(at.field)})
	}, func(_ location, r rueidis.RedisResult) (_ struct{}, here bool, err error) {
		entries, total, err = decodeHistory(r)
		return struct{}{}, of.KeyID == "", err // a key may have moved during the read
	}})
	if err != nil {
		return nil, 0, err
	}
	return entries, total, nil
}

// bytesPerEntry times [Options.History] bounds the size of a history in bytes. The same as BYTES_PER_ENTRY
// in shared.lua.
const bytesPerEntry = 200

// HistoryCut implements [core.CappedHistory]. It is true for every history larger than half of its bound
// in bytes.
func (s *Store) HistoryCut(ctx context.Context, of core.CounterID) (bool, error) {
	locs, err := s.locations(ctx, []core.CounterID{of})
	if err != nil || locs[0].field == "" {
		return false, err
	}
	value, err := s.do(ctx, s.client.B().Hget().Key(locs[0].slot.counters()).Field(historySizeField(locs[0].field)).Build()).ToString()
	if rueidis.IsRedisNil(err) {
		return false, nil
	}
	if err != nil {
		return false, unavailable(err)
	}
	size, _, _ := strings.Cut(value, " ")
	n, err := strconv.ParseInt(size, 10, 64)
	if err != nil {
		return false, record.ErrDamaged
	}
	return 2*n > bytesPerEntry*int64(s.HistoryCap()), nil
}

// decodeHistory decodes the answer of read_history.lua.
func decodeHistory(r rueidis.RedisResult) ([]core.Entry, int, error) {
	all, err := r.ToArray()
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

// The first byte of an entry is a mark. The mark of a request that was denied without a limit is 1 + the index of its reason in [core.Reasons]. See shared.lua.
const (
	markAllowed    byte = 0
	markLimit      byte = 60 // denied by a limit that is used up
	markHold       byte = 61 // allowed, with a hold
	markSettlement byte = 62
	markAdjustment byte = 63
	markLate       byte = 64 // added to the mark if an older entry of the history is later
)

// markOf returns the first byte of the entry of a denied request.
func markOf(r core.Reason) byte { return byte(max(0, slices.Index(core.Reasons(), r)) + 1) }

// markFor returns the first byte of an entry.
func markFor(e *core.Entry) byte {
	switch {
	case e.Adjustment != nil:
		return markAdjustment
	case e.Settlement != nil:
		return markSettlement
	case e.Limit != nil:
		return markLimit
	case e.Denied:
		return markOf(e.Reason)
	case len(randomPart(e.HoldID)) == randomSize:
		return markHold
	}
	return markAllowed
}

// encodeEntry appends an entry with its head (HEAD in shared.lua). The entry is kept for the retention.
func encodeEntry(b []byte, mark byte, e *core.Entry, retention time.Duration) []byte {
	b = append(b, mark)
	b = record.AppendUint(b, 5, uint64(max(0, e.At.Unix())))
	b = record.AppendUint(b, 4, uint64(e.At.Nanosecond()))
	b = record.AppendUint(b, 4, hourOf(e.At.Add(retention)))
	b = binary.AppendUvarint(b, uint64(e.UserID))
	b = binary.AppendUvarint(b, uint64(e.Cost))
	b = record.AppendText(b, e.KeyID)
	b = record.AppendText(b, e.Method)
	b = record.AppendText(b, e.IP)
	b = record.AppendText(b, e.Endpoint)
	b = record.AppendText(b, e.RequestID)
	if e.Settlement != nil {
		b = record.Append(b, func(c *record.Codec) { codeSettlement(c, e.Settlement) })
	}
	for _, m := range e.Costs {
		b = binary.AppendUvarint(record.AppendText(b, m.Meter), uint64(m.Cost))
	}
	if a := e.Adjustment; a != nil {
		value, bits := a.Value, uint64(a.Period)<<2
		if value < 0 {
			value, bits = -value, bits|1
		}
		if a.Set {
			bits |= 2
		}
		b = binary.AppendUvarint(record.AppendText(b, a.Meter), uint64(value))
		b = binary.AppendUvarint(record.AppendText(b, a.Reason), bits)
	}
	switch mark {
	case markHold:
		b = append(b, randomPart(e.HoldID)...)
	case markLimit:
		b = appendLimit(b, e.Limit)
	}
	return b
}

// origins are the owners of limits. Entries have the index in this list.
var origins = []core.Origin{core.OfPlan, core.OfUser, core.OfKey}

// limitCode returns a limit without its maximum and meter, as one byte: the period from 1, plus 8 times the index of its owner in origins.
func limitCode(p core.Period, of core.Origin) byte {
	return byte(p) + 1 + byte(max(0, slices.Index(origins, of)))<<3
}

// wideLimit is added to a limitCode if the numbers take 7 bytes in place of 4.
const wideLimit = 32

// appendLimit appends the limit that refused, as consume.lua does: a limitCode, the maximum, the usage and the meter, "" for requests; and
// their size in a byte.
func appendLimit(b []byte, l *core.RefusingLimit) []byte {
	begin, code, size := len(b), limitCode(l.Period, l.Of), 4
	if max(l.Max, l.Used) >= 1<<32 {
		code, size = code|wideLimit, 7
	}
	b = record.AppendUint(record.AppendUint(append(b, code), size, uint64(l.Max)), size, uint64(l.Used))
	if l.Meter != core.MeterRequests {
		b = append(b, l.Meter...)
	}
	return append(b, byte(len(b)-begin))
}

// decodeLimit decodes the limit at the end of an entry, and returns the bytes before it.
func decodeLimit(b []byte) (l *core.RefusingLimit, before []byte, err error) {
	n := len(b) - 1
	if n < 0 || int(b[n]) > n {
		return nil, nil, record.ErrDamaged
	}
	begin := n - int(b[n])
	r, size := record.NewReader(b[begin:n]), 4
	code := int(r.Uint(1))
	if code&wideLimit != 0 {
		size = 7
	}
	period, of := code&7-1, code&^wideLimit>>3
	l = &core.RefusingLimit{Period: core.Period(period), Max: int64(r.Uint(size)), Used: int64(r.Uint(size))}
	l.Meter = cmp.Or(string(r.Rest()), core.MeterRequests)
	if r.Failed() || period < 0 || of >= len(origins) {
		return nil, nil, record.ErrDamaged
	}
	l.Of = origins[of]
	return l, b[:begin], nil
}

// decodeAdjustment decodes what encodeEntry appends for an adjustment.
func decodeAdjustment(r *record.Reader) *core.Adjustment {
	a := &core.Adjustment{Meter: r.Text(), Value: int64(r.Uvarint()), Reason: r.Text()}
	bits := r.Uvarint()
	if bits&1 != 0 {
		a.Value = -a.Value
	}
	a.Set, a.Period = bits&2 != 0, core.Period(bits>>2)
	if a.Period > core.Lifetime {
		r.Fail()
	}
	return a
}

// codeSettlement codes what an entry has of a settlement. Its new costs are in the entry itself.
func codeSettlement(c *record.Codec, st *core.Settlement) {
	c.Text(&st.HoldID)
	record.Index(c, &st.Status, holdStatuses)
	c.Time(&st.HeldAt)
	record.Number(c, &st.Cost)
	c.Costs(&st.Costs)
}

// decodeEntry decodes an entry with its head (HEAD in shared.lua).
func decodeEntry(b string) (e core.Entry, err error) {
	r := record.NewReader([]byte(b))
	mark := byte(r.Uint(1))
	late := mark >= markLate
	mark %= markLate
	if reasons := core.Reasons(); mark > 0 && int(mark) <= len(reasons) {
		e.Denied, e.Reason = true, reasons[mark-1]
	}
	s, ns := r.Uint(5), r.Uint(4)
	e.At = time.Unix(int64(s), int64(ns)).UTC()
	r.Uint(4) // hour until which it is kept
	if late {
		s, ns := r.Uint(5), r.Uint(4)
		e.Late = time.Unix(int64(s), int64(ns)).Sub(e.At)
	}
	e.UserID, e.Cost = int64(r.Uvarint()), int64(r.Uvarint())
	e.KeyID, e.Method, e.IP, e.Endpoint, e.RequestID = r.Text(), r.Text(), r.Text(), r.Text(), r.Text()
	switch mark {
	case markLimit: // the script has appended it
		e.Denied, e.Reason = true, core.ReasonQuota
		before := []byte(nil)
		if e.Limit, before, err = decodeLimit(r.Rest()); err != nil {
			return core.Entry{}, err
		}
		r = record.NewReader(before)
	case markAdjustment:
		e.Adjustment = decodeAdjustment(r)
	case markSettlement:
		c := record.Decoder(r.Rest())
		e.Settlement = new(core.Settlement)
		codeSettlement(&c, e.Settlement)
		r = &c.Reader
	case markHold: // the script has appended the random part of its id
		rest := r.Rest()
		n := max(0, len(rest)-randomSize)
		e.HoldID = fmt.Sprintf("hold_%d_%s", e.UserID, rest[n:])
		r = record.NewReader(rest[:n])
	}
	for !r.Failed() && !r.Ended() {
		e.Costs = append(e.Costs, core.MeterCost{Meter: r.Text(), Cost: int64(r.Uvarint())})
	}
	if r.Failed() {
		return core.Entry{}, record.ErrDamaged
	}
	return e, nil
}

// digestOfID returns the stored form of a request id: the first 16 bytes of its SHA-256.
func digestOfID(id string) string {
	sum := sha256.Sum256([]byte(id))
	return string(sum[:16])
}

// holdFollows is added to the number of anchors of an answer if the id of a hold follows them.
const holdFollows = 1 << 10

// encodeTerms encodes the terms, the anchors and the id of the hold of a request, for the answer to a repeated request.
func encodeTerms(c *core.Consumption) []byte {
	hold := ""
	if c.Hold != nil {
		hold = c.Hold.ID
	}
	return record.Append(nil, func(b *record.Codec) { codeTerms(b, c, &hold) })
}

// codeTerms codes terms, the anchors of the user (their number, plus holdFollows if hold is not "", and two times of each), and the id of the hold.
func codeTerms(b *record.Codec, c *core.Consumption, hold *string) {
	b.Terms(&c.Terms)
	n := uint64(len(c.Anchors))
	if *hold != "" {
		n += holdFollows
	}
	record.Number(b, &n)
	if b.Decodes() && n%holdFollows > 0 {
		c.Anchors = make([]core.Anchor, n%holdFollows)
	}
	for i := range c.Anchors {
		b.Time(&c.Anchors[i].From)
		b.Time(&c.Anchors[i].Start)
	}
	if n >= holdFollows {
		b.Text(hold)
	}
}
