package badgerstore

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// The indexes of the numbers of a day. A key has only the first two numbers.
const (
	dayAllowed = iota
	dayDenied
	daySharedDenied
	daySharedAllowed
	dayNumbers
)

// dayNumbersStored is the count of numbers in days.now. The number daySharedAllowed of a user's last day is in the
// counter: see windowNumber.
const dayNumbersStored = daySharedAllowed

// windowNumber returns the index of the number that counts the usage of the counter itself. For the last day, this number
// is core.Counter.Today.
func windowNumber(kind uint32) int {
	if kind == kindKey {
		return dayAllowed
	}
	return daySharedAllowed
}

// dayNumbersOf returns the count of numbers that a day of a key or user has.
func dayNumbersOf(kind uint32) int {
	if kind == kindKey {
		return dayDenied + 1
	}
	return dayNumbers
}

// days has the numbers of a key or user that are neither in the windows of the counter nor in the archive.
type days struct {
	now   [dayNumbersStored]core.WindowUsage // for each number: the last day on which the number is not 0
	ended *endedDays                         // days that have ended; nil without any
}

// endedDays are days that the next checkpoint writes to the archive.
type endedDays struct {
	list         []dayNumber
	archiveStale bool // the days in the archive do not count: the counter was deleted, or an import replaces them
}

// dayNumber is one number of one day.
type dayNumber struct {
	date   core.Date
	number uint8
	used   int64
}

// same reports whether other is the same number of the same day.
func (d dayNumber) same(other dayNumber) bool {
	return d.date == other.date && d.number == other.number
}

// traffic returns the number as traffic of all requests, or of the shared requests only.
func (d dayNumber) traffic(shared bool) (t core.Traffic) {
	switch {
	case d.number == dayAllowed && !shared, d.number == daySharedAllowed && shared:
		t.Allowed = d.used
	case d.number == dayDenied && !shared, d.number == daySharedDenied && shared:
		t.Denied = d.used
	}
	return t
}

// nonZero returns a bit set: bit n is set when number n is not 0.
func (d *days) nonZero() (bits uint64) {
	if d == nil {
		return 0
	}
	for n, w := range d.now {
		if w != (core.WindowUsage{}) {
			bits |= 1 << n
		}
	}
	return bits
}

// cloneEnded returns a copy of the days to archive, nil without any.
func (d *days) cloneEnded() *endedDays {
	if d == nil || d.ended == nil {
		return nil
	}
	return &endedDays{slices.Clone(d.ended.list), d.ended.archiveStale}
}

// clone returns a deep copy.
func (d *days) clone() *days {
	if d == nil {
		return nil
	}
	return &days{d.now, d.cloneEnded()}
}

// ended returns the days to archive. The caller may change the result.
func (t *counterState) ended() *endedDays {
	if t.days == nil {
		t.days = new(days)
	}
	if t.days.ended == nil {
		t.days.ended = new(endedDays)
	}
	return t.days.ended
}

// countDay adds a request to the days of its key or user. It does not add the usage of the counter itself, which is in the
// windows: see endWindowDay.
func (t *counterState) countDay(kind uint32, shared, denied bool, cost int64, at time.Time) {
	switch {
	case denied:
		t.addDay(dayDenied, cost, at)
		if shared && kind == kindUser {
			t.addDay(daySharedDenied, cost, at)
		}
	case kind == kindUser:
		t.addDay(dayAllowed, cost, at)
	}
}

func (t *counterState) addDay(number int, cost int64, at time.Time) {
	if t.days == nil {
		t.days = new(days)
	}
	now := &t.days.now[number]
	before := *now
	now.AddDay(cost, at)
	t.endDay(number, before, *now)
}

// endWindowDay adds the old value of core.Counter.Day to the days to archive, if the counter has begun another day.
// before is the old value.
func (t *counterState) endWindowDay(kind uint32, before core.WindowUsage) {
	t.endDay(windowNumber(kind), before, t.Day())
}

// endDay adds the old value of a number to the days to archive, if the new value belongs to another day.
func (t *counterState) endDay(number int, from, to core.WindowUsage) {
	if from.Start == to.Start || from == (core.WindowUsage{}) || from.Date() == to.Date() {
		return
	}
	ended, value := t.ended(), dayNumber{from.Date(), uint8(number), from.Used}
	if i := slices.IndexFunc(ended.list, value.same); i >= 0 { // the number went back to this day in between
		ended.list[i] = value
		return
	}
	ended.list = append(ended.list, value)
}

// setDayNumber sets the last day of a number of a day.
func (t *counterState) setDayNumber(number int, w core.WindowUsage) {
	if t.days == nil {
		t.days = new(days)
	}
	t.days.now[number] = w
}

// dropArchived removes from the days to archive the values that a checkpoint has archived.
func (t *counterState) dropArchived(days *endedDays) {
	if days == nil || t.days == nil || t.days.ended == nil {
		return
	}
	ended := t.days.ended
	ended.list = slices.DeleteFunc(ended.list, func(d dayNumber) bool { return slices.Contains(days.list, d) })
	ended.archiveStale = ended.archiveStale && !days.archiveStale
	if len(ended.list) == 0 && !ended.archiveStale {
		t.days.ended = nil
	}
	if t.days.ended == nil && t.days.nonZero() == 0 {
		t.days = nil
	}
}

// eachDay calls fn with each number that the archive lacks or has with an older value.
func (t *counterState) eachDay(kind uint32, fn func(dayNumber)) {
	var now [dayNumbers]core.WindowUsage
	if t.days != nil {
		copy(now[:], t.days.now[:])
	}
	now[windowNumber(kind)] = t.Day()
	for n, w := range now {
		if w != (core.WindowUsage{}) {
			fn(dayNumber{w.Date(), uint8(n), w.Used})
		}
	}
	if t.days == nil || t.days.ended == nil {
		return
	}
	for _, d := range t.days.ended.list {
		if w := now[d.number]; w == (core.WindowUsage{}) || w.Date() != d.date { // otherwise now has the newer value of the same day
			fn(d)
		}
	}
}

// setDays replaces all days with a list, oldest first. It leaves out all but the last core.DaysKept of them. A day that a wrong
// clock has put into the future thus leaves the others in place.
func (t *counterState) setDays(kind uint32, list []core.CounterDay) {
	t.days = nil
	t.ended().archiveStale = true
	for _, day := range list[max(0, len(list)-core.DaysKept):] {
		for n, used := range numbersIn(&day)[:dayNumbersOf(kind)] {
			to := core.WindowUsage{Start: day.Date.Start().Unix(), Used: used}
			switch {
			case used == 0:
			case n == windowNumber(kind):
				t.endDay(n, to, core.WindowUsage{})
			default:
				t.endDay(n, t.days.now[n], to)
				t.days.now[n] = to
			}
		}
	}
}

func numbersIn(d *core.CounterDay) []int64 {
	return []int64{dayAllowed: d.Allowed, dayDenied: d.Denied, daySharedDenied: d.Shared.Denied, daySharedAllowed: d.Shared.Allowed}
}

// The archive has the days that have ended. One record has one day of all counters of a page, so that a query for many
// keys or users reads few records. The first checkpoint after a day ends writes the day's numbers, in the transaction
// that writes the page. Until then the numbers follow from the page and the events after it. Writing a day twice is
// harmless.
//
//	slot                           1 byte
//	allowed, denied                uvarints
//	shared denied, shared allowed  uvarints, only of users
//
// Deleting a key or user does not delete its days, because that would write hundreds of records. Readers skip these
// days while the page has the record of the deleted counter. The transaction that clears this record also removes the
// days, even if the number is in use again.

// archiveTime is how long a day stays in the archive: see [Store.sweep].
const archiveTime = core.DaysKept*24*time.Hour + keptLonger

// archivePath returns the path of a day of a page. The paths of a page sort by date.
func archivePath(page ref, date core.Date) path {
	return archivePrefix(page).number(int64(date) - math.MinInt32)
}

// archivePrefix returns the common prefix of the paths of all days of a page.
func archivePrefix(page ref) path {
	return append(at(kindDay).number(int64(page.account)), byte(page.kind)).number(page.number)
}

// dateIn returns the date at the end of a path of the archive.
func dateIn(p path) core.Date {
	return core.Date(int64(binary.BigEndian.Uint64(p[len(p)-8:])) + math.MinInt32)
}

// archivedDay has the numbers of one day for all counters of a page.
type archivedDay struct{ slots [pageSlots][dayNumbers]int64 }

// decode decodes a day. The counters of the page have the kind.
func (a *archivedDay) decode(record []byte, kind uint32) error {
	*a = archivedDay{}
	for r := (decoder{record}); len(r.rest) > 0; {
		slot := r.rest[0]
		r.skip(1, true)
		if slot >= pageSlots {
			return errRecord
		}
		for n := range dayNumbersOf(kind) {
			a.slots[slot][n] = int64(r.uvarint())
		}
		if r.failed() {
			return errRecord
		}
	}
	return nil
}

// encode returns the record of a day, nil when all numbers are 0.
func (a *archivedDay) encode(kind uint32) (b []byte) {
	for slot := range a.slots {
		numbers := a.slots[slot][:dayNumbersOf(kind)]
		if a.slots[slot] != [dayNumbers]int64{} {
			b = append(b, byte(slot))
			for _, n := range numbers {
				b = binary.AppendUvarint(b, uint64(n))
			}
		}
	}
	return b
}

// maxSingleReads is the number of days at which an iterator becomes faster than one read for each day.
const maxSingleReads = 8

// eachArchived calls fn with the days of a page from the first to the last, in order. fn must not keep its argument.
func (r snapshot) eachArchived(page ref, first, last core.Date, fn func(core.Date, *archivedDay)) error {
	var a archivedDay
	if int64(last)-int64(first) < maxSingleReads {
		for n := range core.Date(int64(last) - int64(first) + 1) {
			found, err := r.archived(page, first+n, &a)
			if err != nil {
				return err
			}
			if found {
				fn(first+n, &a)
			}
		}
		return nil
	}
	return r.eachFrom(archivePrefix(page), archivePath(page, first), func(p path, record []byte) (bool, error) {
		date := dateIn(p)
		if date > last {
			return false, nil
		}
		if err := a.decode(record, page.kind); err != nil {
			return false, err
		}
		fn(date, &a)
		return true, nil
	})
}

// archived reads a day of a page, and reports whether the archive has the day.
func (r snapshot) archived(page ref, date core.Date, a *archivedDay) (found bool, err error) {
	err = r.view(archivePath(page, date), func(record []byte) error { return a.decode(record, page.kind) })
	if errors.Is(err, badger.ErrKeyNotFound) {
		return false, nil
	}
	return err == nil, err
}

// archiveUpdate is a set of changes to the archive of a page.
type archiveUpdate struct {
	page       ref
	clearSlots uint64 // the slots whose days are removed, before put is written
	put        []slotDay
}

// slotDay is one number of one day of the counter in a slot.
type slotDay struct {
	slot byte
	dayNumber
}

// add adds the days of a counter.
func (a *archiveUpdate) add(slot byte, days *endedDays) {
	if days == nil {
		return
	}
	if days.archiveStale {
		a.clearSlots |= 1 << slot
	}
	for _, d := range days.list {
		a.put = append(a.put, slotDay{slot, d})
	}
}

// maxArchived is the largest number of bytes of the archive in one transaction of the database. All days of one page can
// exceed the limit of one Badger transaction.
const maxArchived = 256 << 10

// write changes the archive, and returns the number of bytes that it has written. done is false when days are left:
// then the caller commits the transaction, and calls write again in another one.
func (a *archiveUpdate) write(txn *table.Txn) (size int, done bool, err error) {
	r := snapshot{txn.Txn}
	before, after := map[core.Date]archivedDay{}, map[core.Date]*archivedDay{}
	if a.clearSlots != 0 {
		err := r.eachArchived(a.page, math.MinInt32, math.MaxInt32, func(date core.Date, day *archivedDay) {
			before[date], after[date] = *day, new(*day)
			after[date].clearSlots(a.clearSlots)
		})
		if err != nil {
			return 0, false, err
		}
	}
	for _, d := range a.put {
		day := after[d.date]
		if day == nil {
			day = &archivedDay{}
			if _, err := r.archived(a.page, d.date, day); err != nil {
				return 0, false, err
			}
			before[d.date], after[d.date] = *day, day
		}
		day.slots[d.slot][d.number] = d.used
	}
	for date, day := range after {
		if *day == before[date] {
			continue
		}
		if size > maxArchived {
			return size, false, nil
		}
		p, record := archivePath(a.page, date), day.encode(a.page.kind)
		size += len(p) + len(record)
		if record == nil {
			err = txn.Delete(p)
		} else {
			err = txn.Set(p, record)
		}
		if err != nil {
			return 0, false, err
		}
	}
	return size, true, nil
}

// clearSlots sets the numbers in slots to 0.
func (a *archivedDay) clearSlots(slots uint64) {
	for slot := range a.slots {
		if slots&(1<<slot) != 0 {
			a.slots[slot] = [dayNumbers]int64{}
		}
	}
}
