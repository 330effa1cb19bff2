package core

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"
)

// MaxUserCounters is how many counters of a user [UserUsage] lists.
const MaxUserCounters = 100

// UserUsage is the usage of the counters of a user.
type UserUsage struct {
	User *User

	// The sums over the counters that the user's keys draw on.
	Used  int64
	Limit int64    // at most math.MaxInt64
	Plans []string // the name of each plan once, in the order in which the keys came

	// Counters are the counters of the user, at most [MaxUserCounters], the one with the
	// highest share of its limit first: the shared counter, if the user has a plan, and that of
	// each key with a plan of its own. Of equal shares the shared one comes first, and then the
	// older key.
	Counters []PlanCounter
	Total    int // the number of counters, listed or not
}

// PlanCounter is a counter and the plan that limits it.
type PlanCounter struct {
	Plan *Plan
	CounterUsage
}

// share returns the part of the limit that is used. It is 1 or more when nothing is left.
func (c *PlanCounter) share() float64 { return float64(c.Used) / float64(max(c.Plan.Limit, 1)) }

// PlanNames returns the names of the plans joined by ", ", "" without any.
func (u *UserUsage) PlanNames() string { return strings.Join(u.Plans, ", ") }

// add counts a counter, and lists it if it is among the counters with the highest share of
// their limit.
func (u *UserUsage) add(c PlanCounter) {
	u.Total++
	i, _ := slices.BinarySearchFunc(u.Counters, c, func(a, b PlanCounter) int {
		return cmp.Or(cmp.Compare(b.share(), a.share()), cmp.Compare(a.Seq, b.Seq))
	})
	if i < MaxUserCounters {
		u.Counters = slices.Insert(u.Counters, i, c)
		u.Counters = u.Counters[:min(len(u.Counters), MaxUserCounters)]
	}
}

// UserUsage returns the usage of a user. It reads the counters of all keys of the user; when
// there are many, the account runs one such query at a time, see [ErrTooManyRequests].
func (s *Service) UserUsage(ctx context.Context, account string, id int64) (u *UserUsage, err error) {
	_, keys, err := s.store.Keys(ctx, account, KeyFilter{UserID: id}, Page{1, 1})
	if err != nil {
		return nil, err
	}
	err = s.inTurn(ctx, account, keys, func() error {
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
	r := userReading{s: s, at: s.now(), plans: map[string]*Plan{}, usage: &UserUsage{User: u}}
	sharedUsed := false // a key draws on the shared counter
	err = s.eachKey(ctx, account, KeyFilter{UserID: id}, func(keys []*Key) error {
		r.batch = r.batch[:0]
		for _, k := range keys {
			if k.PlanID != "" {
				r.batch = append(r.batch, limitedCounter{CounterID{Account: account, KeyID: k.ID}, k.Seq, k.PlanID})
			} else if !sharedUsed {
				sharedUsed = true
				r.batch = append(r.batch, limitedCounter{CounterID{Account: account, UserID: id}, 0, u.PlanID})
			}
		}
		return r.read(ctx, true)
	})
	if err == nil && !sharedUsed && u.PlanID != "" {
		r.batch = []limitedCounter{{CounterID{Account: account, UserID: id}, 0, u.PlanID}}
		err = r.read(ctx, false)
	}
	if err != nil {
		return nil, err
	}
	return r.usage, nil
}

// limitedCounter names a counter and the plan that limits it.
type limitedCounter struct {
	CounterID
	seq  int64 // of the key; 0: the counter of the user
	plan string
}

// userReading reads the counters of a user a batch at a time.
type userReading struct {
	s     *Service
	at    time.Time
	plans map[string]*Plan
	batch []limitedCounter // to read next
	usage *UserUsage
}

// read adds the counters of the batch to the usage, and if keys draw on them to its sums.
func (r *userReading) read(ctx context.Context, drawn bool) error {
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
			if drawn {
				r.usage.Plans = append(r.usage.Plans, pl.Name)
			}
		}
		c := PlanCounter{pl, CounterUsage{of.CounterID, of.seq, cs[i].Usage(pl.Period, r.at)}}
		r.usage.add(c)
		if drawn {
			r.usage.Used += c.Used
			r.usage.Limit = addLimit(r.usage.Limit, pl.Limit)
		}
	}
	return nil
}
