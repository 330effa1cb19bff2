package badgerstore

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// slots are some of the counters of a page.
type slots struct {
	page   ref
	mask   uint64 // which ones
	shared bool   // what their users' counters decided is asked for, not everything
}

// of returns the counter in a slot.
func (p *slots) of(slot byte) ref {
	return ref{p.page.number<<pageBits | int64(slot), p.page.account, p.page.kind}
}

// slotsOf returns where counters are, of numbers in ascending order.
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

// Days implements [core.Store]. What is added up is read a page of counters at a time.
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

// eachDay calls fn with every number of every counter that is asked for, from the first day
// to the last.
func (s *Store) eachDay(ctx context.Context, of core.DaysFilter, first, last core.Date, fn func(d dayNumber, shared bool)) error {
	return s.eachSlots(ctx, of, func(p *slots) error { return s.eachDayOn(p, first, last, fn) })
}

// PlanTotals implements [core.Store].
func (s *Store) PlanTotals(ctx context.Context, account, plan string, p core.Period, at time.Time, n int) (d core.PlanTotals, err error) {
	err = s.eachSlots(ctx, core.DaysFilter{Account: account, PlanID: plan}, func(sl *slots) error {
		add := func(slot byte, t *tally) {
			id, seq := core.CounterID{Account: account}, int64(0)
			if number := sl.of(slot).number; sl.page.kind == kindKey {
				seq = number
			} else {
				id.UserID = number
			}
			d.Add(n, id, seq, t.Usage(p, at))
		}
		heads, absent := s.inMemory(sl, add)
		return s.viewCounters(func(r snapshot) error { return s.onPage(r, sl, absent, heads, add) })
	})
	if err == nil {
		err = s.nameKeys(account, &d)
	}
	if err != nil {
		return core.PlanTotals{}, err
	}
	return d, nil
}

// nameKeys fills in the ids of keys, and leaves out those that are gone by now.
func (s *Store) nameKeys(account string, d *core.PlanTotals) error {
	return s.read(account, func(r snapshot) error {
		named := d.Top[:0]
		for _, u := range d.Top {
			if u.Seq != 0 {
				k, err := found[core.Key](r, keyPath(account, u.Seq), core.ErrKeyNotFound)
				if errors.Is(err, core.ErrKeyNotFound) {
					continue
				}
				if err != nil {
					return err
				}
				u.KeyID = k.ID
			}
			named = append(named, u)
		}
		d.Top = named
		return nil
	})
}

// eachSlots calls fn with the counters that are asked for, a page at a time.
func (s *Store) eachSlots(ctx context.Context, of core.DaysFilter, fn func(*slots) error) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	var all []slots
	err := s.readEntered(of.Account, func(r snapshot) (err error) {
		all, err = r.slotsWith(of)
		return err
	})
	if err != nil {
		return err
	}
	for i := range all {
		if err := ctx.Err(); err != nil { // nobody waits for it any more
			return err
		}
		if err := fn(&all[i]); err != nil {
			return fault(err)
		}
	}
	return nil
}

// slotsWith returns the counters that are asked for.
func (r snapshot) slotsWith(of core.DaysFilter) ([]slots, error) {
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
		users, err := r.members(allUsers(of.Account))
		return slotsOf(uint32(account), kindUser, users, false), err
	}
	keys, err := r.members(keyIndex(of.Account, core.KeyFilter{PlanID: &of.PlanID}))
	if err != nil {
		return nil, err
	}
	users, err := r.members(usersWithPlan(of.Account, of.PlanID))
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

// standing is how the counters of a page stand, beside the archive.
type standing struct {
	days     []slotDay
	archived uint64 // the slots of which the archive has days
}

func (st *standing) add(slot byte, kind uint32, t *tally) {
	if t.days == nil || t.days.over == nil || !t.days.over.archiveStale {
		st.archived |= 1 << slot
	}
	t.eachDay(kind, func(d dayNumber) { st.days = append(st.days, slotDay{slot, d}) })
}

// eachDayOn calls fn with the numbers of the counters on a page. The page and the archive
// are read after it was seen which counters are in memory, and where the events of the
// others end: what is folded meanwhile is there.
func (s *Store) eachDayOn(p *slots, first, last core.Date, fn func(d dayNumber, shared bool)) error {
	var st standing
	add := func(slot byte, t *tally) { st.add(slot, p.page.kind, t) }
	heads, absent := s.inMemory(p, add)
	return s.viewCounters(func(r snapshot) error {
		if err := s.onPage(r, p, absent, heads, add); err != nil {
			return err
		}
		for _, d := range st.days {
			if first <= d.date && d.date <= last {
				fn(d.dayNumber, p.shared)
			}
		}
		return r.eachArchived(p.page, first, last, func(date core.Date, a *archivedDay) {
			for _, d := range st.days { // is newer
				if d.date == date {
					a.slots[d.slot][d.number] = 0
				}
			}
			for mask := st.archived; mask != 0; mask &= mask - 1 {
				for n, used := range a.slots[bits.TrailingZeros64(mask)][:numbersOf(p.page.kind)] {
					if used > 0 {
						fn(dayNumber{date, uint8(n), used}, p.shared)
					}
				}
			}
		})
	})
}

// inMemory calls fn with the counters that are in memory, and returns which ones are not,
// and where their events end. fn does not keep them.
func (s *Store) inMemory(p *slots, fn func(slot byte, t *tally)) (heads map[byte]int64, absent uint64) {
	heads = map[byte]int64{}
	sh := s.counters.shard(p.of(0))
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for mask := p.mask; mask != 0; mask &= mask - 1 {
		slot := byte(bits.TrailingZeros64(mask))
		c := sh.peekLocked(p.of(slot))
		for c != nil && c.busy != nil {
			busy := c.busy
			sh.mu.Unlock()
			<-busy
			sh.mu.Lock()
			c = sh.peekLocked(p.of(slot))
		}
		if c != nil {
			fn(slot, &c.tally)
			continue
		}
		absent |= 1 << slot
		if h := sh.unfolded[p.of(slot)]; h.position != 0 {
			heads[slot] = h.position
		}
	}
	return heads, absent
}

// onPage calls fn with the counters in some slots of a page, with the events that the page
// has not got.
func (s *Store) onPage(r snapshot, p *slots, mask uint64, heads map[byte]int64, fn func(slot byte, t *tally)) error {
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
		t, err := decodeTally(pg[slot])
		if err == nil {
			err = s.catchUp(&t, p.of(slot), heads[slot])
		}
		if err != nil {
			return err
		}
		fn(slot, &t)
	}
	return nil
}
