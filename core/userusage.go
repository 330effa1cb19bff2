package core

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"
)

// MaxUserCounters is the largest number of counters that [UserUsage] lists.
const MaxUserCounters = 100

// UserUsage is the usage of the counters of a user.
type UserUsage struct {
	User *User

	// The sums over the counters that decide for the user's keys.
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
	_, keys, err := s.store.Keys(ctx, account, KeyFilter{UserID: id}, Page{1, 1})
	if err != nil {
		return nil, err
	}
	err = s.runQuery(ctx, account, keys, func() error {
		u, err = s.userUsage(ctx, account, id)
		return err
	})
	return u, err
}

func (s *Service) userUsage(ctx context.Context, account string, id int64) (*UserUsage, error) {
	u, err := s.store.User(ctx, account, id)
	if err != nil {
		return nil, err
	}
	r := userUsageReader{s: s, at: s.now(), plans: map[string]*Plan{}, usage: &UserUsage{User: u}}
	err = s.eachKey(ctx, account, KeyFilter{UserID: id}, func(keys []*Key) error {
		r.batch = r.batch[:0]
		for _, k := range keys {
			if k.PlanID != "" {
				r.batch = append(r.batch, limitedCounter{CounterID{Account: account, KeyID: k.ID}, k.Seq, k.PlanID})
			} else if !r.usage.Shared {
				r.usage.Shared = true
				r.batch = append(r.batch, limitedCounter{CounterID{Account: account, UserID: id}, 0, u.PlanID})
			}
		}
		return r.read(ctx, true)
	})
	if err == nil && !r.usage.Shared && u.PlanID != "" {
		r.batch = []limitedCounter{{CounterID{Account: account, UserID: id}, 0, u.PlanID}}
		err = r.read(ctx, false)
	}
	if err != nil {
		return nil, err
	}
	return r.usage, nil
}

// limitedCounter is a counter and the plan that limits it.
type limitedCounter struct {
	CounterID
	seq  int64 // of the key; 0 for the counter of the user
	plan string
}

// userUsageReader reads the counters of a user in batches.
type userUsageReader struct {
	s     *Service
	at    time.Time
	plans map[string]*Plan
	batch []limitedCounter // to read next
	usage *UserUsage
}

// read adds the counters of the batch to the list and, if inSums, to the sums.
func (r *userUsageReader) read(ctx context.Context, inSums bool) error {
	ids := make([]CounterID, len(r.batch))
	for i, c := range r.batch {
		ids[i] = c.CounterID
	}
	cs, err := r.s.store.Counters(ctx, ids)
	if err != nil {
		return err
	}
	for i, of := range r.batch {
		pl, known := r.plans[of.plan]
		if !known {
			if pl, err = r.s.store.Plan(ctx, of.Account, of.plan); err != nil {
				return err
			}
			r.plans[of.plan] = pl
			if inSums {
				r.usage.Plans = append(r.usage.Plans, pl.Name)
			}
		}
		limits := pl.LimitUsages(&cs[i], r.usage.User.Anchors, r.at)
		c := LimitedCounter{pl, CounterUsage{of.CounterID, of.seq, limits[0].Usage}, limits}
		r.usage.add(c)
		if inSums {
			r.usage.Used = addSaturating(r.usage.Used, cs[i].Usage(MeterRequests, pl.Period, r.usage.User.Anchors, r.at).Used)
			if pl.Limit == Unlimited {
				r.usage.Limit = Unlimited
			}
			r.usage.Limit = addSaturating(r.usage.Limit, pl.Limit) // Unlimited stays
		}
	}
	return nil
}
