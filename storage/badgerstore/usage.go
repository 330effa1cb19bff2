package badgerstore

import (
	"context"
	"math"
	"math/bits"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// cells are some of the counters of a page.
type cells struct {
	page   ref
	mask   uint64 // a bit for each cell
	shared bool   // sum only the requests that the counters of users have decided
}

// cellsOf returns the pages and cells of counters. The numbers are in ascending order.
func cellsOf(account uint32, kind byte, numbers []int64, shared bool) (list []cells) {
	for _, n := range numbers {
		of := ref{n, account, uint32(kind)}
		if len(list) == 0 || list[len(list)-1].page != of.page() {
			list = append(list, cells{page: of.page(), shared: shared})
		}
		list[len(list)-1].mask |= 1 << of.cell()
	}
	return list
}

// Days implements [core.Store]. It reads one page of counters at a time.
func (s *Store) Days(ctx context.Context, of core.DaysFilter, first, last core.Date) ([]core.DayTotals, error) {
	list := core.NewDays(first, last)
	err := s.eachDay(ctx, of, first, last, func(d dayNumber) {
		switch t := &list[d.date-first]; d.number {
		case record.DayAllowed:
			t.Allowed = core.AddSaturating(t.Allowed, d.used)
		case record.DayDenied:
			t.Denied = core.AddSaturating(t.Denied, d.used)
		}
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// CounterDays implements [core.Importer].
func (s *Store) CounterDays(ctx context.Context, id core.CounterID) ([]core.CounterDay, error) {
	days := record.Days{}
	of := core.DaysFilter{Account: id.Account, KeyID: id.KeyID, UserID: id.UserID}
	err := s.eachDay(ctx, of, math.MinInt32, math.MaxInt32, func(d dayNumber) { *days.Number(d.date, int(d.number)) = d.used })
	if err != nil {
		return nil, err
	}
	return days.List(), nil
}

// eachDay calls fn with each number of each counter that matches a filter, for the days from first to last.
func (s *Store) eachDay(ctx context.Context, of core.DaysFilter, first, last core.Date, fn func(dayNumber)) error {
	return s.eachCells(ctx, of, func(p *cells) error { return s.eachDayOnPage(p, first, last, fn) })
}

// PlanTotals implements [core.Store].
func (s *Store) PlanTotals(ctx context.Context, account, plan string, p core.Period, at time.Time, n int) (d core.PlanTotals, err error) {
	err = s.eachCells(ctx, core.DaysFilter{Account: account, PlanID: plan}, func(on *cells) error {
		add := func(cell byte, t *counterState) {
			id, seq := core.CounterID{Account: account}, int64(0)
			if number := on.page.counter(cell).number; on.page.kind == kindKey {
				seq = number
			} else {
				id.UserID = number
			}
			d.Add(n, id, seq, t.Usage(core.MeterRequests, p, nil, at))
		}
		return s.eachCounter(on, add, nil)
	})
	if err == nil {
		err = s.nameKeys(account, &d)
	}
	if err != nil {
		return core.PlanTotals{}, err
	}
	return d, nil
}

// nameKeys fills in the ids of keys. It leaves out keys that were deleted since the sums were read.
func (s *Store) nameKeys(account string, d *core.PlanTotals) error {
	return s.read(func(r view) error {
		kept := d.Top[:0]
		for _, u := range d.Top {
			if u.Seq != 0 {
				value, err := r.get(keyPath(account, u.Seq))
				if err != nil {
					return err
				}
				if value == nil {
					continue
				}
				k, err := record.Decode[core.Key](value)
				if err != nil {
					return err
				}
				u.KeyID = k.ID
			}
			kept = append(kept, u)
		}
		d.Top = kept
		return nil
	})
}

// eachCells calls fn with the counters that match a filter, one page at a time.
func (s *Store) eachCells(ctx context.Context, of core.DaysFilter, fn func(*cells) error) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	var all []cells
	err := s.readEntered(func(r view) (err error) {
		all, err = r.cellsFor(of)
		return err
	})
	if err != nil {
		return err
	}
	for i := range all {
		if err := ctx.Err(); err != nil { // the caller no longer waits for the result
			return err
		}
		if err := fn(&all[i]); err != nil {
			return fault(err)
		}
	}
	return nil
}

// cellsFor returns the counters that match a filter.
func (r view) cellsFor(of core.DaysFilter) ([]cells, error) {
	if of.KeyID != "" || of.UserID != 0 {
		one, err := r.refOf(core.CounterID{Account: of.Account, KeyID: of.KeyID, UserID: of.UserID})
		if err != nil || one.number == 0 {
			return nil, err
		}
		return cellsOf(one.account, byte(one.kind), []int64{one.number}, false), nil
	}
	account, err := r.number(accountIDPath(of.Account))
	if err != nil || account == 0 {
		return nil, err
	}
	if of.PlanID == "" {
		users, err := r.members(setPath(of.Account, resource.UserSet(core.UserFilter{})))
		return cellsOf(uint32(account), kindUser, users, false), err
	}
	keys, err := r.members(setPath(of.Account, resource.KeySet(core.KeyFilter{PlanID: &of.PlanID})))
	if err != nil {
		return nil, err
	}
	users, err := r.members(setPath(of.Account, resource.UserSet(core.UserFilter{PlanID: of.PlanID})))
	return append(cellsOf(uint32(account), kindKey, keys, false), cellsOf(uint32(account), kindUser, users, true)...), err
}

// members returns the numbers in an index.
func (r view) members(base path) ([]int64, error) {
	f, err := r.index(base)
	if err != nil {
		return nil, err
	}
	return f.Page(0, f.Len())
}

// eachDayOnPage calls fn with the numbers of the counters on a page. With p.shared it leaves out all but the shared numbers, and gives
// them the indexes of the numbers of all requests. It reads the archive after the counters in memory, so it does
// not miss days that a checkpoint writes in between.
func (s *Store) eachDayOnPage(p *cells, first, last core.Date, fn func(dayNumber)) error {
	emit := fn
	if p.shared {
		emit = func(d dayNumber) {
			if d.number >= record.DaySharedAllowed {
				fn(dayNumber{d.date, d.number - record.DaySharedAllowed, d.used})
			}
		}
	}
	var newer []cellDay // than the archive
	var archived uint64 // the cells whose days in the archive count
	add := func(cell byte, t *counterState) {
		if !t.archiveStale {
			archived |= 1 << cell
		}
		t.eachDay(p.page.kind, func(d dayNumber) { newer = append(newer, cellDay{cell, d}) })
	}
	return s.eachCounter(p, add, func(r view) error {
		for _, d := range newer {
			if first <= d.date && d.date <= last && d.number&dayChange == 0 {
				emit(d.dayNumber)
			}
		}
		inArchive := map[core.Date]bool{}
		err := r.eachArchived(p.page, first, last, func(date core.Date, a *archivedDay) {
			inArchive[date] = true
			for _, d := range newer { // replaces or changes the number in the archive
				switch {
				case d.date != date:
				case d.number&dayChange != 0:
					a[d.cell][d.number&^dayChange] = max(0, a[d.cell][d.number&^dayChange]+d.used)
				default:
					a[d.cell][d.number] = 0
				}
			}
			for mask := archived; mask != 0; mask &= mask - 1 {
				for n, used := range a[bits.TrailingZeros64(mask)][:dayNumbersOf(p.page.kind)] {
					if used > 0 {
						emit(dayNumber{date, uint8(n), used})
					}
				}
			}
		})
		for _, d := range newer {
			if d.number&dayChange != 0 && d.used > 0 && first <= d.date && d.date <= last && !inArchive[d.date] {
				emit(dayNumber{d.date, d.number &^ dayChange, d.used})
			}
		}
		return err
	})
}
