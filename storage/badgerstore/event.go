package badgerstore

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// event is a request in the ledger: its entry in the histories of its key and of its
// user, and all that a counter is made whole from.
type event struct {
	core.Entry
	account   uint32 // its number
	key       int64  // its Seq
	shared    bool   // the user's counter counts too
	uncounted bool   // it is in the histories and counts nowhere
	ofKey     link
	ofUser    link
	keep      time.Duration // how long from At it may be asked for

	requestID string // of a request that is to be answered once, else ""
	first     verdict
}

// verdict is what a request with an id was answered.
type verdict struct {
	used  int64
	start int64 // of the window, Unix seconds
	terms core.Terms
}

// An event is framed by its checksum and its length, each four bytes, little endian.
// The checksum is a CRC-32C that begins with the position: a frame that lies where it
// does not belong is none.
const frameSize = 8

// maxEvent is how long an event can be. It bounds what a damaged length leads to.
const maxEvent = 1 << 22

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errLedger means that the ledger is not what it was when it was written.
var errLedger = errors.New("the ledger is damaged")

// What the first byte of an event says.
const (
	flagDenied = 1 << iota
	flagShared
	flagRequestID
	flagUncounted
)

// append appends the frame of an event at a position.
//
//	flags                   1 byte
//	account, key, user      uvarints
//	at                      time
//	cost                    uvarint
//	keep                    uvarint of minutes
//	in the history of the key and of the user:
//	  number                uvarint
//	  prev, jump            how far back they are, uvarints; 0 for none
//	  late                  uvarint of nanoseconds
//	key id, endpoint, method, address, each a text
//	with a request id: it, used, start of the window, period, limit, plan's id and name
func (e *event) append(b []byte, position int64) []byte {
	begin := len(b)
	b = append(b, make([]byte, frameSize)...)
	b = append(b, e.flags())
	b = binary.AppendUvarint(b, uint64(e.account))
	b = binary.AppendUvarint(b, uint64(e.key))
	b = binary.AppendUvarint(b, uint64(e.UserID))
	b = appendTime(b, e.At)
	b = binary.AppendUvarint(b, uint64(e.Cost))
	b = binary.AppendUvarint(b, uint64(e.keep/time.Minute+1))
	b = e.ofKey.append(b, position)
	b = e.ofUser.append(b, position)
	b = appendText(b, e.KeyID)
	b = appendText(b, e.Endpoint)
	b = appendText(b, e.Method)
	b = appendText(b, e.IP)
	if e.requestID != "" {
		b = e.first.append(appendText(b, e.requestID))
	}
	payload := b[begin+frameSize:]
	binary.LittleEndian.PutUint32(b[begin:], checksum(payload, position))
	binary.LittleEndian.PutUint32(b[begin+4:], uint32(len(payload)))
	return b
}

func (e *event) flags() (f byte) {
	if e.Denied {
		f |= flagDenied
	}
	if e.shared {
		f |= flagShared
	}
	if e.requestID != "" {
		f |= flagRequestID
	}
	if e.uncounted {
		f |= flagUncounted
	}
	return f
}

func (l *link) append(b []byte, position int64) []byte {
	b = binary.AppendUvarint(b, uint64(l.number))
	b = binary.AppendUvarint(b, back(position, l.prev))
	b = binary.AppendUvarint(b, back(position, l.jump))
	return binary.AppendUvarint(b, uint64(l.late))
}

// back returns how far back a position is, 0 for none.
func back(from, to int64) uint64 {
	if to == 0 {
		return 0
	}
	return uint64(from - to)
}

func (v *verdict) append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(v.used))
	b = binary.AppendVarint(b, v.start)
	b = binary.AppendUvarint(b, uint64(v.terms.Period))
	b = binary.AppendUvarint(b, uint64(v.terms.Limit))
	return appendText(appendText(b, v.terms.PlanID), v.terms.PlanName)
}

// checksum returns the checksum of the payload of an event at a position.
func checksum(payload []byte, position int64) uint32 {
	return crc32.Update(uint32(position)^uint32(position>>32), castagnoli, payload)
}

// frame returns how long the frame is that b begins with, header included.
func frame(b []byte) (size int, ok bool) {
	n := binary.LittleEndian.Uint32(b[4:])
	return frameSize + int(n), n > 0 && n <= maxEvent
}

// decodeEvent returns the event of a frame that lies at a position.
func decodeEvent(b []byte, position int64) (e event, err error) {
	payload := b[frameSize:]
	if binary.LittleEndian.Uint32(b) != checksum(payload, position) {
		return event{}, errLedger
	}
	r := reading{payload[1:]}
	flags := payload[0]
	e.Denied, e.shared, e.uncounted = flags&flagDenied != 0, flags&flagShared != 0, flags&flagUncounted != 0
	e.account, e.key, e.UserID = uint32(r.uvarint()), int64(r.uvarint()), int64(r.uvarint())
	e.At = r.time()
	e.Cost = int64(r.uvarint())
	e.keep = time.Duration(r.uvarint()) * time.Minute
	e.ofKey, e.ofUser = r.link(position), r.link(position)
	e.KeyID, e.Endpoint, e.Method, e.IP = r.text(), r.text(), r.text(), r.text()
	if flags&flagRequestID != 0 {
		e.requestID, e.first = r.text(), r.verdict()
	}
	if r.failed() {
		return event{}, errLedger
	}
	return e, nil
}

func (r *reading) link(position int64) (l link) {
	l.number = int64(r.uvarint())
	l.prev, l.jump = r.back(position), r.back(position)
	l.late = time.Duration(r.uvarint())
	return l
}

func (r *reading) back(position int64) int64 {
	if n := int64(r.uvarint()); n != 0 {
		return position - n
	}
	return 0
}

func (r *reading) verdict() (v verdict) {
	v.used, v.start = int64(r.uvarint()), r.varint()
	v.terms.Period, v.terms.Limit = core.Period(r.uvarint()), int64(r.uvarint())
	v.terms.PlanID, v.terms.PlanName = r.text(), r.text()
	return v
}

// refs returns the counters that an event is in the histories of.
func (e *event) refs() (key, user ref) {
	return ref{e.key, e.account, kindKey}, ref{e.UserID, e.account, kindUser}
}

// kept says until when events must be kept, in Unix seconds.
type kept struct {
	ends int64 // end of their retention and of their request ids
	ids  int64 // end of their request ids, 0 without any: no event is removed before
}

// and returns until when the events of k and other must be kept.
func (k kept) and(other kept) kept { return kept{max(k.ends, other.ends), max(k.ids, other.ids)} }

// kept returns until when an event that is written now must be kept.
func (e *event) kept(now int64) (k kept) {
	if e.requestID != "" {
		k.ids = now + int64(idRetention/time.Second)
	}
	k.ends = max(k.ids, now+int64((keptLonger+e.keep)/time.Second))
	return k
}

// idRetention is how long the event of a request with an id, and its index record, are kept.
const idRetention = core.RequestIDRetention + keptLonger

// encode returns the record of a segment.
//
//	ends, ids  uvarints; a record of before schema 4 has the first one only
func (k kept) encode() []byte { return binary.AppendUvarint(encodeNumber(k.ends), uint64(k.ids)) }

// decodeKept returns until when the events of a segment must be kept, the zero value without
// a record. A record of before schema 4 does not say when the request ids end: decodeKept
// assumes that they were made at the time now.
func decodeKept(record []byte, now int64) (k kept, err error) {
	if record == nil {
		return kept{}, nil
	}
	r := reading{record}
	if k.ends = int64(r.uvarint()); !r.failed() && len(r.rest) == 0 {
		k.ids = min(k.ends, now+int64(idRetention/time.Second))
		return k, nil
	}
	if k.ids = int64(r.uvarint()); r.failed() || len(r.rest) > 0 {
		return kept{}, errRecord
	}
	return k, nil
}

// keptLonger is how much longer than asked for an event is kept: its time is that of
// the service's clock, its end that of the machine's.
const keptLonger = 24 * time.Hour

// linkOf returns the link of an event in the history of its key or of its user.
func (e *event) linkOf(kind uint32) *link {
	if kind == kindUser {
		return &e.ofUser
	}
	return &e.ofKey
}
