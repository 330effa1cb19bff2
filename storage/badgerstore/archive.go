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
//	  requests      the numbers of the cost of requests, in the order of package record: uvarints of a day, varints of an hour; a key has only the first two
//	  meters        with cellMeters: the count of their numbers, a uvarint; for each, the index of its meter in names, its index in package record, and its
//	                value: uvarint, uvarint, varint
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

// archivedDay has the numbers of one day or hour for all counters of a page, sorted, without numbers that are 0.
type archivedDay []cellNumber

// cellNumber is a number of the counter in a cell. Its kind has dayHour for an hour, and never dayChange.
type cellNumber struct {
	cell byte
	kind dayKind
	used int64
}

// compare orders numbers as a record has them: by the cell, first the cost of requests, and then by the names of the meters. Other processes have other
// indexes of the same names.
func (n cellNumber) compare(other cellNumber) int {
	switch {
	case n.cell != other.cell:
		return cmp.Compare(n.cell, other.cell)
	case n.kind>>8 == other.kind>>8 || n.kind.fixed() || other.kind.fixed():
		return cmp.Compare(n.kind, other.kind)
	}
	return strings.Compare(n.kind.meter(), other.kind.meter())
}

// number returns a number of a counter, 0 for a missing number.
func (a archivedDay) number(cell byte, kind dayKind) int64 {
	if i, found := slices.BinarySearchFunc(a, cellNumber{cell: cell, kind: kind}, cellNumber.compare); found {
		return a[i].used
	}
	return 0
}

// set sets a number of a counter. It removes the number for 0.
func (a *archivedDay) set(cell byte, kind dayKind, used int64) {
	n := cellNumber{cell, kind, used}
	i, found := slices.BinarySearchFunc(*a, n, cellNumber.compare)
	switch {
	case found && used == 0:
		*a = slices.Delete(*a, i, i+1)
	case found:
		(*a)[i] = n
	case used != 0:
		*a = slices.Insert(*a, i, n)
	}
}

// Values of the first byte of the names, and of each counter, in the record of a day.
const (
	archiveNames = 0xff // the names of meters follow
	cellMeters   = 0x80 // added to a cell: numbers of meters follow its other numbers
)

// decode decodes the record of a day or hour. kind is the kind of the counters. The error is errRecord.
func (a *archivedDay) decode(b []byte, kind uint32, date core.Date) error {
	*a = (*a)[:0]
	var meters []dayKind // the kind of each meter with index 0
	mark := hourMark(date)
	for r := record.NewReader(b); !r.Ended(); {
		first := byte(r.Uint(1))
		if first == archiveNames {
			for n := r.Uvarint(); n > 0 && !r.Failed(); n-- {
				meters = append(meters, kindOfMeter(r.Text(), 0)|mark)
			}
			continue
		}
		cell := first &^ cellMeters
		for n := range dayNumbersOf(kind) {
			used := int64(0)
			if mark != 0 {
				used = r.Varint()
			} else {
				used = int64(r.Uvarint())
			}
			if used != 0 {
				*a = append(*a, cellNumber{cell, mark | dayKind(n), used})
			}
		}
		if first&cellMeters != 0 {
			for n := r.Uvarint(); n > 0 && !r.Failed(); n-- {
				meter, number, used := r.Uvarint(), r.Uvarint(), r.Varint()
				if meter >= uint64(len(meters)) || number >= record.DayMeterNumbers || meters[meter].fixed() {
					return errRecord
				}
				*a = append(*a, cellNumber{cell, meters[meter] | dayKind(number), used})
			}
		}
		if r.Failed() || cell >= pageCells {
			return errRecord
		}
	}
	if !slices.IsSortedFunc(*a, cellNumber.compare) {
		slices.SortFunc(*a, cellNumber.compare)
	}
	return nil
}

// encode returns the record of a day or hour, nil without a number. kind is the kind of the counters.
func (a archivedDay) encode(kind uint32, date core.Date) []byte {
	var meters []string
	var names, b []byte
	for rest := a; len(rest) > 0; {
		cell, fixed, n := rest[0].cell, [record.DayNumbers]int64{}, 0
		for ; n < len(rest) && rest[n].cell == cell && rest[n].kind.fixed(); n++ {
			fixed[rest[n].kind.index()] = rest[n].used
		}
		rest = rest[n:]
		n = 0
		for n < len(rest) && rest[n].cell == cell {
			n++
		}
		b = append(b, cell|cellMeters*flagByte(n > 0))
		for _, used := range fixed[:dayNumbersOf(kind)] {
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
			i := slices.Index(meters, m.kind.meter())
			if i < 0 {
				i, meters = len(meters), append(meters, m.kind.meter())
				names = record.AppendText(names, m.kind.meter())
			}
			b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(i)), uint64(m.kind.index()))
			b = binary.AppendVarint(b, m.used)
		}
		rest = rest[n:]
	}
	if len(meters) > 0 {
		b = slices.Concat(binary.AppendUvarint([]byte{archiveNames}, uint64(len(meters))), names, b)
	}
	return b
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

// archiveUpdate is what one checkpoint changes in the archive of a page.
type archiveUpdate struct {
	page       ref
	clearCells uint64    // the cells whose days are removed, before put is written
	put        []cellDay // numbers that replace those in the archive, and changes of them
}

// cellDay is one number of one day of the counter in a cell.
type cellDay struct {
	cell byte
	dayNumber
}

func (d cellDay) isChange() bool { return d.number.change() }

// update changes the numbers of a day by a list: it first sets numbers, and then adds the changes. All numbers of the list are of the day.
func (a *archivedDay) update(list []cellDay) {
	for _, changes := range []bool{false, true} {
		for _, d := range list {
			if kind := d.number &^ dayChange; d.isChange() && changes {
				a.set(d.cell, kind, kind.bound(a.number(d.cell, kind)+d.used))
			} else if d.isChange() == changes {
				a.set(d.cell, kind, d.used)
			}
		}
	}
}

// add adds the ended days of the counter in a cell.
func (a *archiveUpdate) add(cell byte, days endedDays) {
	if days.archiveStale {
		a.clearCells |= 1 << cell
	}
	for _, d := range days.list {
		a.put = append(a.put, cellDay{cell, d})
	}
}

// maxArchived is the number of bytes of the archive after which write needs another transaction of the database. All days of one page
// can exceed the limit of one Badger transaction.
const maxArchived = 256 << 10

// write changes the archive, and returns the number of bytes that it has written. done is false when days are left:
// then the caller commits the transaction, and calls write again in another one. The days with a dayChange are written once, in the
// last transaction, which also writes the page: a change that is added twice would count twice.
func (a *archiveUpdate) write(txn *badger.Txn) (size int, done bool, err error) {
	r := view{txn}
	type day struct {
		before, after archivedDay
		put           []cellDay
	}
	days := map[core.Date]*day{}
	if a.clearCells != 0 {
		err := r.eachArchived(a.page, math.MinInt32, math.MaxInt32, func(date core.Date, before *archivedDay) {
			cleared := slices.DeleteFunc(slices.Clone(*before), func(n cellNumber) bool { return a.clearCells&(1<<n.cell) != 0 })
			days[date] = &day{before: slices.Clone(*before), after: cleared}
		})
		if err != nil {
			return 0, false, err
		}
	}
	for _, d := range a.put {
		if days[d.date] == nil {
			days[d.date] = new(day)
			if _, err := r.archived(a.page, d.date, &days[d.date].before); err != nil {
				return 0, false, err
			}
			days[d.date].after = slices.Clone(days[d.date].before)
		}
		days[d.date].put = append(days[d.date].put, d)
	}
	for _, last := range []bool{false, true} {
		for date, d := range days {
			if slices.ContainsFunc(d.put, cellDay.isChange) != last {
				continue
			}
			if d.after.update(d.put); slices.Equal(d.after, d.before) {
				continue
			}
			if size > maxArchived && !last {
				return size, false, nil
			}
			p, value := archivePath(a.page, date), d.after.encode(a.page.kind, date)
			size += len(p) + len(value)
			if err := setOrDelete(txn, p, value); err != nil {
				return 0, false, err
			}
		}
	}
	return size, true, nil
}
