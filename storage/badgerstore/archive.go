package badgerstore

import (
	"cmp"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// The archive has the days and the hours that have ended. One record has one day, or one hour, of all counters of a page, so that a query for many
// keys or users reads few records. The hours of a page come after its days. The first checkpoint after a day ends writes the day's numbers, in the
// transaction that writes the page. Until then the numbers follow from the page and the events after it. Writing a day twice is
// harmless. An hour is archived in the same way.
//
//	if a counter has numbers of meters:
//	  archiveNames  1 byte
//	  names         of the meters: their number, a uvarint, and texts
//	for each counter:
//	  cell          1 byte, plus cellMeters if numbers of meters follow
//	  numbers       of the cost of requests: uvarints of a day, varints of an hour, in the order of package record; a key has only the first two
//	  with cellMeters: the number of numbers, a uvarint; for each, the index of its name, its index in package record and its value: uvarints, varint
//
// Deleting a key or user does not delete its days, because that would write hundreds of records. Readers skip these
// days while the page has the record of the deleted counter. The transaction that clears this record also removes the
// days, even if the number is in use again.

// How long a day and an hour stay in the archive: see [Store.sweep].
const (
	archiveTime     = core.DaysKept*24*time.Hour + keptLonger
	archiveHourTime = core.HoursKept*time.Hour + keptLonger
)

// expired reports whether the archive no longer keeps a day or an hour.
func expired(date core.Date, now time.Time) bool {
	if date.IsHour() {
		return date < core.HourOf(now.Add(-archiveHourTime))
	}
	return date < core.DateOf(now.Add(-archiveTime))
}

// archivePath returns the path of a day or hour of a page. The paths of a page sort by date.
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

// archivedDay has the numbers of one day or hour for all counters of a page.
type archivedDay struct {
	fixed  [pageCells][record.DayNumbers]int64
	meters []cellMeter // sorted, without numbers that are 0
}

// cellMeter is a number of a meter of the counter in a cell.
type cellMeter struct {
	cell byte
	kind dayKind // with the meter
	used int64
}

func (m cellMeter) compare(other cellMeter) int {
	return cmp.Or(cmp.Compare(m.cell, other.cell), strings.Compare(m.kind.meter(), other.kind.meter()), cmp.Compare(m.kind, other.kind))
}

// same reports whether two days have the same numbers.
func (a *archivedDay) same(other *archivedDay) bool {
	return a.fixed == other.fixed && slices.Equal(a.meters, other.meters)
}

// clone returns a copy.
func (a *archivedDay) clone() archivedDay { return archivedDay{a.fixed, slices.Clone(a.meters)} }

// number returns a number of a counter.
func (a *archivedDay) number(cell byte, kind dayKind) int64 {
	if kind.fixed() {
		return a.fixed[cell][kind.index()]
	}
	if i, found := slices.BinarySearchFunc(a.meters, cellMeter{cell: cell, kind: kind}, cellMeter.compare); found {
		return a.meters[i].used
	}
	return 0
}

// set sets a number of a counter.
func (a *archivedDay) set(cell byte, kind dayKind, used int64) {
	if kind.fixed() {
		a.fixed[cell][kind.index()] = used
		return
	}
	m := cellMeter{cell, kind, used}
	i, found := slices.BinarySearchFunc(a.meters, m, cellMeter.compare)
	switch {
	case found && used == 0:
		a.meters = slices.Delete(a.meters, i, i+1)
	case found:
		a.meters[i] = m
	case used != 0:
		a.meters = slices.Insert(a.meters, i, m)
	}
}

// clear removes the numbers of a counter.
func (a *archivedDay) clear(cell byte) {
	a.fixed[cell] = [record.DayNumbers]int64{}
	a.meters = slices.DeleteFunc(a.meters, func(m cellMeter) bool { return m.cell == cell })
}

// Values of the first byte of a part of an archived day.
const (
	archiveNames = 0xff // the names of meters follow
	cellMeters   = 0x80 // added to a cell: numbers of meters follow its other numbers
)

// decode decodes a day or hour. The counters of the page have the kind.
func (a *archivedDay) decode(b []byte, kind uint32, date core.Date) error {
	*a = archivedDay{meters: a.meters[:0]}
	var names []dayKind // the first kind of each meter
	for r := newDecoder(b); !r.Ended(); {
		first := byte(r.Uint(1))
		if first == archiveNames {
			for n := r.Uvarint(); n > 0 && !r.Failed(); n-- {
				names = append(names, kindOfMeter(r.Text(), 0)|hourMark(date))
			}
			continue
		}
		cell := first &^ cellMeters
		if cell >= pageCells {
			return errRecord
		}
		for n := range dayNumbersOf(kind) {
			if date.IsHour() {
				a.fixed[cell][n] = r.Varint()
			} else {
				a.fixed[cell][n] = int64(r.Uvarint())
			}
		}
		if first&cellMeters != 0 {
			for n := r.Uvarint(); n > 0 && !r.Failed(); n-- {
				name, number, used := r.Uvarint(), r.Uvarint(), r.Varint()
				if name >= uint64(len(names)) || number >= record.DayMeterNumbers {
					return errRecord
				}
				a.meters = append(a.meters, cellMeter{cell, names[name] | dayKind(number), used})
			}
		}
		if r.Failed() {
			return errRecord
		}
	}
	return nil
}

// encode returns the record of a day or hour, nil when all numbers are 0.
func (a *archivedDay) encode(kind uint32, date core.Date) (b []byte) {
	places := map[string]uint64{}
	var names []byte
	for _, m := range a.meters {
		if name := m.kind.meter(); !hasPlace(places, name) {
			places[name] = uint64(len(places))
			names = record.AppendText(names, name)
		}
	}
	if len(names) > 0 {
		b = append(binary.AppendUvarint([]byte{archiveNames}, uint64(len(places))), names...)
	}
	rest := a.meters
	for cell := range a.fixed {
		n := 0
		for n < len(rest) && int(rest[n].cell) == cell {
			n++
		}
		if n == 0 && a.fixed[cell] == [record.DayNumbers]int64{} {
			continue
		}
		b = append(b, byte(cell)|cellMeters*flagByte(n > 0))
		for _, used := range a.fixed[cell][:dayNumbersOf(kind)] {
			if date.IsHour() {
				b = binary.AppendVarint(b, used)
			} else {
				b = binary.AppendUvarint(b, uint64(used))
			}
		}
		if n > 0 {
			b = binary.AppendUvarint(b, uint64(n))
		}
		for _, m := range rest[:n] {
			b = binary.AppendUvarint(binary.AppendUvarint(b, places[m.kind.meter()]), uint64(m.kind.index()))
			b = binary.AppendVarint(b, m.used)
		}
		rest = rest[n:]
	}
	return b
}

func hasPlace(places map[string]uint64, name string) bool {
	_, has := places[name]
	return has
}

// maxSingleReads is the number of days, or hours, at which an iterator becomes faster than one read for each day.
const maxSingleReads = 8

// eachArchived calls fn with the days and hours of a page from the first to the last, in order. fn must not keep its argument.
func (r view) eachArchived(page ref, first, last core.Date, fn func(core.Date, *archivedDay)) error {
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
	return r.eachFrom(archivePrefix(page), archivePath(page, first), func(p path, value []byte) (bool, error) {
		date := dateIn(p)
		if date > last {
			return false, nil
		}
		if err := a.decode(value, page.kind, date); err != nil {
			return false, err
		}
		fn(date, &a)
		return true, nil
	})
}

// archived reads a day or hour of a page, and reports whether the archive has that day or hour.
func (r view) archived(page ref, date core.Date, a *archivedDay) (found bool, err error) {
	err = r.read(archivePath(page, date), func(value []byte) error { return a.decode(value, page.kind, date) })
	if errors.Is(err, badger.ErrKeyNotFound) {
		return false, nil
	}
	return err == nil, err
}

// archiveUpdate is a set of changes to the archive of a page.
type archiveUpdate struct {
	page       ref
	clearCells uint64 // the cells whose days are removed, before put is written
	put        []cellDay
}

// cellDay is one number of one day of the counter in a cell.
type cellDay struct {
	cell byte
	dayNumber
}

// add adds the days of a counter.
func (a *archiveUpdate) add(cell byte, days endedDays) {
	if days.archiveStale {
		a.clearCells |= 1 << cell
	}
	for _, d := range days.list {
		a.put = append(a.put, cellDay{cell, d})
	}
}

// maxArchived is the largest number of bytes of the archive in one transaction of the database. All days of one page can
// exceed the limit of one Badger transaction.
const maxArchived = 256 << 10

// write changes the archive, and returns the number of bytes that it has written. done is false when days are left:
// then the caller commits the transaction, and calls write again in another one. The changes of days are written once, in the
// last transaction, which also writes the page.
func (a *archiveUpdate) write(txn *badger.Txn) (size int, done bool, err error) {
	isChange := func(d cellDay) bool { return d.number.change() }
	numbers := slices.DeleteFunc(slices.Clone(a.put), isChange)
	if size, done, err = a.writeNumbers(txn, numbers, a.clearCells, maxArchived); !done || err != nil || len(numbers) == len(a.put) {
		return size, done, err
	}
	changes := slices.DeleteFunc(slices.Clone(a.put), func(d cellDay) bool { return !isChange(d) })
	for i, d := range changes {
		var day archivedDay
		if _, err := (view{txn}).archived(a.page, d.date, &day); err != nil {
			return 0, false, err
		}
		changes[i].number = d.number &^ dayChange
		changes[i].used = d.number.bound(day.number(d.cell, changes[i].number) + d.used)
	}
	_, _, err = a.writeNumbers(txn, changes, 0, math.MaxInt)
	return size, true, err
}

// writeNumbers writes numbers of days, and removes the days of some cells before. done is false when days beyond most bytes are left.
func (a *archiveUpdate) writeNumbers(txn *badger.Txn, numbers []cellDay, clearCells uint64, most int) (size int, done bool, err error) {
	r := view{txn}
	type change struct{ before, after archivedDay }
	changes := map[core.Date]*change{}
	if clearCells != 0 {
		err := r.eachArchived(a.page, math.MinInt32, math.MaxInt32, func(date core.Date, day *archivedDay) {
			changes[date] = &change{day.clone(), day.clone()}
			for cell := range byte(pageCells) {
				if clearCells&(1<<cell) != 0 {
					changes[date].after.clear(cell)
				}
			}
		})
		if err != nil {
			return 0, false, err
		}
	}
	for _, d := range numbers {
		c := changes[d.date]
		if c == nil {
			c = new(change)
			if _, err := r.archived(a.page, d.date, &c.before); err != nil {
				return 0, false, err
			}
			c.after, changes[d.date] = c.before.clone(), c
		}
		c.after.set(d.cell, d.number, d.used)
	}
	for date, c := range changes {
		if c.after.same(&c.before) {
			continue
		}
		if size > most {
			return size, false, nil
		}
		p, value := archivePath(a.page, date), c.after.encode(a.page.kind, date)
		size += len(p) + len(value)
		if err := setOrDelete(txn, p, value); err != nil {
			return 0, false, err
		}
	}
	return size, true, nil
}
