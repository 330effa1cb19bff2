package core

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// PlanTotals is the usage of the counters that a plan limits, in one window.
type PlanTotals struct {
	Used int64          // the sum, at most math.MaxInt64
	Top  []CounterUsage // the counters with the highest usage above 0, highest first; ties: users by id, then keys by Seq
}

// CounterUsage is the usage of one counter in one window.
type CounterUsage struct {
	CounterID
	Seq int64 // of the key, 0 for the counter of a user
	Usage
}

// compare orders counters by usage, highest first. Ties: users by id, then keys by Seq.
func (u *CounterUsage) compare(other *CounterUsage) int {
	return cmp.Or(cmp.Compare(other.Used, u.Used), cmp.Compare(u.Seq, other.Seq), cmp.Compare(u.UserID, other.UserID))
}

// Add adds a counter to the sum, and to Top if it is among the n with the highest usage. A counter
// without usage changes nothing.
func (d *PlanTotals) Add(n int, id CounterID, seq int64, u Usage) {
	if u.Used <= 0 {
		return
	}
	d.Used = addSaturating(d.Used, u.Used)
	c := CounterUsage{id, seq, u}
	i, _ := slices.BinarySearchFunc(d.Top, &c, func(has CounterUsage, c *CounterUsage) int { return has.compare(c) })
	if i >= n {
		return
	}
	d.Top = slices.Insert(d.Top, i, c)
	d.Top = d.Top[:min(len(d.Top), n)]
}

// LimitedCounter is the usage of a counter with the plan that limits the counter.
type LimitedCounter struct {
	Plan         *Plan
	CounterUsage              // of the first limit
	Limits       []LimitUsage // of all limits, the primary one first; nil in a list of near limits
}

// Fullest returns the limit with the highest share that is used; of several, the first.
func (c *LimitedCounter) Fullest() LimitUsage {
	return slices.MaxFunc(c.Limits, func(a, b LimitUsage) int { return cmp.Compare(a.share(), b.share()) })
}

// usedShare returns the highest share of a limit that is used. It is 1 or more if nothing is left.
func (c *LimitedCounter) usedShare() (share float64) {
	if c.Limits == nil {
		u := LimitUsage{c.Plan.Primary(), c.Usage}
		return u.share()
	}
	for _, u := range c.Limits {
		share = max(share, u.share())
	}
	return share
}

// NearLimit is a counter in the list of [Service.NearLimits], with its owner and the plan that limits it. The counter
// belongs to a key with a plan of its own, or to a user, whose keys share the counter.
type NearLimit struct {
	User *User
	Key  *Key // nil for the counter of a user
	Plan *Plan
	Usage
}

// Percentage returns the usage in percent of the limit.
func (n *NearLimit) Percentage() float64 {
	u := LimitUsage{n.Plan.Primary(), n.Usage}
	return u.Percentage()
}

// NearLimits returns the n counters of an account that have used the highest share of their limit,
// highest first. Counters without usage are left out. It reads the counters of all keys and users,
// and is a large query: an account runs one at a time.
func (s *Service) NearLimits(ctx context.Context, account string, n int) ([]NearLimit, error) {
	var top []LimitedCounter
	at, list := s.now(), func(p Page) ([]*Plan, int, error) { return s.store.Plans(ctx, account, p) }
	read := func(plans []*Plan) error {
		ofPlans, err := s.topCounters(ctx, account, plans, at, n)
		top = append(top, ofPlans...)
		slices.SortStableFunc(top, func(a, b LimitedCounter) int { return cmp.Compare(b.usedShare(), a.usedShare()) })
		top = top[:min(len(top), n)]
		return err
	}
	if err := s.runQuery(ctx, account, wholeAccount, func() error { return eachPage(ctx, list, read) }); err != nil {
		return nil, err
	}
	return s.nearLimits(ctx, top)
}

// nearLimits looks up the keys and users of counters. It leaves out counters of deleted keys and
// users, and counters that another plan limits by now.
func (s *Service) nearLimits(ctx context.Context, top []LimitedCounter) ([]NearLimit, error) {
	list := make([]NearLimit, 0, len(top))
	for _, d := range top {
		near, err := s.nearLimit(ctx, d)
		switch ErrorCode(err) {
		case CodeUserNotFound, CodeAPIKeyNotFound: // deleted just now
			continue
		}
		if err != nil {
			return nil, err
		}
		if near != nil {
			list = append(list, *near)
		}
	}
	return list, nil
}

// plansAtOnce is the number of concurrent calls of [Store.PlanTotals]: most of their time waits for
// the store.
const plansAtOnce = 16

// topCounters returns the n counters with the highest usage of each plan.
func (s *Service) topCounters(ctx context.Context, account string, plans []*Plan, at time.Time, n int) (
	list []LimitedCounter, err error,
) {
	anchored, err := s.anchoredCounters(ctx, account)
	if err != nil {
		return nil, err
	}
	all := make([]PlanTotals, len(plans))
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
			list = append(list, LimitedCounter{Plan: pl, CounterUsage: u})
		}
	}
	return list, nil
}

// anchoredCounter is a counter of a user with anchors, or of one of its keys.
type anchoredCounter struct {
	CounterID
	seq     int64 // of the key
	anchors Anchors
}

// anchoredCounters returns the counters whose windows do not begin with the calendar, by the plan that limits them.
func (s *Service) anchoredCounters(ctx context.Context, account string) (map[string][]anchoredCounter, error) {
	byPlan := map[string][]anchoredCounter{}
	list := func(p Page) ([]*User, int, error) { return s.store.Users(ctx, account, UserFilter{Anchored: true}, p) }
	err := eachPage(ctx, list, func(users []*User) error {
		for _, u := range users {
			if u.PlanID != "" {
				byPlan[u.PlanID] = append(byPlan[u.PlanID], anchoredCounter{CounterID{Account: account, UserID: u.ID}, 0, u.Anchors})
			}
			err := s.eachKey(ctx, account, KeyFilter{UserID: u.ID}, func(keys []*Key) error {
				for _, k := range keys {
					if k.PlanID != "" {
						byPlan[k.PlanID] = append(byPlan[k.PlanID], anchoredCounter{CounterID{Account: account, KeyID: k.ID}, k.Seq, u.Anchors})
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return byPlan, err
}

// planTotals is [Store.PlanTotals] for the period of a plan, with the windows of the anchored counters of the plan.
func (s *Service) planTotals(ctx context.Context, pl *Plan, anchored []anchoredCounter, at time.Time, n int) (PlanTotals, error) {
	d, err := s.store.PlanTotals(ctx, pl.AccountID, pl.ID, pl.Period, at, n+len(anchored))
	for part := range slices.Chunk(anchored, batchSize) {
		ids := make([]CounterID, len(part))
		for i, a := range part {
			ids[i] = a.CounterID
		}
		var counters []Counter
		if err == nil {
			counters, err = s.store.Counters(ctx, ids)
		}
		for i := range counters {
			d.Used -= counters[i].Usage(MeterRequests, pl.Period, nil, at).Used // as the store has counted it
			d.Top = slices.DeleteFunc(d.Top, func(u CounterUsage) bool { return u.CounterID == ids[i] })
			d.Add(n+len(anchored), ids[i], part[i].seq, counters[i].Usage(MeterRequests, pl.Period, part[i].anchors, at))
		}
	}
	d.Used, d.Top = max(0, d.Used), d.Top[:min(n, len(d.Top))]
	return d, err
}

// nearLimit looks up the key and the user of a counter. It returns nil if another plan limits the
// counter by now.
func (s *Service) nearLimit(ctx context.Context, d LimitedCounter) (n *NearLimit, err error) {
	n = &NearLimit{Plan: d.Plan, Usage: d.Usage}
	user, plan := d.UserID, ""
	if d.KeyID != "" {
		if n.Key, err = s.store.Key(ctx, d.Account, d.KeyID); err != nil {
			return nil, err
		}
		user, plan = n.Key.UserID, n.Key.PlanID
	}
	if n.User, err = s.store.User(ctx, d.Account, user); err != nil {
		return nil, err
	}
	if n.Key == nil {
		plan = n.User.PlanID
	}
	if plan != d.Plan.ID {
		return nil, nil
	}
	return n, nil
}

// maxAdjustmentReason bounds the reason of an adjustment, in bytes.
const maxAdjustmentReason = 200

// checkAdjustment returns an error unless an adjustment is valid. Its meter is one of the account.
func (s *Service) checkAdjustment(ctx context.Context, account string, a *Adjustment) error {
	switch {
	case a.Set && (a.Value < 0 || a.Value > MaxLimit):
		return invalid("set", "Set must be from 0 to 9007199254740991")
	case a.Value < -MaxLimit || a.Value > MaxLimit:
		return invalid("delta", "Delta must be from -9007199254740991 to 9007199254740991")
	case !a.Set && a.Value == 0:
		return invalid("delta", "Delta must not be 0")
	case strings.TrimSpace(a.Reason) == "" || len(a.Reason) > maxAdjustmentReason:
		return invalid("reason", "Reason must be 1 to 200 bytes long")
	case a.Meter == MeterRequests:
		return nil
	}
	meters, err := s.meters.get(ctx, account)
	if err == nil && !(*meters)[a.Meter] {
		err = invalid("meter", "No plan of the account has a limit of this meter: "+sanitize(a.Meter, 64))
	}
	return err
}

// AdjustmentCall is an adjustment with its request id, and the address of the caller.
type AdjustmentCall struct {
	Adjustment
	RequestID string // two adjustments of one key or user with the same id are made once, within RequestIDRetention; "" for none
	IP        string // of the caller, for the history
}

// AdjustKey adjusts the counter that decides for a key: see [KeyUsage]. It returns the usage afterwards, and whether the
// adjustment was made before with the same request id.
func (s *Service) AdjustKey(ctx context.Context, account, id string, a AdjustmentCall) (u *KeyUsage, repeated bool, err error) {
	repeated, err = s.adjust(ctx, account, &a, func() (c Consumption, err error) {
		k, err := s.store.Key(ctx, account, id)
		if err != nil {
			return c, err
		}
		return Consumption{KeyID: id, KeySeq: k.Seq, UserID: k.UserID, Shared: k.PlanID == ""}, nil
	})
	if err == nil {
		u, err = s.KeyUsage(ctx, account, id)
	}
	return u, repeated, err
}

// AdjustUser adjusts the counter of a user, which the keys without a plan of their own share. It returns the usage
// afterwards, and whether the adjustment was made before with the same request id.
func (s *Service) AdjustUser(ctx context.Context, account string, id int64, a AdjustmentCall) (u *UserUsage, repeated bool, err error) {
	repeated, err = s.adjust(ctx, account, &a, func() (Consumption, error) { return Consumption{UserID: id, Shared: true}, nil })
	if err == nil {
		u, err = s.UserUsage(ctx, account, id)
	}
	return u, repeated, err
}

// adjust makes an adjustment. locate returns the deciding counter; it is called again when the key has moved to another user.
func (s *Service) adjust(ctx context.Context, account string, a *AdjustmentCall, locate func() (Consumption, error)) (repeated bool, err error) {
	a.Reason = strings.TrimSpace(a.Reason)
	if err := s.checkAdjustment(ctx, account, &a.Adjustment); err != nil {
		return false, err
	}
	a.Reason = sanitize(a.Reason, maxAdjustmentReason)
	for range maxStaleReads {
		c, err := locate()
		if err != nil {
			return false, err
		}
		u, err := s.store.User(ctx, account, c.UserID)
		if err != nil && c.KeyID == "" {
			return false, err
		}
		if err == nil {
			c.Account, c.Anchors, c.Retention, c.Adjustment = account, u.Anchors, s.retention(), &a.Adjustment
			c.Entry = Entry{At: s.now().UTC().Truncate(historyGranularity), KeyID: c.KeyID, UserID: c.UserID, IP: sanitize(a.IP, MaxEntryAddress)}
			if a.RequestID != "" {
				c.RequestID = adjustmentID + a.RequestID
			}
			var v ConsumeResult
			v, err = s.store.Consume(context.WithoutCancel(ctx), &c)
			repeated = v.FirstTerms != nil
		}
		if c.KeyID == "" || !errors.Is(err, ErrKeyNotFound) && !errors.Is(err, ErrUserNotFound) {
			return repeated, err
		}
	}
	return false, errStaleRead
}

// adjustmentID is the first byte of the request id of an adjustment. Clients cannot send it: checkRequestID refuses control
// characters.
const adjustmentID = "\x00"

// Remaining returns the rest of the limit, at least 0.
func Remaining(used, limit int64) int64 { return max(0, limit-used) }

// Percentage returns used in percent of limit with two decimals, 0 if limit is 0.
func Percentage(used, limit int64) float64 {
	if limit == 0 {
		return 0
	}
	return math.Round(float64(used)/float64(limit)*10000) / 100
}

// addSaturating returns a + b, at most MaxLimit: JSON readers that use 64-bit floating point know no larger whole number exactly, and Redis
// counts no further. Neither is negative. A larger a stays.
func addSaturating(a, b int64) int64 {
	if a > MaxLimit-b {
		return max(a, MaxLimit)
	}
	return a + b
}
