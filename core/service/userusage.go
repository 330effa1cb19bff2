package service

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// MaxUserCounters is the largest number of counters that [UserUsage] lists.
const MaxUserCounters = 100

// UserUsage is the usage of the counters of a user.
type UserUsage struct {
	User *core.User

	// The sums over the counters that decide for the user's keys. A user without keys has the numbers of its own counter, once that has counted.
	Used  int64
	Limit int64    // at most math.MaxInt64, which is Unlimited
	Plans []string // names without duplicates, in the order of the keys

	// Counters lists at most [MaxUserCounters] counters of the user, highest share of the limit
	// first: the shared counter, if the user has a plan, and the counter of each key with a plan of
	// its own. Ties: the shared counter first, then the older key.
	Counters []LimitedCounter
	Total    int // the number of counters, listed or not

	Shared bool // at least one key has no plan of its own: the shared counter decides for it
}

// PlanNames returns the names of the plans, joined by ", ".
func (u *UserUsage) PlanNames() string { return strings.Join(u.Plans, ", ") }

// add counts a counter, and lists it if its share of the limit is among the highest.
func (u *UserUsage) add(c LimitedCounter) {
	u.Total++
	i, _ := slices.BinarySearchFunc(u.Counters, c, func(a, b LimitedCounter) int {
		return cmp.Or(cmp.Compare(b.usedShare(), a.usedShare()), cmp.Compare(a.Seq, b.Seq))
	})
	if i < MaxUserCounters {
		u.Counters = slices.Insert(u.Counters, i, c)
		u.Counters = u.Counters[:min(len(u.Counters), MaxUserCounters)]
	}
}

// UserUsage returns the usage of a user. It reads the counters of all keys of the user. Above 1,000
// of them it is a large query: an account runs one at a time, see [ErrTooManyRequests].
func (s *Service) UserUsage(ctx context.Context, account string, id int64) (u *UserUsage, err error) {
	_, keys, err := s.store.Keys(ctx, account, core.KeyFilter{UserID: id}, core.Page{Number: 1, Size: 1})
	if err != nil {
		return nil, err
	}
	err = s.runQuery(ctx, account, keys, func() error {
		return s.store.View(ctx, account, func(v core.View) error {
			u, err = s.userUsage(ctx, v, account, id)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	list := make([]forecastInput, len(u.Counters))
	for i := range u.Counters {
		c := &u.Counters[i]
		list[i] = forecastInput{c.CounterID, c.CounterID, c.Limits}
	}
	all, err := s.forecasts(ctx, list)
	for i := range all {
		u.Counters[i].ExhaustsAt = all[i]
	}
	return u, err
}

func (s *Service) userUsage(ctx context.Context, v core.View, account string, id int64) (*UserUsage, error) {
	u, err := v.User(id)
	if err != nil {
		return nil, err
	}
	r := userUsageReader{view: v, at: s.now(), plans: map[string]*core.Plan{}, usage: &UserUsage{User: u}}
	shared := limitedCounter{CounterID: core.CounterID{Account: account, UserID: id}, plan: u.PlanID, anchors: u.Anchors}
	list := func(p core.Page) ([]*core.Key, int, error) {
		return v.Keys(core.KeyFilter{UserID: id}, p)
	}
	err = core.EachPage(ctx, core.ReadSize, list, func(keys []*core.Key) error {
		var counters []limitedCounter
		for _, k := range keys {
			if k.PlanID != "" {
				counters = append(counters, limitedCounter{core.CounterID{Account: account, KeyID: k.ID}, k.Seq, k.PlanID, u.Anchors, k})
			} else if !r.usage.Shared {
				r.usage.Shared = true
				counters = append(counters, shared)
			}
		}
		return r.read(counters, func(*core.Counter) bool { return true })
	})
	if err == nil && !r.usage.Shared && u.PlanID != "" {
		err = r.read([]limitedCounter{shared}, func(c *core.Counter) bool { return r.usage.Total == 0 && c.At != 0 })
	}
	return r.usage, err
}

// limitedCounter is a counter of a user, or of one of its keys, and the plan that limits it.
type limitedCounter struct {
	core.CounterID
	seq     int64 // of the key; 0 for the counter of the user
	plan    string
	anchors core.Anchors // of the user
	key     *core.Key    // nil for the counter of the user
}

func (c limitedCounter) id() core.CounterID { return c.CounterID }

// userUsageReader adds counters of a user to its usage.
type userUsageReader struct {
	view  core.View
	at    time.Time
	plans map[string]*core.Plan
	usage *UserUsage
}

// read adds counters to the list, and those for which inSums returns true to the sums.
func (r *userUsageReader) read(of []limitedCounter, inSums func(*core.Counter) bool) error {
	cs, err := countersOf(r.view.Counters, of, limitedCounter.id)
	if err != nil {
		return err
	}
	for i, of := range of {
		sums := inSums(&cs[i])
		pl, known := r.plans[of.plan]
		if !known {
			if pl, err = r.view.Plan(of.plan); err != nil {
				return err
			}
			r.plans[of.plan] = pl
			if sums {
				r.usage.Plans = append(r.usage.Plans, pl.Name)
			}
		}
		terms := termsOf(pl, r.usage.User, of.key, r.at)
		limits := terms.Usages(&cs[i], &cs[i], of.anchors, r.at)
		r.usage.add(LimitedCounter{Plan: pl, CounterUsage: core.CounterUsage{CounterID: of.CounterID, Seq: of.seq, Usage: limits[0].Usage}, Limits: limits})
		if sums {
			r.usage.Used = core.AddSaturating(r.usage.Used, cs[i].Usage(core.MeterRequests, pl.Period, of.anchors, r.at).Used)
			if terms.Limit == core.Unlimited {
				r.usage.Limit = core.Unlimited
			}
			r.usage.Limit = core.AddSaturating(r.usage.Limit, terms.Limit) // Unlimited stays
		}
	}
	return nil
}
