package storetest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/limitkeeper/limitkeeper/core"
)

// errAborted ends transactions that must change nothing.
var errAborted = errors.New("given up")

// step is one call of a transaction. It creates new arguments for each run, so that it can run any
// number of times, on both stores.
type step func(core.Tx) (any, error)

// txPlan collects the steps of one transaction. Each resource is written at most once.
type txPlan struct {
	*machine
	t       *rapid.T
	account string
	reads   []step
	writes  []step
	touched map[string]bool
}

// change runs a transaction and compares its changes in every view of them.
func (m *machine) change(t *rapid.T) {
	d := m.update(t)
	page := core.Page{Number: 1, Size: 100}
	m.bothDigests(t)
	var filters []core.UserFilter
	for _, p := range d.plansNow() {
		filters = append(filters, core.UserFilter{PlanID: p.ID}, core.UserFilter{OnPlan: p.ID})
		for _, status := range []core.KeyStatus{"", core.KeyActive} {
			m.both(t, "Keys under a plan", func(s core.Store) (any, error) {
				return listed(s.Keys(m.e.ctx, d.account, core.KeyFilter{UnderPlan: p.ID, Status: status}, page))
			})
		}
	}
	for _, u := range d.usersNow() {
		filters = append(filters, u.UniqueFilters()...)
		m.both(t, "Keys of a user", func(s core.Store) (any, error) {
			return listed(s.Keys(m.e.ctx, d.account, core.KeyFilter{UserID: u.ID}, page))
		})
	}
	for _, f := range filters {
		m.both(t, fmt.Sprintf("Users %+v", f), func(s core.Store) (any, error) { return listed(s.Users(m.e.ctx, d.account, f, page)) })
	}
}

// bothDigests compares the keys that have or had a digest.
func (m *machine) bothDigests(t *rapid.T) {
	for _, digest := range m.digests {
		m.both(t, "KeyByDigest", func(s core.Store) (any, error) { return s.KeyByDigest(m.e.ctx, digest) })
	}
}

// update runs a transaction of a few reads and then a few writes. Some transactions fail at their
// end.
func (m *machine) update(t *rapid.T) *txPlan {
	d := &txPlan{machine: m, t: t, account: m.anyAccount(t), touched: map[string]bool{}}
	d.readSome()
	for range rapid.IntRange(1, 4).Draw(t, "writes") {
		switch rapid.IntRange(0, 15).Draw(t, "write") {
		case 0, 1, 2:
			d.putUser()
		case 3, 4:
			d.putPlan()
		case 5, 6, 7, 8:
			d.putKey()
		case 9:
			d.deleteUser()
		case 10:
			d.deletePlan()
		case 11:
			d.deleteKey()
		case 12:
			d.putPrices()
		case 13, 14, 15:
			d.changeWebhooks()
		}
	}
	giveUp, ctx := rapid.IntRange(0, 5).Draw(t, "give up") == 0, m.acting(t)
	m.both(t, "Update", func(s core.Store) (any, error) {
		var answers []any
		err := s.Update(ctx, d.account, func(tx core.Tx) error {
			answers = nil
			for _, do := range append(d.reads, d.writes...) {
				answer, err := do(tx)
				if err != nil {
					return err
				}
				answers = append(answers, answer)
			}
			if giveUp {
				return errAborted
			}
			return nil
		})
		return answers, err
	})
	return d
}

// touch reports whether this transaction has not yet written a resource, and marks it as written.
func (d *txPlan) touch(format string, args ...any) bool {
	name := fmt.Sprintf(format, args...)
	if d.touched[name] {
		return false
	}
	d.touched[name] = true
	return true
}

func (d *txPlan) read(do step)  { d.reads = append(d.reads, do) }
func (d *txPlan) write(do step) { d.writes = append(d.writes, do) }

// readSome reads resources that may be missing, and counts matches.
func (d *txPlan) readSome() {
	users, keys := d.userFilter(d.t, d.account), d.keyFilter(d.t, d.account)
	user, plan := rapid.Int64Range(0, 6).Draw(d.t, "user"), d.planID(d.t, d.account)
	d.read(func(tx core.Tx) (any, error) { return tx.CountUsers(users) })
	d.read(func(tx core.Tx) (any, error) { return tx.CountKeys(keys) })
	d.read(found(func(tx core.Tx) (any, error) { return tx.User(user) }))
	d.read(found(func(tx core.Tx) (any, error) { return tx.Plan(plan) }))
	d.read(found(func(tx core.Tx) (any, error) { return tx.Key("key_37") }))
}

// usersNow, plansNow and keysNow return the current resources of the account.
func (d *txPlan) usersNow() []*core.User {
	us, _, _ := d.model.Users(d.e.ctx, d.account, core.UserFilter{}, core.Page{Number: 1, Size: 1000})
	return us
}

func (d *txPlan) plansNow() []*core.Plan {
	ps, _, _ := d.model.Plans(d.e.ctx, d.account, core.Page{Number: 1, Size: 1000})
	return ps
}

func (d *txPlan) keysNow() []*core.Key {
	ks, _, _ := d.model.Keys(d.e.ctx, d.account, core.KeyFilter{}, core.Page{Number: 1, Size: 1000})
	return ks
}

// planID draws the id of a plan, "" or, unless the machine obeys, a missing id.
func (m *machine) planID(t *rapid.T, account string) string {
	ids := []string{""}
	if !m.obeys {
		ids = append(ids, "plan_missing")
	}
	ps, _, _ := m.model.Plans(m.e.ctx, account, core.Page{Number: 1, Size: 4})
	for _, p := range ps {
		ids = append(ids, p.ID)
	}
	return rapid.SampledFrom(ids).Draw(t, "plan")
}

// planOf draws the plan of a user or key. If the machine obeys, the transaction does not write that plan: it may delete it.
func (d *txPlan) planOf() string {
	id := d.planID(d.t, d.account)
	if d.obeys && d.touched["plan "+id] {
		return ""
	}
	return id
}

// putUser writes a new or an existing user. It writes at most one user in a transaction: the
// contract leaves open how a second user affects the email and the external id of the first.
func (d *txPlan) putUser() {
	if !d.touch("a user") {
		return
	}
	u := newUser(d.account, d.next("user"))
	u.CreatedAt, u.UpdatedAt = d.someNow(), d.someNow()
	u.Anchors = rapid.SampledFrom([]core.Anchors{nil, nil, {{Start: d.now.Add(-time.Hour).Truncate(time.Second)}},
		{{Start: d.now.AddDate(0, 0, -12).Truncate(24 * time.Hour)}}, {
			{From: noon.AddDate(0, 0, -30).Truncate(time.Second), Start: noon.AddDate(0, 0, -40).Truncate(time.Second)},
			{From: noon.AddDate(0, 0, -2).Truncate(time.Second), Start: noon.Add(-5 * time.Hour).Truncate(time.Second)}}}).Draw(d.t, "anchors")
	if known := d.usersNow(); len(known) > 0 && rapid.Bool().Draw(d.t, "known") {
		old := rapid.SampledFrom(known).Draw(d.t, "user")
		u.ID, u.CreatedAt, u.Anchors = old.ID, old.CreatedAt, d.moved(old.Anchors)
		d.read(func(tx core.Tx) (any, error) { return tx.User(u.ID) })
	}
	drawMembers(d.machine, d.t, &core.UserMembers, u)
	for _, f := range u.UniqueFilters() {
		d.read(func(tx core.Tx) (any, error) { return tx.CountUsers(f) })
	}
	u.Name, u.PlanID = d.text(d.t, u.Name), d.planOf()
	d.put(u)
}

// moved sometimes returns anchors with another start from now on.
func (d *txPlan) moved(as core.Anchors) core.Anchors {
	now := d.now.Truncate(time.Second)
	if rapid.Bool().Draw(d.t, "moved") && len(as) < 4 && (len(as) == 0 || as[len(as)-1].From.Before(now)) {
		as = append(as, core.Anchor{From: now, Start: rapid.SampledFrom([]time.Time{now.Add(-5 * time.Hour), now.AddDate(0, 0, -9).Truncate(24 * time.Hour)}).Draw(d.t, "start")})
	}
	return as
}

// put writes a copy of a resource, and spoils the copy. The answer is the number of the resource.
func (d *txPlan) put(thing any) {
	d.write(func(tx core.Tx) (any, error) {
		given := copyOf(thing)
		_, number, put := membersOf(given)
		err := put(tx)
		answer := *number
		spoil(given)
		return answer, err
	})
}

func (d *txPlan) putPlan() {
	p := newPlan(d.account, "")
	if known := d.plansNow(); len(known) > 0 && rapid.Bool().Draw(d.t, "known") {
		old := rapid.SampledFrom(known).Draw(d.t, "plan")
		p.ID, p.Seq = old.ID, old.Seq
		d.read(func(tx core.Tx) (any, error) { return tx.Plan(p.ID) })
	} else {
		p.ID = d.newID(d.account, "plan_")
	}
	if !d.touch("plan %s", p.ID) {
		return
	}
	p.Name = d.next("plan")
	drawMembers(d.machine, d.t, &core.PlanMembers, p)
	p.Name, p.CreatedAt, p.UpdatedAt = d.text(d.t, p.Name), d.someNow(), d.someNow()
	d.put(p)
}

// putPrices writes other prices, or none.
func (d *txPlan) putPrices() {
	if !d.touch("the prices") {
		return
	}
	p := &core.Prices{UpdatedAt: d.someNow()}
	for range rapid.IntRange(0, 3).Draw(d.t, "rules") {
		p.Rules = append(p.Rules, core.PriceRule{
			Endpoint: rapid.SampledFrom([]string{"", "POST /v1/<search>*"}).Draw(d.t, "endpoint"),
			Model:    d.text(d.t, d.next("model")),
			Costs:    map[string]core.Price{"requests": "10", "tokens": rapid.SampledFrom([]core.Price{"0", "15*input + output"}).Draw(d.t, "price")},
		})
	}
	d.read(func(tx core.Tx) (any, error) { return tx.Prices() })
	d.write(func(tx core.Tx) (any, error) {
		given := copyOf(p)
		err := tx.PutPrices(given)
		spoil(given)
		return nil, err
	})
}

// putKey writes a new key, or an existing one with another user, plan, status or value.
func (d *txPlan) putKey() {
	users := d.usersNow()
	if len(users) == 0 || d.touched["the deletion of a user"] {
		return
	}
	ref := d.keyRef()
	if !d.touch("key %s", ref.id) {
		return
	}
	k := newKey(d.account, ref.id, 0, "")
	k.CreatedAt = d.someNow()
	if old, err := d.model.Key(d.e.ctx, d.account, ref.id); err == nil {
		k = old
		d.read(func(tx core.Tx) (any, error) { return tx.Key(k.ID) })
	}
	drawMembers(d.machine, d.t, &core.KeyMembers, k)
	k.Name, k.UpdatedAt = d.text(d.t, k.Name), d.someNow()
	k.UserID, k.PlanID = rapid.SampledFrom(users).Draw(d.t, "user").ID, d.planOf()
	d.regenerate(ref, k)
	if !d.obeys { // no value of a key has these hints
		k.Hint = rapid.SampledFrom([]string{k.Hint, k.Hint, k.Hint, "lk_user_…_1", "lk_user_…_12", "2", ""}).Draw(d.t, "hint")
	}
	f := core.KeyFilter{UserID: k.UserID, Status: k.Status}
	d.read(func(tx core.Tx) (any, error) { return tx.CountKeys(f) })
	d.put(k)
}

// keyRef draws a key of the account, or a new one.
func (d *txPlan) keyRef() *keyRef {
	if known := d.keysNow(); len(known) > 0 && rapid.IntRange(0, 2).Draw(d.t, "known") > 0 {
		id := rapid.SampledFrom(known).Draw(d.t, "key").ID
		i := slices.IndexFunc(d.keys, func(k keyRef) bool { return k.account == d.account && k.id == id })
		return &d.keys[i]
	}
	d.keys = append(d.keys, keyRef{account: d.account, id: d.newID(d.account, "key_")})
	return &d.keys[len(d.keys)-1]
}

// regenerate sometimes gives a key its next value, or an earlier one again, with or without grace for the value that it had.
func (d *txPlan) regenerate(ref *keyRef, k *core.Key) {
	if ref.values > 0 && rapid.IntRange(0, 2).Draw(d.t, "regenerate") > 0 {
		return
	}
	n := rapid.IntRange(max(1, ref.values-1), ref.values+1).Draw(d.t, "value")
	ref.values = max(ref.values, n)
	previous := core.GraceValue{Digest: k.Digest, Until: d.someNow()}
	k.Digest = digest(d.account, ref.id, n)
	if !slices.Contains(d.digests, k.Digest) {
		d.digests = append(d.digests, k.Digest)
	}
	if !rapid.Bool().Draw(d.t, "grace") || k.Seq == 0 {
		k.Previous = nil
		return
	}
	k.Previous = slices.DeleteFunc(append(k.Previous, previous), func(g core.GraceValue) bool { return g.Digest == k.Digest })
}

// deleteUser deletes a user, unless the transaction writes a key, which could belong to that user.
func (d *txPlan) deleteUser() {
	known := d.usersNow()
	if len(known) == 0 || d.writesKeys() || !d.touch("a user") {
		return
	}
	id := rapid.SampledFrom(known).Draw(d.t, "user").ID
	d.touched["the deletion of a user"] = true
	d.write(func(tx core.Tx) (any, error) { return nil, tx.DeleteUser(id) })
}

func (d *txPlan) writesKeys() bool {
	return slices.ContainsFunc(d.keys, func(k keyRef) bool { return d.touched["key "+k.id] })
}

// deletePlan deletes a plan: if the machine obeys, one that no user and no key has.
func (d *txPlan) deletePlan() {
	known := d.plansNow()
	if len(known) == 0 {
		return
	}
	id := rapid.SampledFrom(known).Draw(d.t, "plan").ID
	_, users, _ := d.model.Users(d.e.ctx, d.account, core.UserFilter{OnPlan: id}, core.Page{Number: 1, Size: 1})
	if d.obeys && (users > 0 || len(d.writes) > 0) || !d.touch("plan %s", id) {
		return
	}
	d.read(func(tx core.Tx) (any, error) { return tx.CountKeys(core.KeyFilter{PlanID: &id}) })
	d.read(func(tx core.Tx) (any, error) { return tx.CountUsers(core.UserFilter{OnPlan: id}) })
	d.read(func(tx core.Tx) (any, error) {
		list, total, err := tx.Plans(core.Page{Number: 1, Size: 2})
		return []any{list, total}, err
	})
	d.write(func(tx core.Tx) (any, error) { return nil, tx.DeletePlan(id) })
}

func (d *txPlan) deleteKey() {
	known := d.keysNow()
	if len(known) == 0 || d.touched["the deletion of a user"] {
		return
	}
	id := rapid.SampledFrom(known).Draw(d.t, "key").ID
	if !d.touch("key %s", id) {
		return
	}
	d.write(func(tx core.Tx) (any, error) { return nil, tx.DeleteKey(id) })
}

// twins puts two new users with the same email or external id in one transaction.
func (m *machine) twins(t *rapid.T) {
	account := m.account(t)
	a, b := newUser(account, m.next("user")), newUser(account, m.next("user"))
	if rapid.Bool().Draw(t, "email") {
		a.Email, b.Email = new("twin@Example.com"), new("TWIN@example.com")
	} else {
		a.ExternalID, b.ExternalID = "twin", "twin"
	}
	fn := putting(a, b)
	m.both(t, "twins", func(s core.Store) (any, error) { return nil, s.Update(m.e.ctx, account, fn) })
}

// deleteMissing deletes a resource that the account does not have. The contract leaves the error open.
func (m *machine) deleteMissing(t *rapid.T) {
	account, user, suffix := m.anyAccount(t), int64(99), "missing"
	if account == "acct_missing" { // other accounts have these
		user, suffix = 1, "37"
	}
	deletion := rapid.SampledFrom([]func(core.Tx) error{
		func(tx core.Tx) error { return tx.DeleteUser(user) },
		func(tx core.Tx) error { return tx.DeletePlan("plan_" + suffix) },
		func(tx core.Tx) error { return tx.DeleteKey("key_" + suffix) },
	}).Draw(t, "deletion")
	m.both(t, "a deletion", func(s core.Store) (any, error) {
		return errors.Is(s.Update(m.e.ctx, account, deletion), core.ErrUnavailable), nil
	})
}
