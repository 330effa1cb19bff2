package badgerstore

import (
	"cmp"
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"strings"
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
	err := s.eachCells(ctx, of, func(p *cells) error {
		return s.eachDayOnPage(p, first, last, func(d dayNumber) { d.addTo(&list[d.date-first]) })
	})
	if err == nil && of == (core.DaysFilter{Account: of.Account}) {
		var deleted []core.CounterDay
		deleted, err = s.deletedDays(of.Account, first, last)
		for i := range deleted {
			list[deleted[i].Date-first].Add(new(deleted[i].Totals(false)))
		}
	}
	if err != nil {
		return nil, err
	}
	return list, nil
}

// addTo adds a number to the traffic of its day. It ignores numbers of shared traffic.
func (d dayNumber) addTo(t *core.DayTotals) {
	if !d.number.ofDay() {
		if _, shared := record.IsShared(d.number.index()); !shared {
			var m core.MeterDay
			*record.MeterNumber(&m, d.number.index()) = d.used
			t.AddMeter(d.number.meter(), m.MeterTraffic)
		}
		return
	}
	switch d.number {
	case record.DayAllowed:
		t.Allowed = core.AddSaturating(t.Allowed, d.used)
	case record.DayDenied:
		t.Denied = core.AddSaturating(t.Denied, d.used)
	}
}

// listedDays is the initial capacity of a list of days, enough for a month.
const listedDays = 32

// setIn sets a number in a sorted list of days. It is fast for the last day of the list and for later days, which most numbers belong to.
func (d dayNumber) setIn(list *[]core.CounterDay) {
	i, found := len(*list)-1, true
	switch {
	case i < 0:
		*list, i = append(make([]core.CounterDay, 0, listedDays), core.CounterDay{Date: d.date}), 0
	case (*list)[i].Date < d.date:
		*list, i = append(*list, core.CounterDay{Date: d.date}), i+1
	case (*list)[i].Date > d.date:
		if i, found = slices.BinarySearchFunc(*list, d.date, func(c core.CounterDay, date core.Date) int { return cmp.Compare(c.Date, date) }); !found {
			*list = slices.Insert(*list, i, core.CounterDay{Date: d.date})
		}
	}
	day := &(*list)[i]
	if d.number.ofDay() {
		*record.DayNumber(day, int(d.number)) = d.used
		return
	}
	name := d.number.meter()
	j := len(day.Meters) - 1
	if j < 0 || day.Meters[j].Meter != name {
		if j, found = slices.BinarySearchFunc(day.Meters, name, func(m core.MeterDay, name string) int { return strings.Compare(m.Meter, name) }); !found {
			day.Meters = slices.Insert(day.Meters, j, core.MeterDay{Meter: name})
		}
	}
	*record.MeterNumber(&day.Meters[j], d.number.index()) = d.used
}

// CounterDays implements [core.Importer].
func (s *Store) CounterDays(ctx context.Context, id core.CounterID) ([]core.CounterDay, error) {
	lists, err := s.DaysOf(ctx, []core.CounterID{id}, math.MinInt32, math.MaxInt32)
	if err != nil {
		return nil, err
	}
	return lists[0], nil
}

// DaysOf implements [core.Store].
func (s *Store) DaysOf(_ context.Context, ids []core.CounterID, first, last core.Date) ([][]core.CounterDay, error) {
	if len(ids) == 1 && ids[0].IsDeletedUsers() {
		list, err := s.deletedDays(ids[0].Account, first, last)
		return [][]core.CounterDay{list}, err
	}
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	lists, err := s.daysOfEntered(ids, first, last)
	return lists, fault(err)
}

// daysOfEntered is DaysOf for a caller that has called enter. It reads one page of counters at a time.
func (s *Store) daysOfEntered(ids []core.CounterID, first, last core.Date) ([][]core.CounterDay, error) {
	refs, err := s.refsOf(ids)
	if err != nil {
		return nil, err
	}
	type placed struct {
		cells
		at [pageCells]int // the place of each counter in ids
	}
	byPage := map[ref]*placed{}
	for i, of := range refs {
		if of.number == 0 {
			continue
		}
		p := byPage[of.page()]
		if p == nil {
			p = &placed{cells: cells{page: of.page()}}
			byPage[of.page()] = p
		}
		p.mask |= 1 << of.cell()
		p.at[of.cell()] = i
	}
	lists := make([][]core.CounterDay, len(ids))
	for _, p := range byPage {
		err := s.eachDayInCells(&p.cells, first, last, func(cell byte, d dayNumber) {
			if d.used != 0 {
				d.setIn(&lists[p.at[cell]])
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return lists, nil
}

// PlanUsed implements [core.Store].
func (s *Store) PlanUsed(ctx context.Context, account, plan string, p core.Period, at time.Time) (used int64, err error) {
	err = s.eachCells(ctx, core.DaysFilter{Account: account, PlanID: plan}, func(on *cells) error {
		return s.eachCounter(on, func(_ byte, t *counterState, _ int64) {
			used = core.AddSaturating(used, t.Usage(core.MeterRequests, p, nil, at).Used)
		}, nil)
	})
	if err != nil {
		return 0, err
	}
	return used, nil
}

// eachCells calls fn with the counters that match a filter, one page at a time.
func (s *Store) eachCells(ctx context.Context, of core.DaysFilter, fn func(*cells) error) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	var all []cells
	err := s.readEntered(func(r view) (err error) {
		all, err = s.cellsFor(r, of)
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
func (s *Store) cellsFor(r view, of core.DaysFilter) ([]cells, error) {
	if of.KeyID != "" || of.UserID != 0 {
		one, err := s.refOf(r, core.CounterID{Account: of.Account, KeyID: of.KeyID, UserID: of.UserID})
		if err != nil || one.number == 0 {
			return nil, err
		}
		return cellsOf(one.account, byte(one.kind), []int64{one.number}, false), nil
	}
	account, err := s.accounts.number(s, of.Account)
	if err != nil || account == 0 {
		return nil, err
	}
	if of.PlanID == "" {
		users, _, err := r.members(setPath(of.Account, resource.UserSet(core.UserFilter{})), 0, math.MaxInt)
		return cellsOf(account, kindUser, users, false), err
	}
	keys, _, err := r.members(setPath(of.Account, resource.KeySet(core.KeyFilter{PlanID: &of.PlanID})), 0, math.MaxInt)
	if err != nil {
		return nil, err
	}
	users, _, err := r.members(setPath(of.Account, resource.UserSet(core.UserFilter{PlanID: of.PlanID})), 0, math.MaxInt)
	return append(cellsOf(account, kindKey, keys, false), cellsOf(account, kindUser, users, true)...), err
}

// eachDayOnPage calls fn with the numbers of the counters on a page. With p.shared it calls fn with the shared numbers only, under the
// indexes of the numbers of the whole traffic.
func (s *Store) eachDayOnPage(p *cells, first, last core.Date, fn func(dayNumber)) error {
	return s.eachDayInCells(p, first, last, func(_ byte, d dayNumber) {
		if !p.shared {
			fn(d)
		} else if whole, shared := record.IsShared(d.number.index()); shared {
			fn(dayNumber{d.date, d.number&^(0xff&^dayMarks) | dayKind(whole), d.used})
		}
	})
}

// eachDayInCells calls emit with each number of the counters on a page, and with the cell of the counter. It reads the archive after the
// counters in memory, so it does not miss days that a checkpoint writes in between.
func (s *Store) eachDayInCells(p *cells, first, last core.Date, emit func(byte, dayNumber)) error {
	for {
		err := s.eachDayOnce(p, first, last, emit)
		if err != errPageNewer {
			return err
		}
		runtime.Gosched() // a checkpoint has just written the page, and is about to mark the counters
	}
}

// errPageNewer means that a checkpoint has added changes of days to the archive after eachDayOnce has read them in memory.
var errPageNewer = errors.New("the page is newer than the counter")

// eachDayOnce is one attempt of eachDayInCells: it may return errPageNewer before the first call of emit.
func (s *Store) eachDayOnce(p *cells, first, last core.Date, emit func(byte, dayNumber)) error {
	newer := map[core.Date][]cellDay{} // numbers newer than the archive
	var archived uint64                // the cells whose days in the archive count
	changed := map[byte]int64{}        // by cell with changes of days in the archive: the position up to which its page has the events
	add := func(cell byte, t *counterState, onPage int64) {
		if !t.archiveStale {
			archived |= 1 << cell
		}
		t.eachDay(p.page.kind, func(d dayNumber) {
			if d.date < first || last < d.date {
				return
			}
			newer[d.date] = append(newer[d.date], cellDay{cell, d})
			if d.number.change() && !t.archiveStale {
				changed[cell] = onPage
			}
		})
	}
	emitDay := func(date core.Date, a *archivedDay) {
		a.update(newer[date])
		for _, n := range *a {
			emit(n.cell, dayNumber{date, n.kind, n.used})
		}
		delete(newer, date)
	}
	return s.eachCounter(p, add, func(r view) error {
		if err := r.notNewer(p.page, changed); err != nil {
			return err
		}
		err := r.eachArchived(p.page, first, last, func(date core.Date, a *archivedDay) {
			*a = slices.DeleteFunc(*a, func(n cellNumber) bool { return archived&(1<<n.cell) == 0 })
			emitDay(date, a)
		})
		for date := range newer {
			if err == nil {
				emitDay(date, new(archivedDay))
			}
		}
		return err
	})
}

// notNewer returns errPageNewer if a page has events of a counter after the position of its cell.
func (r view) notNewer(of ref, positions map[byte]int64) error {
	if len(positions) == 0 {
		return nil
	}
	return r.onPage(of, func(p *page) error {
		for cell, position := range positions {
			if appliedOf(p[cell]) > position {
				return errPageNewer
			}
		}
		return nil
	})
}
