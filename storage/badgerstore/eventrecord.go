package badgerstore

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// The flags of an event: the byte after codeHold, which is the first byte of most events. The kinds of other records begin at flagsEnd: see redo.go.
const (
	flagDenied = 1 << iota
	flagShared
	flagRequestID
	flagUncounted
	flagCosts // costs of other meters than requests
	flagSince // the user has anchors
	flagAdjustment
	flagsEnd
)

func (e *event) flags() byte {
	return flagDenied*flagByte(e.Denied) | flagShared*flagByte(e.shared) | flagRequestID*flagByte(e.RequestID != "" || e.idToFind != "") |
		flagUncounted*flagByte(e.uncounted) | flagCosts*flagByte(len(e.Costs) > 0) | flagSince*flagByte(e.since != nil) |
		flagAdjustment*flagByte(e.Adjustment != nil)
}

// flagByte returns 1 for true.
func flagByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// encode appends the record of an event without its links to b. It appends the members of every event without a codec, which takes longer.
//
//	of a hold or a settlement         see codeHold
//	flags                             1 byte
//	account, key, user                uvarints
//	at                                time
//	cost                              uvarint
//	key id, endpoint, method, address texts
//	members of some events            see codeMore
//	links of the key, of the user     see link.append
func (e *event) encode(b []byte) encodedEvent {
	flags := e.flags()
	if e.Settlement != nil || e.HoldID != "" {
		b = record.Append(b, e.codeHold)
	}
	b = append(b, flags)
	b = binary.AppendUvarint(b, uint64(e.account))
	b = binary.AppendUvarint(b, uint64(e.key))
	b = binary.AppendUvarint(b, uint64(e.UserID))
	b = record.AppendTime(b, e.At)
	b = binary.AppendUvarint(b, uint64(e.Cost))
	b = record.AppendText(b, e.KeyID)
	b = record.AppendText(b, e.Endpoint)
	b = record.AppendText(b, e.Method)
	b = record.AppendText(b, e.IP)
	if flags&^(flagShared|flagUncounted) != 0 {
		b = record.Append(b, func(c *record.Codec) { e.codeMore(c, flags) })
	}
	return encodedEvent{e, b}
}

// decodeEvent decodes the record at a position of the event log. The record is not empty. The error is errEvent.
func decodeEvent(payload []byte, position int64) (e event, err error) {
	c := record.Decoder(payload)
	if payload[0] >= recordHold {
		e.codeHold(&c)
	}
	flags := byte(c.Uint(1))
	e.Denied, e.shared, e.uncounted = flags&flagDenied != 0, flags&flagShared != 0, flags&flagUncounted != 0
	e.account, e.key, e.UserID = uint32(c.Uvarint()), int64(c.Uvarint()), int64(c.Uvarint())
	e.At = c.Reader.Time()
	e.Cost = int64(c.Uvarint())
	e.KeyID, e.Endpoint, e.Method, e.IP = c.Reader.Text(), c.Reader.Text(), c.Reader.Text(), c.Reader.Text()
	e.codeMore(&c, flags)
	e.ofKey, e.ofUser = readLink(&c.Reader, position), readLink(&c.Reader, position)
	if e.uncounted { // an imported entry has only the id of its hold
		e.hold = nil
	}
	if c.Failed() || !c.Ended() || flags >= flagsEnd {
		return event{}, errEvent
	}
	return e, nil
}

// codeHold codes the bytes before the flags of an event that opens or ends a hold: recordHold or recordSettlement, 1 byte, and then the hold or the
// settlement.
func (e *event) codeHold(c *record.Codec) {
	kind := byte(recordHold)
	if e.Settlement != nil {
		kind = recordSettlement
	}
	switch c.Byte(&kind); kind {
	case recordHold:
		e.codeOpening(c)
	case recordSettlement:
		e.codeSettlement(c)
	default:
		c.Fail()
	}
}

// codeOpening codes the hold that a request opens. An imported entry has the id only: its other members are zero.
//
//	id              text
//	end             time
//	on expiry       1 byte
//	time of prices  time
//	path            text
func (e *event) codeOpening(c *record.Codec) {
	h := e.hold
	if h == nil {
		h = new(core.NewHold)
	}
	c.Text(&e.HoldID)
	c.Time(&h.ExpiresAt)
	c.Bool((*bool)(&h.OnExpiry))
	c.Time(&h.PricedAt)
	c.Text(&h.Path)
	if c.Decodes() {
		h.ID, e.hold = e.HoldID, h
	}
}

// codeSettlement codes a settlement.
//
//	id, status            texts
//	time of the hold      time
//	cost of the hold      uvarint
//	costs of the hold     see record.Codec.Costs
//	position of the hold  uvarint
//	cut                   the number of meters, a uvarint; for each, the meter, a text, and the cost, a varint
func (e *event) codeSettlement(c *record.Codec) {
	if c.Decodes() {
		e.Settlement = new(core.Settlement)
	}
	st := e.Settlement
	c.Text(&st.HoldID)
	c.Text((*string)(&st.Status))
	c.Time(&st.HeldAt)
	record.Number(c, &st.Cost)
	c.Costs(&st.Costs)
	record.Number(c, &e.opened)
	record.List(c, &e.cut, func(m *core.MeterCost) {
		c.Text(&m.Meter)
		record.Signed(c, &m.Cost)
	})
}

// codeMore codes the members that only some events have, by their flags.
//
//	flagCosts      see record.Codec.Costs
//	flagDenied     the index of the reason in [core.Reasons], plus reasonLimit if the limit follows: 1 byte; the limit, see codeLimit
//	flagAdjustment see codeAdjustment
//	flagSince      for a day, week, month, year: the seconds from since to at, varint
//	flagRequestID  id, text; answer, see answer.code, not of a denied or imported event
func (e *event) codeMore(c *record.Codec, flags byte) {
	if flags&flagCosts != 0 {
		c.Costs(&e.Costs)
	}
	if flags&flagDenied != 0 {
		e.codeReason(c)
	}
	if flags&flagAdjustment != 0 {
		e.codeAdjustment(c)
	}
	if flags&flagSince != 0 {
		e.codeSince(c)
	}
	if flags&flagRequestID != 0 {
		e.codeRequestID(c)
	}
}

// reasonLimit is added to the index of a reason when the limit that refused follows.
const reasonLimit = 0x40

// codeReason codes why a request was denied. An imported denial may have no reason: it gets the first one, a quota that is used up.
func (e *event) codeReason(c *record.Codec) {
	i := byte(max(0, slices.Index(core.Reasons(), e.Reason))) | reasonLimit*flagByte(e.Limit != nil)
	c.Byte(&i)
	if int(i&^reasonLimit) >= len(core.Reasons()) {
		c.Fail()
		return
	}
	if c.Decodes() {
		e.Reason = core.Reasons()[i&^reasonLimit]
	}
	if i&reasonLimit != 0 {
		e.codeLimit(c)
	}
}

// codeAdjustment codes an adjustment.
//
//	meter         text
//	set, ownOnly  1 byte: 1 for set, plus 2 for ownOnly
//	period        uvarint
//	value         varint
//	reason        text
//	adjusted      varint
func (e *event) codeAdjustment(c *record.Codec) {
	a := e.Adjustment
	if c.Decodes() {
		a = new(core.Adjustment)
		e.Adjustment = a
	}
	set := flagByte(a.Set) | flagByte(e.ownOnly)<<1
	c.Text(&a.Meter)
	if c.Byte(&set); c.Decodes() {
		a.Set, e.ownOnly = set&1 != 0, set&2 != 0
	}
	if record.Number(c, &a.Period); a.Period > core.Lifetime {
		c.Fail()
	}
	record.Signed(c, &a.Value)
	c.Text(&a.Reason)
	record.Signed(c, &e.adjusted)
}

func (e *event) codeSince(c *record.Codec) {
	if c.Decodes() {
		e.since = new(core.Anchors(nil).Since(e.At))
	}
	for p := core.Day; p <= core.Year; p++ {
		before := e.At.Unix() - e.since[p]
		if record.Signed(c, &before); c.Decodes() {
			e.since[p] = e.At.Unix() - before
		}
	}
}

func (e *event) codeRequestID(c *record.Codec) {
	id := cmp.Or(e.idToFind, e.RequestID)
	if c.Text(&id); c.Decodes() {
		if e.RequestID = core.ShownRequestID(id); !e.Denied && !e.uncounted {
			e.idToFind, e.first = id, new(answer)
		}
	}
	if e.first != nil {
		e.first.code(c)
	}
}

// origins are the owners of limits. Events have the index in this list.
var origins = []core.Origin{core.OfPlan, core.OfUser, core.OfKey}

// codeLimit codes the limit that refused a request: 4 bytes for 60 of 60 requests a minute.
//
//	period plus 8 times the index of the owner in origins  1 byte
//	meter                                                  see codeMeter
//	max, used                                              uvarints
func (e *event) codeLimit(c *record.Codec) {
	l := e.Limit
	if c.Decodes() {
		l = new(core.RefusingLimit)
		e.Limit = l
	}
	n := byte(l.Period) | byte(max(0, slices.Index(origins, l.Of)))<<3
	c.Byte(&n)
	codeMeter(c, &l.Meter)
	record.Number(c, &l.Max)
	record.Number(c, &l.Used)
	switch period := core.Period(n & 7); {
	case !c.Decodes():
	case period > core.Lifetime || int(n>>3) >= len(origins):
		c.Fail()
	default:
		l.Period, l.Of = period, origins[n>>3]
	}
}

// codeMeter codes the name of a meter, a text, "" for requests.
func codeMeter(c *record.Codec, name *string) {
	text := *name
	if text == core.MeterRequests {
		text = ""
	}
	if c.Text(&text); c.Decodes() {
		*name = cmp.Or(text, core.MeterRequests)
	}
}

// append appends the link of an event at a position.
//
//	number      uvarint; 0 when the event is not in this history
//	prev, jump  uvarints: the distances to the older entries; 0 without such an entry
//	late        uvarint of nanoseconds
func (l *link) append(b []byte, position int64) []byte {
	b = binary.AppendUvarint(b, uint64(l.number))
	for _, older := range [2]int64{l.prev, l.jump} {
		if older != 0 {
			older = position - older
		}
		b = binary.AppendUvarint(b, uint64(older))
	}
	return binary.AppendUvarint(b, uint64(l.late))
}

// readLink reads what link.append appends.
func readLink(r *record.Reader, position int64) (l link) {
	l.number = int64(r.Uvarint())
	for _, older := range []*int64{&l.prev, &l.jump} {
		if n := int64(r.Uvarint()); n != 0 {
			*older = position - n
		}
	}
	l.late = time.Duration(r.Uvarint())
	return l
}

// code codes an answer. Decoding fails for more usages than the terms have limits.
//
//	usage                see codeUsage
//	terms                see record.Codec.Terms
//	deciding limit       uvarint
//	usages of the limits their number, a uvarint, and the usages
func (v *answer) code(c *record.Codec) {
	r := &v.result
	codeUsage(c, &r.Usage)
	c.Terms(&v.terms)
	n := len(r.Limits)
	record.Number(c, &r.Deciding)
	if record.Number(c, &n); c.Decodes() {
		if most := v.terms.Limits(); n < 0 || n > most || r.Deciding < 0 || r.Deciding >= most {
			c.Fail()
			return
		}
		for i := range n {
			r.Limits = append(r.Limits, core.LimitUsage{Limit: v.terms.LimitAt(i), Of: v.terms.OriginAt(i)})
		}
	}
	for i := range r.Limits {
		codeUsage(c, &r.Limits[i].Usage)
	}
	if c.Decodes() && n > 0 && v.terms.Limit == core.Unlimited { // without a primary limit, index 0 is zero
		r.Limits[0] = core.LimitUsage{}
	}
}

// codeUsage codes a usage, a uvarint, and the start and the end of its window: varints of Unix seconds, 0 for no end.
func codeUsage(c *record.Codec, u *core.Usage) {
	start, end := secondOf(u.Window.Start), secondOf(u.Window.End)
	record.Number(c, &u.Used)
	record.Signed(c, &start)
	if record.Signed(c, &end); c.Decodes() {
		u.Window.Start = time.Unix(start, 0).UTC()
		if end != 0 {
			u.Window.End = time.Unix(end, 0).UTC()
		}
	}
}
