package badgerstore

import (
	"fmt"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

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

// answer is the answer to the first request with a request id. Decoded, its result has only Usage, Deciding and Limits: see answer.code.
type answer struct {
	terms  core.Terms
	result core.ConsumeResult
}

// errEvent means that a record has a valid checksum, and is not the event that its position must have.
var errEvent = fmt.Errorf("%w: a record is valid, but is not the expected event", eventlog.ErrDamaged)

// eventBuffer is the size in bytes of a buffer that most encoded events fit into.
const eventBuffer = 256

// encodedEvent is an event with its record without the links. The links depend on the position of the record.
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

// counts reports whether an event that is not denied changes the counter of its key or of its user.
func (e *event) counts(kind uint32) bool {
	return !e.uncounted && (kind == kindUser && e.shared || kind == kindKey && !(e.shared && e.Adjustment != nil))
}

// refs returns the counters of the key and of the user. Without a key both are the counter of the user. The event is in the history of a counter if linkOf
// has a number. A repeated request finds the event by the first counter.
func (e *event) refs() (key, user ref) {
	if user = (ref{e.UserID, e.account, kindUser}); e.key == 0 {
		return user, user
	}
	return ref{e.key, e.account, kindKey}, user
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
