package core

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/mail"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"
	"golang.org/x/text/unicode/norm"
)

// Optional is a member of a patch that can also be cleared. The zero value leaves the member alone.
type Optional[T any] struct {
	Set   bool
	Value *T // nil clears the member
}

// Some returns an Optional that sets the member to v.
func Some[T any](v T) Optional[T] { return Optional[T]{Set: true, Value: &v} }

// Null returns an Optional that clears the member.
func Null[T any]() Optional[T] { return Optional[T]{Set: true} }

// OrZero returns the value, or the zero value if there is none.
func (o Optional[T]) OrZero() (v T) {
	if o.Value != nil {
		return *o.Value
	}
	return v
}

// orNil returns a pointer to a value, nil for the zero value.
func orNil[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}

// notNil returns a pointer to a list, to an empty one for nil: JSON has [] for it and not null.
func notNil[T any](list []T) *[]T {
	if list == nil {
		list = []T{}
	}
	return &list
}

// metadataOrNil returns a pointer to metadata, nil for none.
func metadataOrNil(m json.RawMessage) *json.RawMessage {
	if m == nil {
		return nil
	}
	return &m
}

// orZero returns what p points to, the zero value for nil.
func orZero[T any](p *T) (v T) {
	if p != nil {
		return *p
	}
	return v
}

// cleanName trims a name and checks that it has 1 to 255 characters and no control character: names
// appear in header fields, logs and terminals.
func cleanName(field, name string) (string, error) {
	name = strings.TrimSpace(name)
	switch n := utf8.RuneCountInString(name); {
	case n == 0:
		return "", invalid(field, fieldLabel(field)+" is required")
	case n > maxNameLength:
		return "", invalid(field, fieldLabel(field)+" must be at most 255 characters long")
	case !utf8.ValidString(name):
		return "", invalid(field, fieldLabel(field)+" must be valid UTF-8")
	case strings.ContainsFunc(name, unicode.IsControl):
		return "", invalid(field, fieldLabel(field)+" must not hold control characters")
	}
	return name, nil
}

// checkEmail checks that an address is an addr-spec of RFC 5322, without a display name. nil, no
// address, is valid.
func checkEmail(email *string) error {
	if email == nil {
		return nil
	}
	if len(*email) > maxEmailLength {
		return invalid("email", "Invalid email format")
	}
	a, err := mail.ParseAddress(*email)
	if err != nil || a.Address != *email {
		return invalid("email", "Invalid email format")
	}
	if !norm.NFKC.IsNormalString(*email) || strings.ContainsFunc(*email, isInvisible) {
		return invalid("email", "Email must be in its plain form, without invisible, full-width or other compatibility characters: two addresses that look the same would be two users")
	}
	return nil
}

// isInvisible reports whether a character takes no room: controls, and format characters such as a zero-width space.
func isInvisible(r rune) bool { return unicode.In(r, unicode.C, unicode.Variation_Selector) }

// ErrSecretExternalID means that an external id is the value of a key. It would be stored in clear.
var ErrSecretExternalID = invalid("external_id", "External id must not be an API key")

// cleanExternalID trims an external id and checks it by the rules of names. It must not be a secret: external ids are
// stored and shown unmasked. nil, no external id, is valid.
func cleanExternalID(id *string) (string, error) {
	switch {
	case id == nil:
		return "", nil
	case strings.TrimSpace(*id) == "":
		return "", invalid("external_id", "External id must not be empty")
	case HoldsSecret(*id):
		return "", ErrSecretExternalID
	case strings.ContainsFunc(strings.TrimSpace(*id), isInvisible):
		return "", invalid("external_id", "External id must not hold control characters or invisible characters")
	}
	return cleanName("external_id", *id)
}

// cleanMetadata checks that metadata is a JSON object of at most 4 KiB, and compacts it.
func cleanMetadata(m *json.RawMessage) (json.RawMessage, error) {
	if m == nil {
		return nil, nil
	}
	var buf bytes.Buffer
	if err := json.Compact(&buf, *m); err != nil {
		return nil, invalid("metadata", "Metadata must be JSON: "+err.Error())
	}
	if !strings.HasPrefix(buf.String(), "{") {
		return nil, invalid("metadata", "Metadata must be an object")
	}
	if buf.Len() > maxMetadata {
		return nil, invalid("metadata", "Metadata must be at most 4 KiB")
	}
	return buf.Bytes(), nil
}

// fieldLabel turns the name of a member into the start of a sentence: plan_id becomes "Plan id".
func fieldLabel(field string) string {
	s := strings.ReplaceAll(field, "_", " ")
	return strings.ToUpper(s[:1]) + s[1:]
}

// countNoun puts a number before a noun: "1 key", "2 keys".
func countNoun(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return strconv.Itoa(n) + " " + noun
}

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

// Claim is the right of one caller to give digests to keys. Other callers of [Service.ClaimDigests] in the process wait for
// Release.
type Claim struct {
	Holders []*Key // the keys of any account that have the digests, in the order of the digests; nil for none

	digests []Digest
	release func()
}

// ClaimDigests claims digests and looks up the keys that have them. The caller calls Release. No digests need no claim.
func (s *Service) ClaimDigests(ctx context.Context, digests []Digest) (*Claim, error) {
	c := &Claim{digests: digests, release: func() {}}
	if len(digests) > 0 {
		s.givenDigests.Lock()
		c.release = s.givenDigests.Unlock
	}
	var err error
	if c.Holders, err = s.KeysByDigest(ctx, digests); err != nil {
		c.release()
		return nil, err
	}
	return c, nil
}

// Release ends the claim.
func (c *Claim) Release() { c.release() }

// holders returns the claimed digests with the keys that have them.
func (c *Claim) holders() map[Digest]*Key {
	holders := make(map[Digest]*Key, len(c.digests))
	for i, d := range c.digests {
		holders[d] = c.Holders[i]
	}
	return holders
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

// KeysByDigest returns the keys of any account that have the digests, in the order of digests, nil for a digest that no
// key has.
func (s *Service) KeysByDigest(ctx context.Context, digests []Digest) ([]*Key, error) {
	const parallel = 16 // look-ups at a time
	found := make([]*Key, len(digests))
	g, ctx := errgroup.WithContext(ctx)
	for part := range parallel {
		g.Go(func() (err error) {
			for i := part; i < len(digests) && err == nil; i += parallel {
				if found[i], err = s.store.KeyByDigest(ctx, digests[i]); errors.Is(err, ErrKeyNotFound) {
					found[i], err = nil, nil
				}
			}
			return err
		})
	}
	return found, g.Wait()
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

// claimDigest returns an error if another key has the digest, or gets it in this batch.
func (b *Batch) claimDigest(d Digest, key string) error {
	holder, given := b.holders[d]
	if !given {
		return invalid("key_sha256", "The value of a key cannot be chosen")
	}
	if other, taken := b.claims[d]; taken && other != key {
		return invalid("key_sha256", "Another key of the batch gets this value")
	}
	if holder != nil && holder.ID != key {
		now := holder
		if holder.AccountID == b.account {
			var err error
			if now, err = b.Key(holder.ID); err != nil && !errors.Is(err, ErrKeyNotFound) {
				return err
			}
		}
		if now != nil && slices.Contains(now.Digests(), d) {
			return invalid("key_sha256", "Another key has this value")
		}
	}
	b.claims[d] = key
	return nil
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
