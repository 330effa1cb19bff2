package service

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/limitkeeper/limitkeeper/core"
)

// LimitedCounter is the usage of a counter with the plan that limits the counter.
type LimitedCounter struct {
	Plan              *core.Plan
	core.CounterUsage                   // of the first limit
	Limits            []core.LimitUsage // of all limits, the primary one first; a list of near limits has only the primary one
}

// Fullest returns the limit with the highest share that is used; of several, the first.
func (c *LimitedCounter) Fullest() core.LimitUsage {
	return slices.MaxFunc(c.Limits, func(a, b core.LimitUsage) int { return cmp.Compare(a.Share(), b.Share()) })
}

// usedShare returns the highest share of a limit that is used. It is 1 or more if nothing is left.
func (c *LimitedCounter) usedShare() float64 {
	fullest := c.Fullest()
	return fullest.Share()
}

// NearLimit is a counter in the list of [Service.NearLimits], with its owner. The counter
// belongs to a key with a plan of its own, or to a user, whose keys share the counter.
type NearLimit struct {
	LimitedCounter
	User *core.User
	Key  *core.Key // nil for the counter of a user
}

// NearLimits returns the n counters of an account that have used the highest share of their primary limit,
// highest first. Counters without usage are left out, and counters that were deleted or got another plan meanwhile. It reads the counters
// of all keys and users, and is a large query: an account runs one at a time.
func (s *Service) NearLimits(ctx context.Context, account string, n int) (list []NearLimit, err error) {
	var top []LimitedCounter
	at, plans := s.now(), func(p core.Page) ([]*core.Plan, int, error) { return s.store.Plans(ctx, account, p) }
	read := func(plans []*core.Plan) error {
		ofPlans, err := s.topCounters(ctx, account, plans, at, n)
		top = append(top, ofPlans...)
		slices.SortStableFunc(top, func(a, b LimitedCounter) int { return cmp.Compare(b.usedShare(), a.usedShare()) })
		top = top[:min(len(top), n)]
		return err
	}
	if err := s.runQuery(ctx, account, wholeAccount, func() error { return core.EachPage(ctx, core.ReadSize, plans, read) }); err != nil {
		return nil, err
	}
	for _, c := range top {
		near, current, err := s.ownerOf(ctx, c)
		switch {
		case errors.Is(err, core.ErrUserNotFound), errors.Is(err, core.ErrKeyNotFound): // deleted just now
		case err != nil:
			return nil, err
		case current:
			list = append(list, near)
		}
	}
	slices.SortStableFunc(list, func(a, b NearLimit) int { return cmp.Compare(b.usedShare(), a.usedShare()) }) // ownerOf applies overrides, which change shares
	return list, nil
}

// ownerOf looks up the key and the user of a counter, and reports whether its plan still limits it.
func (s *Service) ownerOf(ctx context.Context, c LimitedCounter) (n NearLimit, current bool, err error) {
	n = NearLimit{LimitedCounter: c}
	user, plan := c.UserID, ""
	if c.KeyID != "" {
		if n.Key, err = s.store.Key(ctx, c.Account, c.KeyID); err != nil {
			return n, false, err
		}
		user, plan = n.Key.UserID, n.Key.PlanID
	}
	if n.User, err = s.store.User(ctx, c.Account, user); err != nil {
		return n, false, err
	}
	if n.Key == nil {
		plan = n.User.PlanID
	}
	terms := termsOf(c.Plan, n.User, n.Key, s.now())
	n.Limits = []core.LimitUsage{{Limit: terms.LimitAt(0), Of: terms.OriginAt(0), Usage: c.Usage}}
	return n, plan == c.Plan.ID, nil
}

// plansAtOnce is the number of concurrent calls of [core.Store.PlanTotals]: most of their time waits for
// the store.
const plansAtOnce = 16

// topCounters returns the n counters with the highest usage of each plan.
func (s *Service) topCounters(ctx context.Context, account string, plans []*core.Plan, at time.Time, n int) (
	list []LimitedCounter, err error,
) {
	anchored, err := s.anchoredCounters(ctx, account)
	if err != nil {
		return nil, err
	}
	all := make([]core.PlanTotals, len(plans))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(plansAtOnce)
	for i, pl := range plans {
		if pl.Primary().Unlimited() {
			continue
		}
		g.Go(func() (err error) {
			if err = ctx.Err(); err == nil { // else the caller is gone
				all[i], err = s.planTotals(ctx, pl, anchored[pl.ID], at, n)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for i, pl := range plans {
		for _, u := range all[i].Top {
			list = append(list, LimitedCounter{pl, u, []core.LimitUsage{{Limit: pl.Primary(), Of: core.OfPlan, Usage: u.Usage}}})
		}
	}
	return list, nil
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

// anchoredCounters returns the counters whose windows do not begin with the calendar, by the plan that limits them.
func (s *Service) anchoredCounters(ctx context.Context, account string) (map[string][]limitedCounter, error) {
	byPlan := map[string][]limitedCounter{}
	add := func(c limitedCounter) {
		if c.plan != "" {
			byPlan[c.plan] = append(byPlan[c.plan], c)
		}
	}
	return byPlan, s.eachUser(ctx, account, core.UserFilter{Anchored: true}, func(u *core.User) error {
		add(limitedCounter{core.CounterID{Account: account, UserID: u.ID}, 0, u.PlanID, u.Anchors, nil})
		return s.eachKey(ctx, account, core.KeyFilter{UserID: u.ID}, func(k *core.Key) error {
			add(limitedCounter{core.CounterID{Account: account, KeyID: k.ID}, k.Seq, k.PlanID, u.Anchors, k})
			return nil
		})
	})
}

// planTotals is [core.Store.PlanTotals] for the period of a plan, with the windows of the anchored counters of the plan.
func (s *Service) planTotals(ctx context.Context, pl *core.Plan, anchored []limitedCounter, at time.Time, n int) (core.PlanTotals, error) {
	d, err := s.store.PlanTotals(ctx, pl.AccountID, pl.ID, pl.Period, at, n+len(anchored))
	for part := range slices.Chunk(anchored, core.ReadSize) {
		var counters []core.Counter
		if err == nil {
			counters, err = countersOf(s.counters(ctx), part, limitedCounter.id)
		}
		for i := range counters {
			a := part[i]
			d.Used -= counters[i].Usage(core.MeterRequests, pl.Period, nil, at).Used // as the store has counted it
			d.Top = slices.DeleteFunc(d.Top, func(u core.CounterUsage) bool { return u.CounterID == a.CounterID })
			d.Add(n+len(anchored), a.CounterID, a.seq, counters[i].Usage(core.MeterRequests, pl.Period, a.anchors, at))
		}
	}
	d.Used, d.Top = max(0, d.Used), d.Top[:min(n, len(d.Top))]
	return d, err
}

// countersOf returns the counters of the items of a list.
func countersOf[T any](read func([]core.CounterID) ([]core.Counter, error), list []T, id func(T) core.CounterID) ([]core.Counter, error) {
	ids := make([]core.CounterID, len(list))
	for i, item := range list {
		ids[i] = id(item)
	}
	return read(ids)
}

// counters returns a function that reads counters of the store.
func (s *Service) counters(ctx context.Context) func([]core.CounterID) ([]core.Counter, error) {
	return func(ids []core.CounterID) ([]core.Counter, error) { return s.store.Counters(ctx, ids) }
}
