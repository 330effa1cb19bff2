package keyimport

import (
	"cmp"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// write writes the rows of the batch: first users and keys, in one transaction, and then the counters of the keys.
func (p *pass) write(claim *service.Claim) error {
	var keys []*core.Key
	if slices.ContainsFunc(p.batch, func(r row) bool { return r.key == nil }) {
		var created map[int]int64
		err := p.s.TransactWith(p.ctx, p.account, claim, func(b *service.Transaction) (err error) {
			keys, created, err = p.create(b)
			return err
		})
		if err != nil {
			return err
		}
		for i, id := range created {
			p.users.list[i].id = id
		}
	}
	return p.setOwn(keys)
}

// create creates the users and the keys of the batch. It returns the key of each row, nil for a key that the account had, and
// the ids of the new users, by index.
func (p *pass) create(b *service.Transaction) (keys []*core.Key, created map[int]int64, err error) {
	prefixes := slices.Concat(p.forms.accepted, p.report.KeyPrefixes)
	keys, created = make([]*core.Key, len(p.batch)), map[int]int64{}
	for i := range p.batch {
		r := &p.batch[i]
		if r.key != nil {
			continue
		}
		user := cmp.Or(p.users.list[r.user].id, created[r.user])
		if user == 0 {
			u, err := b.CreateUser(r.userPatch())
			if err != nil {
				return nil, nil, err
			}
			user, created[r.user] = u.ID, u.ID
		}
		patch := r.patch
		patch.UserID = &user
		if r.plan != nil {
			patch.PlanID = core.Some(r.plan.ID)
		}
		if r.value != "" {
			patch.Hint = secrets.HintOf(r.value, prefixes...)
		}
		if keys[i], _, err = b.CreateKey(patch); err != nil {
			return nil, nil, err
		}
	}
	return keys, created, nil
}

// setOwn sets the counters of the keys of the batch that have a plan of their own. A key that the account had gets its
// usage only if its counter has never counted: an earlier import was then interrupted.
func (p *pass) setOwn(created []*core.Key) error {
	var ids []core.CounterID
	var rows []*row
	for i := range p.batch {
		r := &p.batch[i]
		if r.used == 0 || r.plan == nil {
			continue
		}
		k := r.key
		if k == nil {
			k = created[i]
		}
		ids, rows = append(ids, core.CounterID{Account: p.account, KeyID: k.ID}), append(rows, r)
	}
	return p.set(ids, func(i int, c *core.Counter) bool {
		return (rows[i].key == nil || c.At == 0) && addUsed(c, rows[i].used, rows[i].plan, p.s.Now().Unix())
	})
}

// setShared sets the counters of the users whose keys have no plan of their own, to the sum of their rows. A counter that
// has counted before stays as it is. Without writes it only counts them.
func (p *pass) setShared() error {
	var ids []core.CounterID
	var shared []*user
	for i := range p.users.list {
		if u := &p.users.list[i]; u.used > 0 && u.id != 0 {
			ids, shared = append(ids, core.CounterID{Account: p.account, UserID: u.id}), append(shared, u)
		}
	}
	return p.set(ids, func(i int, c *core.Counter) bool {
		u := shared[i]
		if c.At == 0 {
			return addUsed(c, min(u.used, core.MaxLimit), p.plans.byID[u.plan], p.s.Now().Unix())
		}
		if u.imported {
			p.report.UsedKept++
		}
		return false
	})
}

// set runs fn on counters, and stores those for which fn returns true in a pass that writes. It adds their number to the
// report.
func (p *pass) set(ids []core.CounterID, fn func(i int, c *core.Counter) bool) error {
	for first := 0; first < len(ids); first += batchRows {
		part := ids[first:min(first+batchRows, len(ids))]
		counters, err := p.store.Counters(p.ctx, part)
		if err != nil {
			return err
		}
		var changed []core.CounterID
		var to []core.Counter
		for i := range counters {
			if fn(first+i, &counters[i]) {
				changed, to = append(changed, part[i]), append(to, counters[i])
			}
		}
		p.report.Used += len(changed)
		if p.writes && len(changed) > 0 {
			if err := p.store.SetCounters(p.ctx, changed, to); err != nil {
				return err
			}
		}
	}
	return nil
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
	for i := range terms.Limits() {
		if l := terms.LimitAt(i); l.Meter == core.MeterRequests && l.Max != core.Unlimited {
			return l.Period, true
		}
	}
	return 0, false
}
