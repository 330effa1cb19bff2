package core

import (
	"context"
	"errors"
	"slices"
)

// Batch is a transaction on the resources of one account, with the rules of the calls of [Service] that change one resource. Unlike a
// [Tx], it reads its own writes. Change each resource at most once.
type Batch struct {
	s       *Service
	account string
	tx      Tx
	batchState

	plans map[string]*Plan // written; nil for deleted
	users map[int64]*User
	keys  map[string]*Key

	// The changes of the counts since the transaction began.
	newPlans, newUsers int
	moreUsers          map[string]int // by the plan of the user
	moreKeys           map[keysOf]int

	setsLimits    bool              // a plan gets limits: checkMeters must run
	limitsChanged bool              // the cached meters of the account may be outdated
	newMeters     metersOf          // the meters of all plans, if the account has never had one of them; else nil
	claims        map[Digest]string // the digests that the batch gives to keys, with the ids of the keys

	forgetDigests []Digest // of all values of the changed keys, before and after, to remove from the cache
	disabled      []KeyDisabled
}

// keysOf selects keys for a count. The zero value selects all keys of the account.
type keysOf struct {
	user int64  // 0 for any
	plan string // of the keys themselves; "" for keys without one, if a user is given
}

// batchState is read before the transaction begins.
type batchState struct {
	prefix  string          // of the values of new keys
	everHad []string        // see Account.Meters
	holders map[Digest]*Key // the digests that the caller may give to keys, with the keys that have them; nil for none
}

// batchNeeds selects what a batch reads before its transaction begins.
type batchNeeds struct {
	prefix, meters bool
	holders        map[Digest]*Key // see batchState
}

// Batch runs fn in one transaction on an account: all changes of fn are stored together, or none. fn may run more than once, and must not
// use the service or the store. If fn returns an error, Batch stores nothing and returns that error. New meters of plans are added to
// [Account.Meters] before the transaction.
//
// digests lists the digests that fn gives to keys, see [KeyPatch]. It is a validation error if a key of any account has
// one of them. Batches of one process that give digests run one at a time. If two processes that share a store give one
// digest to two keys at the same time, both may succeed, and the later key has the value.
func (s *Service) Batch(ctx context.Context, account string, digests []Digest, fn func(*Batch) error) error {
	c, err := s.ClaimDigests(ctx, digests)
	if err != nil {
		return err
	}
	defer c.Release()
	return s.BatchOf(ctx, account, c, fn)
}

// BatchOf is [Service.Batch] with digests that the caller has claimed.
func (s *Service) BatchOf(ctx context.Context, account string, c *Claim, fn func(*Batch) error) error {
	return s.batch(ctx, account, batchNeeds{prefix: true, meters: true, holders: c.holders()}, fn)
}

// Preview runs fn as [Service.Batch] does, with tx in place of a transaction of the store. It stores nothing.
func (s *Service) Preview(ctx context.Context, account string, digests []Digest, tx Tx, fn func(*Batch) error) error {
	found, err := s.KeysByDigest(ctx, digests)
	if err != nil {
		return err
	}
	c := &Claim{Holders: found, digests: digests}
	state, err := s.prepareBatch(ctx, account, batchNeeds{prefix: true, meters: true, holders: c.holders()})
	if err != nil {
		return err
	}
	return newBatch(s, account, tx, state).run(ctx, fn)
}

// batchOf runs a batch that changes one resource, and returns the resource.
func batchOf[T any](ctx context.Context, s *Service, account string, meters bool, fn func(*Batch) (*T, error)) (v *T, err error) {
	err = s.batch(ctx, account, batchNeeds{meters: meters}, func(b *Batch) error {
		v, err = fn(b)
		return err
	})
	if err != nil {
		return nil, err
	}
	return v, nil
}

func (s *Service) batch(ctx context.Context, account string, needs batchNeeds, fn func(*Batch) error) error {
	state, err := s.prepareBatch(ctx, account, needs)
	if err != nil {
		return err
	}
	for {
		var runs []*Batch
		err = s.store.Update(ctx, account, func(tx Tx) error {
			b := newBatch(s, account, tx, state)
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
			for _, d := range runs[len(runs)-1].disabled {
				s.onDisabled(d)
			}
		}
		if !errors.Is(err, errNewMeters) {
			return err
		}
		if state.everHad, err = s.addMeters(ctx, account, runs[len(runs)-1].newMeters); err != nil {
			return err
		}
	}
}

// errNewMeters means that meters must be added to the account before the transaction.
var errNewMeters = errors.New("the account gets new meters")

// addMeters adds meters to an account, and returns all that the account has ever had.
func (s *Service) addMeters(ctx context.Context, account string, meters metersOf) (all []string, err error) {
	_, err = s.store.UpdateAccount(ctx, account, func(a *Account) error {
		err := a.addMeters(meters)
		all = a.Meters
		return err
	})
	if errors.Is(err, errUnchanged) {
		err = nil
	}
	return all, err
}

// prepareBatch reads the state for a batch.
func (s *Service) prepareBatch(ctx context.Context, account string, needs batchNeeds) (state batchState, err error) {
	if needs.prefix {
		if state.prefix, err = s.prefixOfNewKeys(ctx, account); err != nil {
			return state, err
		}
	}
	if needs.meters {
		a, err := s.store.Account(ctx, account)
		if err != nil && !errors.Is(err, ErrAccountNotFound) {
			return state, err
		}
		if err == nil {
			state.everHad = a.Meters
		}
	}
	state.holders = needs.holders
	return state, nil
}

func newBatch(s *Service, account string, tx Tx, state batchState) *Batch {
	return &Batch{s: s, account: account, tx: &batchTx{Tx: tx, planByID: map[string]*Plan{}}, batchState: state,
		plans: map[string]*Plan{}, users: map[int64]*User{}, keys: map[string]*Key{},
		moreUsers: map[string]int{}, moreKeys: map[keysOf]int{}, claims: map[Digest]string{}}
}

// batchTx reads each plan, and the number of all users and of all keys, once: a [Tx] shows the account as it was when it began. In
// an import of 60,000 keys these reads took a third of the CPU time.
type batchTx struct {
	Tx
	planByID    map[string]*Plan
	users, keys *int
}

// Plan implements [Tx]. The caller does not change the plan.
func (t *batchTx) Plan(id string) (*Plan, error) {
	if p := t.planByID[id]; p != nil {
		return p, nil
	}
	p, err := t.Tx.Plan(id)
	if err == nil {
		t.planByID[id] = p
	}
	return p, err
}

// CountUsers implements [Tx].
func (t *batchTx) CountUsers(f UserFilter) (int, error) {
	if f != (UserFilter{}) {
		return t.Tx.CountUsers(f)
	}
	return countOnce(&t.users, func() (int, error) { return t.Tx.CountUsers(f) })
}

// CountKeys implements [Tx].
func (t *batchTx) CountKeys(f KeyFilter) (int, error) {
	if f != (KeyFilter{}) {
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

// run runs fn, and then the check that depends on all changes.
func (b *Batch) run(ctx context.Context, fn func(*Batch) error) error {
	if err := fn(b); err != nil {
		return err
	}
	return b.checkMeters(ctx)
}

// Before returns the account as it was when the batch began. Use it for reading only.
func (b *Batch) Before() Tx { return b.tx }

// Plan returns a plan, or [ErrPlanNotFound].
func (b *Batch) Plan(id string) (*Plan, error) {
	return written(b.plans, id, b.tx.Plan, ErrPlanNotFound)
}

// User returns a user, or [ErrUserNotFound].
func (b *Batch) User(id int64) (*User, error) {
	return written(b.users, id, b.tx.User, ErrUserNotFound)
}

// Key returns a key, or [ErrKeyNotFound].
func (b *Batch) Key(id string) (*Key, error) { return written(b.keys, id, b.tx.Key, ErrKeyNotFound) }

// written returns the resource that the batch has written, or else the stored resource.
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
func (b *Batch) putPlan(before, after *Plan) error {
	b.limitsChanged = b.limitsChanged || !slices.Equal(before.limits(), after.limits())
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
func (b *Batch) putUser(before, after *User) error {
	if after != nil {
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
	b.noteUser(before, after)
	b.moreUsers[before.PlanID]--
	b.newUsers--
	if after == nil {
		b.users[before.ID] = nil
		return b.tx.DeleteUser(before.ID)
	}
	return nil
}

// putKey stores a key. before is nil for a new key, after is nil for a deletion.
func (b *Batch) putKey(before, after *Key) error {
	b.countKey(before, -1)
	b.countKey(after, +1)
	if before != nil {
		b.noteKey(before, after)
		b.forgetDigests = append(b.forgetDigests, before.Digests()...)
	}
	if after == nil {
		b.keys[before.ID] = nil
		return b.tx.DeleteKey(before.ID)
	}
	b.forgetDigests = append(b.forgetDigests, after.Digest)
	b.keys[after.ID] = after
	return b.tx.PutKey(after)
}

func (b *Batch) countKey(k *Key, by int) {
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
func (b *Batch) invalidate() {
	for id := range b.plans {
		b.s.plans.forget(planRef{b.account, id})
	}
	if b.limitsChanged {
		b.s.meters.forget(b.account)
	}
	for id := range b.users {
		b.s.users.forget(userRef{b.account, id})
	}
	b.s.keys.forget(b.forgetDigests...)
}
