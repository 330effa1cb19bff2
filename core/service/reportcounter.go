package service

import (
	"context"
	"fmt"

	"github.com/limitkeeper/limitkeeper/core"
)

// The bounds of what a report reads at once.
const (
	reportDays  = 16_000 // days of all counters together: 500 counters for a month
	reportUsers = 64     // users whose keys are read together
	reportKeys  = 100    // keys of each of these users. If a user has more, its keys are read separately
)

// ofUsers adds the rows of some users and their keys.
func (r *report) ofUsers(users []*core.User) error {
	return eachCounters(r, users, func(u *core.User) (core.CounterID, core.Date) {
		_, from := r.limits(u, nil)
		return core.CounterID{Account: r.account, UserID: u.ID}, from
	}, func(users []*core.User, days [][]core.CounterDay) error {
		for len(users) > 0 {
			n := min(reportUsers, len(users))
			if err := r.ofUserBatch(users[:n], days[:n]); err != nil {
				return err
			}
			users, days = users[n:], days[n:]
		}
		return nil
	})
}

// userKey is a key, and the index of its user in a slice of users.
type userKey struct {
	*core.Key
	user int
}

// ofUserBatch adds the rows of at most reportUsers users and their keys. It reads the days of all keys together, because keys that were created together
// are stored together.
func (r *report) ofUserBatch(users []*core.User, days [][]core.CounterDay) error {
	keys, many, err := r.firstKeys(users)
	if err != nil {
		return err
	}
	current := -1 // the index of the user whose rows are being added
	// advance ends the users before an index, and begins the user with the index. len(users) only ends users.
	advance := func(to int) error {
		for current < to {
			if current >= 0 {
				if err := r.endUser(users[current]); err != nil {
					return err
				}
			}
			if current++; current == len(users) {
				return nil
			}
			r.beginUser(users[current], days[current])
			if many[current] {
				if err := r.ofManyKeys(users[current]); err != nil {
					return err
				}
			}
		}
		return nil
	}
	err = r.ofKeys(users, keys, advance)
	if err != nil {
		return err
	}
	return advance(len(users))
}

// needsKeys reports whether the report reads keys.
func (r *report) needsKeys() bool { return r.q.Key || r.q.Plan || r.exceeds }

// firstKeys returns the needed keys of users that have at most reportKeys keys. many reports which users have more: their keys are left out.
func (r *report) firstKeys(users []*core.User) (keys []userKey, many []bool, err error) {
	many = make([]bool, len(users))
	if !r.needsKeys() {
		return nil, many, nil
	}
	lists := make([][]*core.Key, len(users))
	err = r.read(func() error {
		return r.s.eachAtOnce(r.ctx, len(users), func(ctx context.Context, i int) error {
			list, total, err := r.s.store.Keys(ctx, r.account, core.KeyFilter{UserID: users[i].ID}, core.Page{Number: 1, Size: reportKeys})
			if many[i] = total > len(list); !many[i] {
				lists[i] = list
			}
			return err
		})
	})
	for i, list := range lists {
		keys = append(keys, r.needed(list, users[i], i)...)
	}
	return keys, many, err
}

// needed returns the keys of a user whose days the report needs. With rows for keys, these are all keys. Otherwise, the days of the user include the keys
// that share its plan, so these are the keys with a plan of their own. Without rows for plans, these are the keys that can have an overage.
func (r *report) needed(keys []*core.Key, u *core.User, user int) (list []userKey) {
	for _, k := range keys {
		switch {
		case r.q.Key:
		case k.PlanID == "":
			continue
		case !r.q.Plan:
			if limits, _ := r.limits(u, k); len(limits) == 0 {
				continue
			}
		}
		list = append(list, userKey{k, user})
	}
	return list
}

// ofManyKeys adds the rows of the keys of a user with more than reportKeys keys, a page at a time.
func (r *report) ofManyKeys(u *core.User) error {
	page := func(p core.Page) (list []*core.Key, total int, err error) {
		err = r.read(func() error {
			list, total, err = r.s.store.Keys(r.ctx, r.account, core.KeyFilter{UserID: u.ID}, p)
			return err
		})
		return list, total, err
	}
	return eachOnce(r, page, func(k *core.Key) int64 { return k.Seq }, func(keys []*core.Key) error {
		return r.ofKeys([]*core.User{u}, r.needed(keys, u, 0), func(int) error { return nil })
	})
}

// ofKeys adds the rows of some keys. Before each key, it calls begin with the index of its user.
func (r *report) ofKeys(users []*core.User, keys []userKey, begin func(user int) error) error {
	return eachCounters(r, keys, func(k userKey) (core.CounterID, core.Date) {
		_, from := r.limits(users[k.user], k.Key)
		return core.CounterID{Account: r.account, KeyID: k.ID}, from
	}, func(keys []userKey, days [][]core.CounterDay) error {
		for i, k := range keys {
			if err := begin(k.user); err != nil {
				return err
			}
			if err := r.ofKey(users[k.user], k.Key, days[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// beginUser adds the days of the counter of a user to r.rest.
func (r *report) beginUser(u *core.User, days []core.CounterDay) {
	r.rest.add(&r.q, u.PlanID, days, 1)
	if limits, _ := r.limits(u, nil); len(limits) > 0 {
		r.rest.addOverage(&r.q, u.PlanID, totalsOf(days, true), limits, u.Anchors)
	}
}

// endUser adds the rows of a user, after the rows of its keys.
func (r *report) endUser(u *core.User) error {
	if err := r.checkRest(); err != nil {
		return err
	}
	if !r.q.User {
		return nil
	}
	return r.flush(u, nil, r.rest)
}

// checkRest returns an error if r.rest has more than reportGroups groups. r.rest grows until all keys of a user, or all users, are read.
func (r *report) checkRest() error {
	if len(r.rest) <= reportGroups {
		return nil
	}
	of, to := "the whole account", "group by user, or by fewer members"
	if r.q.User {
		of, to = "one user", "group by fewer members, or ask for fewer days"
	}
	return core.Invalid("group_by", fmt.Sprintf("The report has more than %d rows for %s: %s", reportGroups, of, to))
}

// ofKey adds the rows of a key of a user.
func (r *report) ofKey(u *core.User, k *core.Key, days []core.CounterDay) error {
	plan, into := u.PlanID, r.rest
	if k.PlanID != "" {
		plan = k.PlanID
	} else {
		leaveOutAdjusted(days)
	}
	if r.q.Key {
		into = r.keyRows
	}
	if r.q.Key || r.q.Plan {
		r.rest.add(&r.q, u.PlanID, days, -1)
		into.add(&r.q, plan, days, 1)
	}
	if limits, _ := r.limits(u, k); k.PlanID != "" && len(limits) > 0 {
		into.addOverage(&r.q, plan, totalsOf(days, false), limits, u.Anchors)
	}
	if !r.q.Key {
		return r.checkRest()
	}
	return r.flush(u, k, into)
}

// leaveOutAdjusted removes the adjustments from the days of a key that shares the counter of its user. These adjustments change the own limits of the key.
func leaveOutAdjusted(days []core.CounterDay) {
	for i := range days {
		for j := range days[i].Meters {
			days[i].Meters[j].Adjusted = 0
		}
	}
}

// totalsOf returns the traffic of days. With shared, it returns only the Shared traffic.
func totalsOf(days []core.CounterDay, shared bool) []core.DayTotals {
	list := make([]core.DayTotals, len(days))
	for i := range days {
		list[i] = days[i].Totals(shared)
	}
	return list
}

// eachCounters calls fn with successive parts of a list, and with the days of the counter of each item. of returns the counter of an item, and the first
// day to read. A part has at most core.ReadSize items and reportDays days, or one item.
func eachCounters[T any](r *report, list []T, of func(T) (core.CounterID, core.Date), fn func([]T, [][]core.CounterDay) error) error {
	for len(list) > 0 {
		var ids []core.CounterID
		from := r.q.First
		for _, item := range list {
			id, first := of(item)
			if first = min(first, from); len(ids) > 0 && (len(ids)+1)*int(r.q.Last-first+1) > reportDays || len(ids) == core.ReadSize {
				break
			}
			ids, from = append(ids, id), first
		}
		days, err := r.days(ids, from)
		if err != nil {
			return err
		}
		if err := fn(list[:len(ids)], days); err != nil {
			return err
		}
		list = list[len(ids):]
	}
	return nil
}
