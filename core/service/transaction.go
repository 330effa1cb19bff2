package service

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// Transaction is a transaction on the resources of one account, with the rules of the calls of [Service] that change one resource. Unlike a
// [core.Tx], it reads its own writes. Change each resource at most once.
type Transaction struct {
	s       *Service
	account string
	tx      core.Tx
	before  *core.Account                // before the transaction, from the cache
	holders map[secrets.Digest]*core.Key // the digests that the caller may give to keys, with the keys that have them; nil for none

	plans map[string]*core.Plan // written; nil for deleted
	users map[int64]*core.User
	keys  map[string]*core.Key
	hooks map[string]*core.Webhook

	prices *core.Prices // that the transaction has set; nil for none

	// The changes of the counts since the transaction began.
	newPlans, newUsers, newHooks int
	moreUsers                    map[string]int // by the plan of the user
	moreKeys                     map[keysOf]int

	setsLimits    bool                      // a plan gets limits: checkMeters must run
	ownMeters     metersOf                  // the meters of the limits of keys and of the overrides that the transaction sets
	limitsChanged bool                      // the cached meters of the account may be outdated
	newMeters     metersOf                  // the meters of the account, if one of them is new; else nil
	claims        map[secrets.Digest]string // the digests that the transaction gives to keys, with the ids of the keys

	due    []dueCounter // the counters whose limits or windows the transaction changes
	dueAll bool         // the transaction changes the limits of a plan

	events          map[string]bool // the ids of the events that the transaction puts; nil before the first
	webhooks        []*core.Webhook // of the account, if events is not nil
	changesWebhooks bool            // the transaction changes a webhook, or puts an event that waits for one

	deletedUsers []*core.User
	movedKeys    []*core.Key                          // with their former users
	lastHours    map[core.CounterID][]core.CounterDay // of deleted users and moved keys: the hours that the transaction writes; nil in a preview

	forgetDigests []secrets.Digest // of all values of the changed keys, before and after, to remove from the cache
	keyEvents     []*core.Event    // of the changes of keys and users
}

// keysOf selects keys for a count. The zero value selects all keys of the account.
type keysOf struct {
	user int64  // 0 for any
	plan string // of the keys themselves; "" for keys without one, if a user is given
}

// Transact runs fn in one transaction on an account: all changes of fn are stored together, or none. fn may run more than once, and must not
// use the service or the store. If fn returns an error, Transact stores nothing and returns that error. New meters of plans and prices are added to
// [core.Account.Meters] before the transaction.
//
// digests lists the digests that fn gives to keys, see [core.KeyPatch]. It is a validation error if a key of any account has
// one of them. Transactions of one process that give digests run one at a time. If two processes that share a store give one
// digest to two keys at the same time, both may succeed, and the later key has the value.
func (s *Service) Transact(ctx context.Context, account string, digests []secrets.Digest, fn func(*Transaction) error) error {
	c, err := s.ClaimDigests(ctx, digests)
	if err != nil {
		return err
	}
	defer c.Release()
	return s.TransactWith(ctx, account, c, fn)
}

// TransactWith is [Service.Transact] with digests that the caller has claimed.
func (s *Service) TransactWith(ctx context.Context, account string, c *Claim, fn func(*Transaction) error) error {
	return s.transact(ctx, account, c.holders(), fn)
}

// Preview runs fn as [Service.Transact] does, in a transaction that stores nothing.
func (s *Service) Preview(ctx context.Context, account string, digests []secrets.Digest, fn func(*Transaction) error) error {
	found, err := s.KeysByDigest(ctx, digests)
	if err != nil {
		return err
	}
	c := &Claim{Holders: found, digests: digests}
	before, err := s.cachedAccount(ctx, account)
	if err != nil {
		return err
	}
	err = s.store.Update(s.acting(ctx), account, func(tx core.Tx) error {
		return cmp.Or(newTransaction(s, account, tx, before, c.holders()).run(ctx, fn), errPreview)
	})
	if errors.Is(err, errPreview) {
		return nil
	}
	return err
}

// errPreview ends the transaction of a preview.
var errPreview = errors.New("a preview stores nothing")

// changeOne runs a transaction that changes one resource, and returns the resource.
func changeOne[T any](ctx context.Context, s *Service, account string, fn func(*Transaction) (*T, error)) (v *T, err error) {
	err = s.transact(ctx, account, nil, func(b *Transaction) error {
		v, err = fn(b)
		return err
	})
	if err != nil {
		return nil, err
	}
	return v, nil
}

// transact runs fn in a transaction that stores its changes. fn may give the digests of holders to keys.
func (s *Service) transact(ctx context.Context, account string, holders map[secrets.Digest]*core.Key, fn func(*Transaction) error) error {
	before, err := s.cachedAccount(ctx, account)
	if err != nil {
		return err
	}
	lastHours := map[core.CounterID][]core.CounterDay{}
	for {
		var runs []*Transaction
		err = s.store.Update(s.acting(ctx), account, func(tx core.Tx) error {
			b := newTransaction(s, account, tx, before, holders)
			b.lastHours = lastHours
			runs = append(runs, b)
			err := b.run(ctx, fn)
			if err == nil && b.newMeters != nil {
				err = errNewMeters
			}
			return err
		})
		for _, b := range runs { // also after an error: ErrUnavailable may mean that the changes were stored
			b.invalidate()
		}
		if err == nil {
			last := runs[len(runs)-1]
			for _, e := range last.keyEvents {
				s.onEvent(account, e)
			}
		}
		if stored := err == nil || errors.Is(err, core.ErrUnavailable); stored && len(runs) > 0 { // the changes may have been stored
			s.makeDue(ctx, account, runs[len(runs)-1])
		}
		unread, isUnread := errors.AsType[*unreadHoursError](err)
		switch {
		case errors.Is(err, errNewMeters):
			before, err = s.addMeters(ctx, account, runs[len(runs)-1].newMeters)
		case isUnread:
			err = s.readLastHours(ctx, unread.hours, lastHours)
		default:
			return err
		}
		if err != nil {
			return err
		}
	}
}

// errNewMeters means that meters must be added to the account before the transaction.
var errNewMeters = errors.New("the account gets new meters")

// addMeters adds meters to an account, and returns the account.
func (s *Service) addMeters(ctx context.Context, id string, meters metersOf) (account *core.Account, err error) {
	_, err = s.store.UpdateAccount(s.acting(ctx), id, func(a *core.Account) error {
		account = a
		return meters.addTo(a, "limits")
	})
	s.accounts.forget(id)
	s.meters.forget(id)
	if errors.Is(err, errUnchanged) {
		err = nil
	}
	return account, err
}

func newTransaction(s *Service, account string, tx core.Tx, before *core.Account, holders map[secrets.Digest]*core.Key) *Transaction {
	return &Transaction{s: s, account: account, tx: &countedTx{Tx: tx, planByID: map[string]*core.Plan{}}, before: before, holders: holders,
		plans: map[string]*core.Plan{}, users: map[int64]*core.User{}, keys: map[string]*core.Key{}, hooks: map[string]*core.Webhook{},
		moreUsers: map[string]int{}, moreKeys: map[keysOf]int{}, claims: map[secrets.Digest]string{}, ownMeters: metersOf{}}
}

// countedTx reads each plan, and the number of all users and of all keys, once: a [core.Tx] shows the account as it was when it began. In
// an import of 60,000 keys these reads took a third of the CPU time.
type countedTx struct {
	core.Tx
	planByID    map[string]*core.Plan
	users, keys *int
}

// Plan implements [core.Tx]. The plan is shared: do not change it.
func (t *countedTx) Plan(id string) (*core.Plan, error) {
	if p := t.planByID[id]; p != nil {
		return p, nil
	}
	p, err := t.Tx.Plan(id)
	if err == nil {
		t.planByID[id] = p
	}
	return p, err
}

// CountUsers implements [core.Tx].
func (t *countedTx) CountUsers(f core.UserFilter) (int, error) {
	if f != (core.UserFilter{}) {
		return t.Tx.CountUsers(f)
	}
	return countOnce(&t.users, func() (int, error) { return t.Tx.CountUsers(f) })
}

// CountKeys implements [core.Tx].
func (t *countedTx) CountKeys(f core.KeyFilter) (int, error) {
	if f != (core.KeyFilter{}) {
		return t.Tx.CountKeys(f)
	}
	return countOnce(&t.keys, func() (int, error) { return t.Tx.CountKeys(f) })
}

// countOnce returns *n, which it first sets to the result of count.
func countOnce(n **int, count func() (int, error)) (int, error) {
	if *n == nil {
		c, err := count()
		if err != nil {
			return 0, err
		}
		*n = &c
	}
	return **n, nil
}

// run runs fn, and then what depends on all changes: a check, and the events.
func (b *Transaction) run(ctx context.Context, fn func(*Transaction) error) error {
	if err := fn(b); err != nil {
		return err
	}
	if err := b.checkMeters(ctx); err != nil {
		return err
	}
	if err := b.putKeyEvents(); err != nil {
		return err
	}
	return b.putLastHours()
}

// Before returns the account as it was when the transaction began. Use it for reading only.
func (b *Transaction) Before() core.Tx { return b.tx }

// Plan returns a plan, or [core.ErrPlanNotFound]. The plan is shared: do not change it.
func (b *Transaction) Plan(id string) (*core.Plan, error) {
	return written(b.plans, id, b.tx.Plan, core.ErrPlanNotFound)
}

// User returns a user, or [core.ErrUserNotFound]. The user is shared: do not change it.
func (b *Transaction) User(id int64) (*core.User, error) {
	return written(b.users, id, b.tx.User, core.ErrUserNotFound)
}

// Key returns a key, or [core.ErrKeyNotFound]. The key is shared: do not change it.
func (b *Transaction) Key(id string) (*core.Key, error) {
	return written(b.keys, id, b.tx.Key, core.ErrKeyNotFound)
}

// written returns the resource that the transaction has written, or else the stored resource.
func written[K comparable, T any](all map[K]*T, id K, stored func(K) (*T, error), notFound error) (*T, error) {
	v, ok := all[id]
	switch {
	case !ok:
		return stored(id)
	case v == nil:
		return nil, notFound
	}
	return v, nil
}

// remove deletes a resource, which must exist.
func remove[K, T any](id K, find func(K) (*T, error), put func(before, after *T) error) error {
	v, err := find(id)
	if err != nil {
		return err
	}
	return put(v, nil)
}

// putPlan stores a plan. before is nil for a new plan, after is nil for a deletion.
func (b *Transaction) putPlan(before, after *core.Plan) error {
	b.limitsChanged = b.limitsChanged || before == nil || after == nil || !slices.Equal(before.Limits, after.Limits)
	b.dueAll = b.dueAll || before != nil && after != nil && (before.Limit != after.Limit || before.Period != after.Period || !slices.Equal(before.Limits, after.Limits))
	if after == nil {
		b.plans[before.ID] = nil
		b.newPlans--
		return b.tx.DeletePlan(before.ID)
	}
	b.plans[after.ID] = after
	if before == nil {
		b.newPlans++
	}
	return b.tx.PutPlan(after)
}

// putUser stores a user. before is nil for a new user, after is nil for a deletion.
func (b *Transaction) putUser(before, after *core.User) error {
	if after != nil {
		for _, o := range after.Overrides.List() {
			b.ownMeters.add(o.Meter, true)
		}
		if err := b.tx.PutUser(after); err != nil { // gives a new user its id
			return err
		}
		b.users[after.ID] = after
		b.moreUsers[after.PlanID]++
		b.newUsers++
	}
	if before == nil {
		return nil
	}
	if after != nil {
		keys := !slices.Equal(before.Overrides.List(), after.Overrides.List()) || !slices.Equal(before.Anchors, after.Anchors)
		if keys || before.PlanID != after.PlanID {
			b.due = append(b.due, dueCounter{core.CounterID{Account: b.account, UserID: after.ID}, keys})
		}
	}
	b.noteUser(before, after)
	b.moreUsers[before.PlanID]--
	b.newUsers--
	if after == nil {
		b.due = append(b.due, dueCounter{CounterID: core.CounterID{Account: b.account, UserID: before.ID}})
		b.users[before.ID] = nil
		b.deletedUsers = append(b.deletedUsers, before)
		return b.tx.DeleteUser(before.ID)
	}
	return nil
}

// putKey stores a key. before is nil for a new key, after is nil for a deletion.
func (b *Transaction) putKey(before, after *core.Key) error {
	b.countKey(before, -1)
	b.countKey(after, +1)
	b.noteKey(before, after)
	if before != nil {
		b.forgetDigests = append(b.forgetDigests, before.Digests()...)
	}
	if after == nil {
		b.due = append(b.due, dueCounter{CounterID: core.CounterID{Account: b.account, KeyID: before.ID}})
		b.keys[before.ID] = nil
		return b.tx.DeleteKey(before.ID)
	}
	if before != nil && before.UserID != after.UserID {
		b.movedKeys = append(b.movedKeys, before)
	}
	if before != nil && (before.PlanID != after.PlanID || before.UserID != after.UserID || !slices.Equal(before.Own().Limits, after.Own().Limits)) {
		b.due = append(b.due, dueCounter{CounterID: core.CounterID{Account: b.account, KeyID: after.ID}})
	}
	b.forgetDigests = append(b.forgetDigests, after.Digest)
	b.keys[after.ID] = after
	for _, l := range after.Own().Limits {
		b.ownMeters.add(l.Meter, true)
	}
	return b.tx.PutKey(after)
}

func (b *Transaction) countKey(k *core.Key, by int) {
	if k == nil {
		return
	}
	b.moreKeys[keysOf{}] += by
	b.moreKeys[keysOf{k.UserID, k.PlanID}] += by
	if k.PlanID != "" {
		b.moreKeys[keysOf{0, k.PlanID}] += by
	}
}

// invalidate removes the changed resources from the caches.
func (b *Transaction) invalidate() {
	for id := range b.plans {
		b.s.plans.forget(planRef{b.account, id})
	}
	if b.limitsChanged || b.prices != nil {
		b.s.meters.forget(b.account)
	}
	if b.prices != nil {
		b.s.prices.forget(b.account)
	}
	for id, u := range b.users {
		b.s.users.forget(userRef{b.account, id})
		if u != nil && u.ExternalID != "" {
			b.s.externals.forget(externalRef{b.account, u.ExternalID}) // its absence
		}
	}
	b.s.keys.forget(b.forgetDigests...)
	if b.changesWebhooks {
		b.s.webhookChanges.note(b.account)
	}
}
