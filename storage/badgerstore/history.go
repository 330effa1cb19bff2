package badgerstore

import (
	"context"
	"encoding/binary"
	"sort"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
)

// The entries of a history are numbered in the order in which they were counted, so
// that a page is found by arithmetic from the newest one, and where the live ones
// begin by bisection: each entry also has the time of the latest one up to it, which
// never goes back.
//
// An entry may be late, earlier than one before it. How late the latest of them was
// is in the counter's record; only within that span of the place where the live ones
// begin can live and dead ones lie side by side, and only there they are looked at
// one by one.

const (
	// keptLonger is how much longer than asked for an entry is kept: its time is that
	// of the service's clock, its end that of the machine's.
	keptLonger = 24 * time.Hour
	// maxMixed is how many entries are looked at one by one. It bounds what a clock
	// that was a year ahead for a moment can cost; beyond it all count as live.
	maxMixed = 50_000
)

// newEntries returns the entry of a request for the histories of its key and of its
// user, with their next numbers. The caller holds the locks of both counters.
func newEntries(key, user *counter, c *core.Consumption, denied bool) (ofKey, ofUser *badger.Entry) {
	common := encodeEntry(&c.Entry, denied)
	ends := time.Now().Add(keptLonger).Unix() + int64(max(0, c.Retention)/time.Second)
	return newEntry(key, c.Entry.At, common, ends), newEntry(user, c.Entry.At, common, ends)
}

func newEntry(c *counter, at time.Time, common []byte, ends int64) *badger.Entry {
	number, late := c.append(at)
	value := make([]byte, 0, binary.MaxVarintLen64+len(common))
	value = append(binary.AppendUvarint(value, uint64(late)), common...)
	return &badger.Entry{Key: historyPath(c.history).number(number), Value: value, ExpiresAt: uint64(ends)}
}

// encodeEntry returns what the records of an entry in all its histories have in
// common. Before it comes how late the entry was there, as a uvarint of nanoseconds.
//
//	at       time
//	denied   0 or 1
//	cost     uvarint
//	user id  uvarint
//	key id, endpoint, method, address, each a text
func encodeEntry(e *core.Entry, denied bool) []byte {
	b := make([]byte, 0, 40+len(e.KeyID)+len(e.Endpoint)+len(e.Method)+len(e.IP))
	b = appendTime(b, e.At)
	if denied {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(e.Cost)), uint64(e.UserID))
	for _, s := range []string{e.KeyID, e.Endpoint, e.Method, e.IP} {
		b = appendText(b, s)
	}
	return b
}

// decodeEntry returns the entry of a record, and the time of the latest one up to
// it.
func decodeEntry(record []byte) (e core.Entry, latest time.Time, err error) {
	r := reading{record}
	late := time.Duration(r.uvarint())
	e.At = r.time()
	e.Denied = r.uvarint() == 1
	e.Cost, e.UserID = int64(r.uvarint()), int64(r.uvarint())
	e.KeyID, e.Endpoint, e.Method, e.IP = r.text(), r.text(), r.text(), r.text()
	if r.failed() {
		return core.Entry{}, time.Time{}, errRecord
	}
	return e, e.At.Add(late), nil
}

// History implements [core.Store].
func (s *Store) History(_ context.Context, of core.CounterID, since time.Time, p core.Page) (list []core.Entry, total int, err error) {
	err = s.readUsage(of.Account, func(r snapshot) error {
		t, err := r.tally(of)
		if err != nil || t.entries == 0 {
			return err
		}
		h := history{tally: t, since: since, read: func(number int64) ([]byte, error) {
			return r.get(historyPath(t.history).number(number))
		}}
		if err := h.divide(); err != nil {
			return err
		}
		total = h.total()
		list, err = h.page(p)
		return err
	})
	return list, total, err
}

// history is a history as it is read.
type history struct {
	tally tally
	since time.Time
	read  func(number int64) ([]byte, error)

	live  int64   // from this number on all are live
	mixed []int64 // the live ones below it
}

// entry returns the entry with a number. One that is not there any more has the
// zero time.
func (h *history) entry(number int64) (e core.Entry, latest time.Time, err error) {
	record, err := h.read(number)
	if err != nil || record == nil {
		return core.Entry{}, time.Time{}, err
	}
	return decodeEntry(record)
}

// divide finds where the live entries begin.
func (h *history) divide() error {
	first, err := h.firstLaterThan(h.since)
	if err != nil {
		return err
	}
	if h.live, err = h.firstLaterThan(h.since.Add(h.tally.late)); err != nil {
		return err
	}
	h.live = min(h.live, first+maxMixed)
	for n := first; n < h.live; n++ {
		e, _, err := h.entry(n)
		if err != nil {
			return err
		}
		if e.At.After(h.since) {
			h.mixed = append(h.mixed, n)
		}
	}
	return nil
}

// firstLaterThan returns the first number of an entry that is later than t, or comes
// after one that is.
func (h *history) firstLaterThan(t time.Time) (int64, error) {
	var failed error
	i := sort.Search(int(h.tally.entries), func(i int) bool {
		_, latest, err := h.entry(int64(i) + 1)
		failed = firstOf(failed, err)
		return latest.After(t)
	})
	return int64(i) + 1, failed
}

// total returns how many entries are live.
func (h *history) total() int { return int(h.tally.entries-h.live) + 1 + len(h.mixed) }

// page returns the live entries on a page, newest first.
func (h *history) page(p core.Page) ([]core.Entry, error) {
	var list []core.Entry
	for i := p.Offset(); i < h.total() && len(list) < p.Size; i++ {
		e, _, err := h.entry(h.number(i))
		if err != nil {
			return nil, err
		}
		if e.At.After(h.since) { // else it has expired meanwhile
			list = append(list, e)
		}
	}
	return list, nil
}

// number returns the number of the entry that has i live ones after it.
func (h *history) number(i int) int64 {
	if n := h.tally.entries - int64(i); n >= h.live {
		return n
	}
	return h.mixed[h.total()-1-i]
}
