package badgerstore

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// The archive has the days that are over: one record for a day of the counters of a page,
// so that the days of many keys or users, which are mostly asked for together, are few
// records. A number comes there when its counter is folded for the first time after it has
// left the day, in the transaction that writes the page. Until then it follows from the
// page and the events after it, however often these are read; it is written as it is, and
// writing it twice changes nothing.
//
//	slot                  1 byte
//	allowed, denied       uvarints
//	of users beside that  shared denied, shared allowed: uvarints
//
// A key or user that is deleted leaves its days here: that would be hundreds of records
// to write. As long as the page says that a counter was dropped they do not count, and
// the transaction that lets the page forget that removes them, whether the number was
// given again or not.

// archiveTime is how long a day stays in the archive: see [Store.sweep].
const archiveTime = core.DaysKept*24*time.Hour + keptLonger

// archivePath returns the path of a day of a page. Paths sort by it.
func archivePath(page ref, date core.Date) path {
	return archivePrefix(page).number(int64(date) - math.MinInt32)
}

// archivePrefix returns what the paths of all days of a page begin with.
func archivePrefix(page ref) path {
	return append(at(kindDay).number(int64(page.account)), byte(page.kind)).number(page.number)
}

// dateIn returns the date that a path of the archive ends with.
func dateIn(p path) core.Date {
	return core.Date(int64(binary.BigEndian.Uint64(p[len(p)-8:])) + math.MinInt32)
}

// archivedDay is a day of a page.
type archivedDay struct{ slots [pageSlots][dayNumbers]int64 }

// read reads a day of counters of a kind.
func (a *archivedDay) read(item *badger.Item, kind uint32) error {
	*a = archivedDay{}
	return item.Value(func(record []byte) error { return a.decode(record, kind) })
}

func (a *archivedDay) decode(record []byte, kind uint32) error {
	for r := (reading{record}); len(r.rest) > 0; {
		slot := r.rest[0]
		r.skip(1, true)
		if slot >= pageSlots {
			return errRecord
		}
		for n := range numbersOf(kind) {
			a.slots[slot][n] = int64(r.uvarint())
		}
		if r.failed() {
			return errRecord
		}
	}
	return nil
}

// encode returns the record of a day, nil when nothing is in it.
func (a *archivedDay) encode(kind uint32) (b []byte) {
	for slot := range a.slots {
		numbers := a.slots[slot][:numbersOf(kind)]
		if a.slots[slot] != [dayNumbers]int64{} {
			b = append(b, byte(slot))
			for _, n := range numbers {
				b = binary.AppendUvarint(b, uint64(n))
			}
		}
	}
	return b
}

// fewDays are read one by one: beginning to iterate takes as long as that.
const fewDays = 8

// eachArchived calls fn with the days of a page from the first to the last, in order. fn
// does not keep them.
func (r snapshot) eachArchived(page ref, first, last core.Date, fn func(core.Date, *archivedDay)) error {
	var a archivedDay
	if int64(last)-int64(first) < fewDays {
		for n := range core.Date(int64(last) - int64(first) + 1) {
			there, err := r.archived(page, first+n, &a)
			if err != nil {
				return err
			}
			if there {
				fn(first+n, &a)
			}
		}
		return nil
	}
	o := badger.DefaultIteratorOptions
	o.Prefix, o.PrefetchValues = archivePrefix(page), false
	before := table.Unreadable()
	it := r.txn.NewIterator(o)
	defer it.Close()
	for it.Seek(archivePath(page, first)); it.Valid(); it.Next() {
		date := dateIn(it.Item().Key())
		if date > last {
			break
		}
		if err := a.read(it.Item(), page.kind); err != nil {
			return err
		}
		fn(date, &a)
	}
	return table.ErrUnreadable(before)
}

// archived reads a day of a page, if it is there.
func (r snapshot) archived(page ref, date core.Date, a *archivedDay) (there bool, err error) {
	item, err := r.item(archivePath(page, date))
	switch err {
	case nil:
		return true, a.read(item, page.kind)
	case badger.ErrKeyNotFound:
		return false, nil
	}
	return false, err
}

// archiving is what is to be changed in the archive of a page.
type archiving struct {
	page   ref
	forget uint64 // the slots whose days are removed, before others are put
	put    []slotDay
}

// slotDay is a number of a day of the counter in a slot.
type slotDay struct {
	slot byte
	dayNumber
}

// add adds the days of a counter.
func (a *archiving) add(slot byte, days *unarchived) {
	if days == nil {
		return
	}
	if days.archiveStale {
		a.forget |= 1 << slot
	}
	for _, d := range days.list {
		a.put = append(a.put, slotDay{slot, d})
	}
}

// maxArchived is the largest number of bytes of the archive in one transaction of the database. The days of one page, with
// the largest numbers, are more than the database takes at once.
const maxArchived = 256 << 10

// write changes the archive, and returns the number of bytes that it has written. done is false when days are left:
// then the caller commits the transaction, and calls write again in another one.
func (a *archiving) write(txn *table.Txn) (size int, done bool, err error) {
	r := snapshot{txn.Txn}
	before, after := map[core.Date]archivedDay{}, map[core.Date]*archivedDay{}
	if a.forget != 0 {
		err := r.eachArchived(a.page, math.MinInt32, math.MaxInt32, func(date core.Date, day *archivedDay) {
			before[date], after[date] = *day, new(*day)
			after[date].forget(a.forget)
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

// forget removes the numbers in slots.
func (a *archivedDay) forget(slots uint64) {
	for slot := range a.slots {
		if slots&(1<<slot) != 0 {
			a.slots[slot] = [dayNumbers]int64{}
		}
	}
}
