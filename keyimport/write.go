package keyimport

import (
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
)

// write writes the rows of the batch: first users and keys, in one transaction, and then the counters of the keys.
func (p *pass) write(claim *core.Claim) error {
	fresh, prefixes := false, slices.Concat(p.forms.accepted, p.report.KeyPrefixes)
	for i := range p.batch {
		if r := &p.batch[i]; r.key == nil {
			fresh = true
			if r.value != "" {
				r.patch.Hint = core.HintOf(r.value, prefixes...)
			}
		}
	}
	created := map[int]int64{} // the ids of new users, by index
	var keys []*core.Key
	if fresh {
		err := p.s.BatchOf(p.ctx, p.account, claim, func(b *core.Batch) (err error) {
			clear(created)
			keys, err = p.create(b, created)
			return err
		})
		if err != nil {
			return err
		}
	}
	for i, id := range created {
		p.users.list[i].id = id
	}
	return p.setOwn(keys)
}

// create creates the users and the keys of the batch, and returns the key of each row, nil for a key that the account
// had.
func (p *pass) create(b *core.Batch, created map[int]int64) ([]*core.Key, error) {
	keys := make([]*core.Key, len(p.batch))
	for i := range p.batch {
		r := &p.batch[i]
		if r.key != nil {
			continue
		}
		user := p.users.list[r.user].id
		if user == 0 {
			user = created[r.user]
		}
		if user == 0 {
			u, err := b.CreateUser(r.userPatch())
			if err != nil {
				return nil, err
			}
			user, created[r.user] = u.ID, u.ID
		}
		patch := r.patch
		patch.UserID = &user
		if r.plan != nil {
			patch.PlanID = core.Some(r.plan.ID)
		}
		k, _, err := b.CreateKey(patch)
		if err != nil {
			return nil, err
		}
		keys[i] = k
	}
	return keys, nil
}

// setOwn sets the counters of the keys of the batch that have a plan of their own. A key that the account had gets its
// usage only if its counter has never counted: an earlier import was then interrupted.
func (p *pass) setOwn(created []*core.Key) error {
	var ids []core.CounterID
	var rows []*row
	var fresh []bool
	for i := range p.batch {
		r := &p.batch[i]
		if r.used == 0 || r.plan == nil {
			continue
		}
		k := r.key
		if k == nil {
			k = created[i]
		}
		ids, rows, fresh = append(ids, core.CounterID{Account: p.account, KeyID: k.ID}), append(rows, r), append(fresh, r.key == nil)
	}
	n, err := p.set(ids, func(i int, c *core.Counter) bool {
		return (fresh[i] || c.At == 0) && addUsed(c, rows[i].used, rows[i].plan, p.o.Clock().Unix())
	})
	p.report.Used += n
	return err
}

// setShared sets the counters of the users whose keys have no plan of their own, to the sum of their rows. A counter that
// has counted before stays as it is. Without writes it only counts them.
func (p *pass) setShared() error {
	var shared []*user
	for i := range p.users.list {
		if u := &p.users.list[i]; u.used > 0 && u.id != 0 {
			shared = append(shared, u)
		}
	}
	for users := range slices.Chunk(shared, batchRows) {
		ids := make([]core.CounterID, len(users))
		for i, u := range users {
			ids[i] = core.CounterID{Account: p.account, UserID: u.id}
		}
		n, err := p.set(ids, func(i int, c *core.Counter) bool {
			if u := users[i]; c.At == 0 {
				return addUsed(c, min(u.used, core.MaxLimit), p.plans.byID[u.plan], p.o.Clock().Unix())
			} else if u.imported {
				p.report.UsedKept++
			}
			return false
		})
		p.report.Used += n
		if err != nil {
			return err
		}
	}
	return nil
}

// set runs fn on counters, and stores those for which fn returns true in a pass that writes. It returns how many these
// are.
func (p *pass) set(ids []core.CounterID, fn func(i int, c *core.Counter) bool) (int, error) {
	if len(ids) == 0 {
		return 0, nil
	}
	counters, err := p.store.Counters(p.ctx, ids)
	if err != nil {
		return 0, err
	}
	var changed []core.CounterID
	var to []core.Counter
	for i := range counters {
		if fn(i, &counters[i]) {
			changed, to = append(changed, ids[i]), append(to, counters[i])
		}
	}
	if !p.writes || len(changed) == 0 {
		return len(changed), nil
	}
	return len(changed), p.store.SetCounters(p.ctx, changed, to)
}

// addUsed adds the usage in the present window of a plan to a counter: in the period of the plan, and in every longer
// one. So neither the limit of the plan nor a longer limit is exceeded with the usage of the other system. Shorter
// periods stay as they are: the file does not say when in the window the requests were. addUsed returns false for a plan
// without a limit of requests.
func addUsed(c *core.Counter, used int64, plan *core.Plan, now int64) bool {
	if plan == nil {
		return false
	}
	period, limited := primaryPeriod(plan)
	if !limited {
		return false
	}
	periods := core.Periods() // the shortest first
	for _, q := range periods[slices.Index(periods, period):] {
		c.Requests[q] = min(c.Requests[q]+used, core.MaxLimit)
	}
	c.At = max(c.At, now)
	return true
}

// primaryPeriod returns the period of the first limit of requests.
func primaryPeriod(plan *core.Plan) (core.Period, bool) {
	terms := plan.Terms()
	for i := range 1 + len(terms.Further) {
		if l := terms.LimitAt(i); l.Meter == core.MeterRequests && l.Max != core.Unlimited {
			return l.Period, true
		}
	}
	return 0, false
}
