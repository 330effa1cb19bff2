package badgerstore

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// event returns the event with a number, or eventlog.ErrGone when the event log now begins behind it.
func (f *eventFinder) event(number int64) (event, error) {
	position, n := f.nearest(number)
	for {
		if n != f.number {
			e, err := f.s.event(position)
			if err != nil {
				return event{}, err
			}
			if e.linkOf(f.kind).number != n {
				return event{}, errEvent
			}
			f.last, f.number = e, n
		}
		if n == number {
			return f.last, nil
		}
		l := f.last.linkOf(f.kind)
		if j := jump(n); j >= number {
			position, n = l.jump, j
		} else {
			position, n = l.prev, n-1
		}
	}
}

// nearest returns where the search for an event begins: at the nearest later event of the chain, or at the event that
// was read last if that is nearer.
func (f *eventFinder) nearest(number int64) (position, n int64) {
	t := f.counterState
	n = t.entries
	i := len(t.chain) - 1
	for ; i > 0 && jump(n) >= number; i-- {
		n = jump(n)
	}
	if f.number >= number && f.number <= n {
		return 0, f.number
	}
	return t.chain[i], n
}

// event is a request in the event log. It is an entry in the histories of its key and of its user, and has all data from
// which replay rebuilds their counters.
type event struct {
	core.Entry
	account   uint32 // number of the account
	key       int64  // Seq of the key
	shared    bool   // the user's counter also counts the request
	uncounted bool   // from an import: no counter counts the event, and it is in one history only
	ofKey     link
	ofUser    link

	hold     *core.NewHold    // of a request that opens a hold; with its HoldID
	opened   int64            // of a settlement: the position of the event that opened the hold
	adjusted int64            // of an adjustment: the result of [core.Counter.Adjust]
	ownOnly  bool             // see core.Consumption.OwnOnly
	cut      []core.MeterCost // of a settlement that is not Shared: what the counter of the key cuts off, see core.Counter.CutOff
	since    *core.Since      // of a user with anchors; nil for the calendar
	idToFind string           // the request id by which a repeat finds the event: [core.Consumption.RequestID]; "" for none
	first    *answer          // the answer to the request, if it has an idToFind
}

// answer is the stored answer to the first request with a request id.
type answer struct {
	terms  core.Terms
	result core.ConsumeResult
}

// repeated returns the answer to a repeated request.
func (v *answer) repeated() *core.ConsumeResult {
	v.result.Allowed, v.result.FirstTerms = true, &v.terms
	return &v.result
}

// errEvent means that a record has a valid checksum, and is not the event that its position must have.
var errEvent = fmt.Errorf("%w: a record is valid, but is not the expected event", eventlog.ErrDamaged)

// The flags in the first byte of an event.
const (
	flagDenied = 1 << iota
	flagShared
	flagRequestID
	flagUncounted
	flagCosts // costs of other meters than requests
	flagSince // the user has anchors
	flagAdjustment
)

// eventBuffer is the size in bytes of a buffer that most encoded events fit into.
const eventBuffer = 256

// encodedEvent is an event in binary form, without its links: they depend on the position of the record.
type encodedEvent struct {
	*event
	bytes []byte
}

// append appends the record of an event to b. position is the position of the record. The event log calls append under its lock.
func (x *encodedEvent) append(b []byte, position int64) []byte {
	return x.ofUser.append(x.ofKey.append(append(b, x.bytes...), position), position)
}

// holdID returns the id of the hold that the event opens or ends, "" for an event without a hold.
func (e *event) holdID() string {
	if e.Settlement != nil {
		return e.Settlement.HoldID
	}
	return e.HoldID
}

// encode encodes all of an event but its links into a buffer.
//
//	of a hold: recordHold             1 byte
//	  id                              text
//	  end                             time
//	  on expiry                       1 byte
//	  time of the prices              time
//	  path                            text
//	of a settlement: recordSettlement 1 byte
//	  id, status                      texts
//	  time of the hold                time
//	  cost that was held              uvarint
//	  costs that were held            as below, with their number
//	  position of the hold            uvarint
//	  cut                             count, a uvarint; for each, the meter, a text, and the cost, a varint
//	flags                             1 byte
//	account, key, user                uvarints
//	at                                time
//	cost                              uvarint
//	key id, endpoint, method, address texts
//	with flagCosts:                   see appendCosts
//	with flagDenied:                  the index of the reason in [core.Reasons], plus reasonLimit if a limit follows: 1 byte
//	  limit                           see appendLimit
//	with flagAdjustment:              meter, a text; 1 for set plus 2 for ownOnly, a byte; period, uvarint; value, varint; reason, a text; adjusted, varint
//	with flagSince:                   for a day, week, month, year: since as a distance before at, varint of seconds
//	with flagRequestID:
//	  request id                      text
//	  answer                          see answer.append; not of a denied or imported event
//	links of the key, of the user     see link.append
func (e *event) encode(b []byte) encodedEvent {
	b = append(e.encodeHold(b), e.flags())
	b = binary.AppendUvarint(b, uint64(e.account))
	b = binary.AppendUvarint(b, uint64(e.key))
	b = binary.AppendUvarint(b, uint64(e.UserID))
	b = record.AppendTime(b, e.At)
	b = binary.AppendUvarint(b, uint64(e.Cost))
	b = record.AppendText(b, e.KeyID)
	b = record.AppendText(b, e.Endpoint)
	b = record.AppendText(b, e.Method)
	b = record.AppendText(b, e.IP)
	if len(e.Costs) > 0 {
		b = appendCosts(b, e.Costs)
	}
	if e.Denied { // an imported denial may have no reason: then a quota was used up
		b = append(b, byte(max(0, slices.Index(core.Reasons(), e.Reason)))|reasonLimit*flagByte(e.Limit != nil))
		if e.Limit != nil {
			b = appendLimit(b, e.Limit)
		}
	}
	if a := e.Adjustment; a != nil {
		b = append(record.AppendText(b, a.Meter), flagByte(a.Set)|flagByte(e.ownOnly)<<1)
		b = binary.AppendVarint(binary.AppendUvarint(b, uint64(a.Period)), a.Value)
		b = binary.AppendVarint(record.AppendText(b, a.Reason), e.adjusted)
	}
	if e.since != nil {
		for p := core.Day; p <= core.Year; p++ {
			b = binary.AppendVarint(b, e.At.Unix()-e.since[p])
		}
	}
	switch {
	case e.idToFind != "":
		b = e.first.append(record.AppendText(b, e.idToFind))
	case e.RequestID != "":
		b = record.AppendText(b, e.RequestID)
	}
	return encodedEvent{e, b}
}

// reasonLimit is added to the index of a reason when the limit that refused follows.
const reasonLimit = 0x40

// origins are the owners of limits. Events keep the index in this list.
var origins = []core.Origin{core.OfPlan, core.OfUser, core.OfKey}

// appendLimit appends the limit that refused: 5 bytes for 60 of 60 requests a minute.
//
//	period plus 8 times the index of the owner in origins  1 byte
//	meter                                                  text, "" for requests
//	max, used                                              uvarints
func appendLimit(b []byte, l *core.RefusingLimit) []byte {
	meter := l.Meter
	if meter == core.MeterRequests {
		meter = ""
	}
	b = append(b, byte(l.Period)|byte(max(0, slices.Index(origins, l.Of)))<<3)
	return binary.AppendUvarint(binary.AppendUvarint(record.AppendText(b, meter), uint64(l.Max)), uint64(l.Used))
}

// encodeHold appends the bytes in front of an event that opens or ends a hold. It appends nothing for any other event.
func (e *event) encodeHold(b []byte) []byte {
	switch st := e.Settlement; {
	case st != nil:
		b = record.AppendText(record.AppendText(append(b, recordSettlement), st.HoldID), string(st.Status))
		b = binary.AppendUvarint(record.AppendTime(b, st.HeldAt), uint64(st.Cost))
		b = binary.AppendUvarint(appendCosts(b, st.Costs), uint64(e.opened))
		b = binary.AppendUvarint(b, uint64(len(e.cut)))
		for _, m := range e.cut {
			b = binary.AppendVarint(record.AppendText(b, m.Meter), m.Cost)
		}
	case e.HoldID != "":
		h := e.hold
		if h == nil { // of an imported entry
			h = new(core.NewHold)
		}
		b = record.AppendTime(record.AppendText(append(b, recordHold), e.HoldID), h.ExpiresAt)
		b = record.AppendTime(append(b, flagByte(bool(h.OnExpiry))), h.PricedAt)
		b = record.AppendText(b, h.Path)
	}
	return b
}

// appendCosts appends costs: their number, a uvarint, and for each its meter, a text, and its cost, a uvarint.
func appendCosts(b []byte, costs []core.MeterCost) []byte {
	b = binary.AppendUvarint(b, uint64(len(costs)))
	for _, m := range costs {
		b = binary.AppendUvarint(record.AppendText(b, m.Meter), uint64(m.Cost))
	}
	return b
}

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

// append appends the link of an event at a position.
//
//	number      uvarint; 0 when the event is not in this history
//	prev, jump  uvarints: the distances to the older entries; 0 without such an entry
//	late        uvarint of nanoseconds
func (l *link) append(b []byte, position int64) []byte {
	b = binary.AppendUvarint(b, uint64(l.number))
	b = binary.AppendUvarint(b, back(position, l.prev))
	b = binary.AppendUvarint(b, back(position, l.jump))
	return binary.AppendUvarint(b, uint64(l.late))
}

// back returns the distance from a position to an older position, 0 for the position 0.
func back(from, to int64) uint64 {
	if to == 0 {
		return 0
	}
	return uint64(from - to)
}

// append appends an answer.
//
//	usage                see appendUsage
//	terms                see record.AppendTerms
//	deciding limit       uvarint
//	usages of the limits their number, a uvarint, and the usages
func (v *answer) append(b []byte) []byte {
	b = appendUsage(b, &v.result.Usage)
	b = record.AppendTerms(b, &v.terms)
	b = binary.AppendUvarint(b, uint64(v.result.Deciding))
	b = binary.AppendUvarint(b, uint64(len(v.result.Limits)))
	for i := range v.result.Limits {
		b = appendUsage(b, &v.result.Limits[i].Usage)
	}
	return b
}

// appendUsage appends a usage, a uvarint, and the start and the end of its window: varints of seconds, 0 for no end.
func appendUsage(b []byte, u *core.Usage) []byte {
	b = binary.AppendVarint(binary.AppendUvarint(b, uint64(u.Used)), secondOf(u.Window.Start))
	return binary.AppendVarint(b, secondOf(u.Window.End))
}

// counts reports whether an event that is not denied changes the counter of its key or of its user.
func (e *event) counts(kind uint32) bool {
	return !e.uncounted && (kind == kindUser && e.shared || kind == kindKey && !(e.shared && e.Adjustment != nil))
}

// requestIDOwner returns the counter that remembers the request id of the event: of the key, or of the user if the event has no
// key.
func (e *event) requestIDOwner() ref {
	key, user := e.refs()
	if e.key == 0 {
		return user
	}
	return key
}

// refs returns the counters of the key and of the user. The event is in their histories when linkOf has a number.
func (e *event) refs() (key, user ref) {
	return ref{e.key, e.account, kindKey}, ref{e.UserID, e.account, kindUser}
}

// maxRetention bounds the retention of an entry.
const maxRetention = 100 * 365 * 24 * time.Hour

// keep returns how long an event that is written now is kept. Until is the end of its retention. Before Hard the event is
// kept in any case: a repeat of its request id, or a read or settlement of its hold, needs the event.
func (e *event) keep(now int64, retention time.Duration) (k eventlog.Keep) {
	if e.idToFind != "" || e.Settlement != nil {
		k.Hard = now + int64(idRetention/time.Second)
	}
	if e.hold != nil {
		k.Hard = now + int64((max(0, e.hold.ExpiresAt.Sub(e.At))+idRetention)/time.Second)
	}
	k.Until = max(k.Hard, now+int64((keptLonger+min(max(retention, 0), maxRetention))/time.Second))
	return k
}

// idRetention is how long the event of a request with an id, and its index record, are kept.
const idRetention = core.RequestIDRetention + keptLonger

// keptLonger is added to the retention of an event. The service's clock sets the time of an event and the store's clock
// ends its retention, and the two clocks may differ.
const keptLonger = 24 * time.Hour

// linkOf returns the link of an event in the history of its key or of its user.
func (e *event) linkOf(kind uint32) *link {
	if kind == kindUser {
		return &e.ofUser
	}
	return &e.ofKey
}
