package badgerstore

import (
	"cmp"
	"context"
	"maps"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// slots are some of the counters of a page.
type slots struct {
	page   ref
	mask   uint64 // a bit for each slot
	shared bool   // sum only the requests that the counters of users have decided
}

// counter returns the counter in a slot.
func (p *slots) counter(slot byte) ref {
	return ref{p.page.number<<pageBits | int64(slot), p.page.account, p.page.kind}
}

// slotsOf returns the pages and slots of counters. The numbers are in ascending order.
func slotsOf(account uint32, kind byte, numbers []int64, shared bool) (list []slots) {
	for _, n := range numbers {
		of := ref{n, account, uint32(kind)}
		if len(list) == 0 || list[len(list)-1].page != of.page() {
			list = append(list, slots{page: of.page(), shared: shared})
		}
		list[len(list)-1].mask |= 1 << of.slot()
	}
	return list
}

// Days implements [core.Store]. It reads one page of counters at a time.
func (s *Store) Days(ctx context.Context, of core.DaysFilter, first, last core.Date) ([]core.DayTotals, error) {
	list := core.NewDays(first, last)
	err := s.eachDay(ctx, of, first, last, func(d dayNumber, shared bool) {
		t := &list[d.date-first].Traffic
		*t = t.Plus(d.traffic(shared))
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// CounterDays implements [core.Importer].
func (s *Store) CounterDays(ctx context.Context, id core.CounterID) ([]core.CounterDay, error) {
	days := map[core.Date]core.CounterDay{}
	of := core.DaysFilter{Account: id.Account, KeyID: id.KeyID, UserID: id.UserID}
	err := s.eachDay(ctx, of, math.MinInt32, math.MaxInt32, func(d dayNumber, _ bool) {
		if d.used > 0 {
			day := days[d.date]
			day.Date = d.date
			day.Traffic = day.Plus(d.traffic(false))
			day.Shared = day.Shared.Plus(d.traffic(true))
			days[d.date] = day
		}
	})
	if err != nil {
		return nil, err
	}
	return slices.SortedFunc(maps.Values(days), func(a, b core.CounterDay) int { return cmp.Compare(a.Date, b.Date) }), nil
}

// eachDay calls fn with each number of each counter that matches a filter, for the days from first to last.
func (s *Store) eachDay(ctx context.Context, of core.DaysFilter, first, last core.Date, fn func(d dayNumber, shared bool)) error {
	return s.eachSlots(ctx, of, func(p *slots) error { return s.eachDayOnPage(p, first, last, fn) })
}

// PlanTotals implements [core.Store].
func (s *Store) PlanTotals(ctx context.Context, account, plan string, p core.Period, at time.Time, n int) (d core.PlanTotals, err error) {
	err = s.eachSlots(ctx, core.DaysFilter{Account: account, PlanID: plan}, func(sl *slots) error {
		add := func(slot byte, t *counterState) {
			id, seq := core.CounterID{Account: account}, int64(0)
			if number := sl.counter(slot).number; sl.page.kind == kindKey {
				seq = number
			} else {
				id.UserID = number
			}
			d.Add(n, id, seq, t.Usage(core.MeterRequests, p, nil, at))
		}
		heads, absent, err := s.eachInMemory(sl, add)
		if err != nil {
			return err
		}
		return s.viewCounters(func(r snapshot) error { return s.eachOnPage(r, sl, absent, heads, add) })
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
	return s.read(account, func(r snapshot) error {
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

// eachSlots calls fn with the counters that match a filter, one page at a time.
func (s *Store) eachSlots(ctx context.Context, of core.DaysFilter, fn func(*slots) error) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	var all []slots
	err := s.readEntered(of.Account, func(r snapshot) (err error) {
		all, err = r.slotsFor(of)
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

// slotsFor returns the counters that match a filter.
func (r snapshot) slotsFor(of core.DaysFilter) ([]slots, error) {
	if of.KeyID != "" || of.UserID != 0 {
		one, err := r.refOf(core.CounterID{Account: of.Account, KeyID: of.KeyID, UserID: of.UserID})
		if err != nil || one.number == 0 {
			return nil, err
		}
		return slotsOf(one.account, byte(one.kind), []int64{one.number}, false), nil
	}
	account, err := r.number(accountIDPath(of.Account))
	if err != nil || account == 0 {
		return nil, err
	}
	if of.PlanID == "" {
		users, err := r.members(setPath(of.Account, resource.UserSet(core.UserFilter{})))
		return slotsOf(uint32(account), kindUser, users, false), err
	}
	keys, err := r.members(setPath(of.Account, resource.KeySet(core.KeyFilter{PlanID: &of.PlanID})))
	if err != nil {
		return nil, err
	}
	users, err := r.members(setPath(of.Account, resource.UserSet(core.UserFilter{PlanID: of.PlanID})))
	return append(slotsOf(uint32(account), kindKey, keys, false), slotsOf(uint32(account), kindUser, users, true)...), err
}

// members returns the numbers in an index.
func (r snapshot) members(base path) ([]int64, error) {
	f, err := r.index(base)
	if err != nil {
		return nil, err
	}
	return f.Page(0, f.Len())
}

// newerDays has the days of the counters of a page that are newer than the archive.
type newerDays struct {
	days     []slotDay
	archived uint64 // the slots whose days in the archive count
}

func (st *newerDays) add(slot byte, kind uint32, t *counterState) {
	if t.days == nil || t.days.ended == nil || !t.days.ended.archiveStale {
		st.archived |= 1 << slot
	}
	t.eachDay(kind, func(d dayNumber) { st.days = append(st.days, slotDay{slot, d}) })
}

// eachDayOnPage calls fn with the numbers of the counters on a page. It reads the page and the archive after the
// counters in memory, so it does not miss days that a checkpoint writes in between.
func (s *Store) eachDayOnPage(p *slots, first, last core.Date, fn func(d dayNumber, shared bool)) error {
	var st newerDays
	add := func(slot byte, t *counterState) { st.add(slot, p.page.kind, t) }
	heads, absent, err := s.eachInMemory(p, add)
	if err != nil {
		return err
	}
	return s.viewCounters(func(r snapshot) error {
		if err := s.eachOnPage(r, p, absent, heads, add); err != nil {
			return err
		}
		for _, d := range st.days {
			if first <= d.date && d.date <= last {
				fn(d.dayNumber, p.shared)
			}
		}
		return r.eachArchived(p.page, first, last, func(date core.Date, a *archivedDay) {
			for _, d := range st.days { // replaces the number in the archive
				if d.date == date {
					a.slots[d.slot][d.number] = 0
				}
			}
			for mask := st.archived; mask != 0; mask &= mask - 1 {
				for n, used := range a.slots[bits.TrailingZeros64(mask)][:dayNumbersOf(p.page.kind)] {
					if used > 0 {
						fn(dayNumber{date, uint8(n), used}, p.shared)
					}
				}
			}
		})
	})
}

// eachInMemory calls fn with the counters that are in memory. fn must not keep its argument. absent has a bit for each
// other slot, and heads has the positions of the last events of these counters, if the page lacks events.
func (s *Store) eachInMemory(p *slots, fn func(slot byte, t *counterState)) (heads map[byte]int64, absent uint64, err error) {
	heads = map[byte]int64{}
	sh := s.counters.shard(p.counter(0))
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for mask := p.mask; mask != 0; mask &= mask - 1 {
		slot := byte(bits.TrailingZeros64(mask))
		c := sh.peekLocked(p.counter(slot))
		for c != nil && c.busy != nil {
			busy := c.busy
			sh.mu.Unlock()
			err := s.await(busy)
			sh.mu.Lock()
			if err != nil {
				return nil, 0, err
			}
			c = sh.peekLocked(p.counter(slot))
		}
		if c != nil {
			fn(slot, &c.counterState)
			continue
		}
		absent |= 1 << slot
		if h := sh.pending[p.counter(slot)]; h.position != 0 {
			heads[slot] = h.position
		}
	}
	return heads, absent, nil
}

// eachOnPage calls fn with the counters in some slots of a page, including the events after the page up to heads.
func (s *Store) eachOnPage(r snapshot, p *slots, mask uint64, heads map[byte]int64, fn func(slot byte, t *counterState)) error {
	if mask == 0 {
		return nil
	}
	record, err := r.get(pagePath(p.page))
	if err == nil && record == nil {
		err = r.noPage(p.page)
	}
	if err != nil {
		return err
	}
	pg, err := decodePage(record)
	if err != nil {
		return err
	}
	for ; mask != 0; mask &= mask - 1 {
		slot := byte(bits.TrailingZeros64(mask))
		t, err := decodeState(pg[slot])
		if err == nil {
			err = s.catchUp(&t, p.counter(slot), heads[slot])
		}
		if err != nil {
			return err
		}
		fn(slot, &t)
	}
	return nil
}
