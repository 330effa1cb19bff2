package core

import (
	"context"
	"encoding/json"
	"errors"
	"time"
)

// The bounds of a regeneration.
const (
	MaxGrace       = 604800 * time.Second // a week
	maxGraceValues = 16                   // earlier values that work at the same time
)

// KeyStatus says whether a key may be used.
type KeyStatus string

// The statuses of a key.
const (
	KeyActive   KeyStatus = "active"
	KeyInactive KeyStatus = "inactive"
)

// Key is a key of a user. Its value, the secret, is not stored.
type Key struct {
	AccountID string          `json:"account_id"`
	ID        string          `json:"id"`  // key_…
	Seq       int64           `json:"seq"` // from 1, in the order of creation within the account
	Name      string          `json:"name"`
	UserID    int64           `json:"user_id"`
	PlanID    string          `json:"plan_id,omitempty"` // "": the plan of the user
	Status    KeyStatus       `json:"status"`
	Digest    Digest          `json:"digest"`
	Hint      string          `json:"hint"`               // lk_user_…wxyz
	Previous  []GraceValue    `json:"previous,omitempty"` // values before the last regeneration that still work
	ExpiresAt *time.Time      `json:"expires_at,omitempty"`
	Metadata  json.RawMessage `json:"metadata,omitempty"` // an object, nil for none
	CreatedAt time.Time       `json:"created_at"`
	UpdatedAt time.Time       `json:"updated_at"`
}

// GraceValue is an earlier value of a key that works until a time.
type GraceValue struct {
	Digest Digest    `json:"digest"`
	Until  time.Time `json:"until"`
}

// Digests returns all digests that find the key: first of its value, then of its earlier values.
func (k *Key) Digests() []Digest {
	ds := make([]Digest, 0, 1+len(k.Previous))
	ds = append(ds, k.Digest)
	for _, g := range k.Previous {
		ds = append(ds, g.Digest)
	}
	return ds
}

// Filters returns the filters that the key matches, none for nil. A store keeps an index for each filter.
func (k *Key) Filters() []KeyFilter {
	if k == nil {
		return nil
	}
	list := make([]KeyFilter, 0, 8)
	for _, user := range []int64{0, k.UserID} {
		for _, plan := range []*string{nil, &k.PlanID} {
			for _, status := range []KeyStatus{"", k.Status} {
				list = append(list, KeyFilter{UserID: user, PlanID: plan, Status: status})
			}
		}
	}
	return list
}

// accepts reports whether the value with the digest works at the time now.
func (k *Key) accepts(d Digest, now time.Time) bool {
	if k.Digest == d {
		return true
	}
	for _, g := range k.Previous {
		if g.Digest == d && now.Before(g.Until) {
			return true
		}
	}
	return false
}

// expired reports whether the key has expired at the time now.
func (k *Key) expired(now time.Time) bool {
	return k.ExpiresAt != nil && !now.Before(*k.ExpiresAt)
}

// dropExpiredValues drops the earlier values that no longer work.
func (k *Key) dropExpiredValues(now time.Time) {
	var left []GraceValue
	for _, g := range k.Previous {
		if now.Before(g.Until) {
			left = append(left, g)
		}
	}
	k.Previous = left
}

// KeyPatch holds the members of a key to set. A nil pointer and an unset [Optional] leave the
// member alone; on creation they leave it empty.
type KeyPatch struct {
	Name      *string
	UserID    *int64
	PlanID    Optional[string]
	Status    *string // active or inactive
	ExpiresAt Optional[time.Time]
	Metadata  Optional[json.RawMessage]
	Secret    *string // must be a present value of the key: callers cannot choose values

	// Digest is the SHA-256 of the value of the key, in place of a new value. A key that gets another digest loses its
	// earlier values at once. Only a [Batch] takes digests, see [Service.Batch].
	Digest *Digest

	Hint string // of the value with the digest, see [HintOf]; "" if the value is not known
}

// KeyMembers describe keys. The batch checks user_id and plan_id, and that the key expires in the future.
var KeyMembers = Members[Key, KeyPatch]{
	List: []Member[Key, KeyPatch]{
		nameMember(func(p *KeyPatch) **string { return &p.Name }, func(k *Key) *string { return &k.Name }),
		plain("user_id", TypeWhole, func(p *KeyPatch) **int64 { return &p.UserID }, func(k *Key) int64 { return k.UserID }, nil).required(),
		nullable("plan_id", TypeText, func(p *KeyPatch) *Optional[string] { return &p.PlanID }, func(k *Key) *string { return orNil(k.PlanID) }, nil),
		plain("status", TypeText, func(p *KeyPatch) **string { return &p.Status }, func(k *Key) string { return string(k.Status) },
			func(k *Key, v string) error {
				if k.Status = KeyStatus(v); k.Status != KeyActive && k.Status != KeyInactive {
					return invalid("status", "Status must be active or inactive")
				}
				return nil
			}),
		nullable("expires_at", TypeTime, func(p *KeyPatch) *Optional[time.Time] { return &p.ExpiresAt }, func(k *Key) *time.Time { return k.ExpiresAt },
			func(k *Key, v *time.Time) error {
				k.ExpiresAt = v
				return nil
			}),
		metadataMember(func(p *KeyPatch) *Optional[json.RawMessage] { return &p.Metadata }, func(k *Key) *json.RawMessage { return &k.Metadata }),
	},
	fresh: func() *Key { return new(Key) },
}

// Check returns the error of the members that an account does not affect, for a new key.
func (p KeyPatch) Check(now time.Time) error { return p.applyMembers(new(Key), now) }

// apply checks and sets the members. The batch finds the user and the plan.
func (p KeyPatch) apply(b *Batch, k *Key, now time.Time) error {
	if err := p.applyMembers(k, now); err != nil {
		return err
	}
	if err := p.applyDigest(b, k); err != nil {
		return err
	}
	return p.applyReferences(b, k)
}

// applyMembers checks and sets the members that do not depend on other resources.
func (p KeyPatch) applyMembers(k *Key, now time.Time) error {
	if p.Secret != nil && !k.accepts(DigestOf(*p.Secret), now) {
		return invalid("api_key", "The value of a key cannot be chosen: regenerate the key to change it")
	}
	if t, had := p.ExpiresAt.Value, k.ExpiresAt; t != nil && !t.After(now) && (had == nil || !t.Equal(*had)) {
		return invalid("expires_at", "Expires at must be in the future")
	}
	return KeyMembers.apply(&p, k)
}

// applyDigest sets the digest of the value.
func (p KeyPatch) applyDigest(b *Batch, k *Key) error {
	if p.Digest == nil || *p.Digest == k.Digest {
		return nil
	}
	if err := b.claimDigest(*p.Digest, k.ID); err != nil {
		return err
	}
	k.Digest, k.Hint, k.Previous = *p.Digest, p.Hint, nil
	if p.Hint == "" {
		k.Hint = hintOfDigest(*p.Digest)
	}
	return nil
}

// applyReferences sets user and plan. It refuses a key without any plan: neither its own nor that
// of its user.
func (p KeyPatch) applyReferences(b *Batch, k *Key) error {
	if p.UserID == nil && !p.PlanID.Set {
		return nil
	}
	if p.UserID != nil {
		k.UserID = *p.UserID
	}
	u, err := b.User(k.UserID)
	if err != nil {
		return err
	}
	if p.PlanID.Value != nil {
		if err := b.checkPlanAssignable(*p.PlanID.Value, k.PlanID); err != nil {
			return err
		}
	}
	if p.PlanID.Set {
		k.PlanID = p.PlanID.OrZero()
	}
	if k.PlanID == "" && u.PlanID == "" {
		return invalid("plan_id", "Plan id is required: the user has no plan of its own")
	}
	return nil
}

// CreateKey creates a key and returns it with its secret, which is shown only once. Name and user
// are required, and a plan unless the user has one. It is a validation error if the account has
// reached max_keys.
func (s *Service) CreateKey(ctx context.Context, account string, p KeyPatch) (k *Key, secret string, err error) {
	if err := KeyMembers.required(p); err != nil {
		return nil, "", err
	}
	err = s.batch(ctx, account, batchNeeds{prefix: true}, func(b *Batch) error {
		k, secret, err = b.CreateKey(p)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	return k, secret, nil
}

// CreateKey is [Service.CreateKey] in a batch. The secret is "" for a key with a given digest.
func (b *Batch) CreateKey(p KeyPatch) (k *Key, secret string, err error) {
	if err := KeyMembers.required(p); err != nil {
		return nil, "", err
	}
	n, err := b.tx.CountKeys(KeyFilter{})
	if err != nil {
		return nil, "", err
	}
	if err := checkCap("key", b.s.caps.keys.Load(), n+b.moreKeys[keysOf{}]); err != nil {
		return nil, "", err
	}
	now := b.s.now()
	k = &Key{AccountID: b.account, ID: newID("key_"), Status: KeyActive, CreatedAt: now, UpdatedAt: now}
	if p.Digest == nil {
		secret = NewUserSecret(b.prefix)
		k.Digest, k.Hint = DigestOf(secret), HintOf(secret, b.prefix)
	}
	if err := p.apply(b, k, now); err != nil {
		return nil, "", err
	}
	return k, secret, b.putKey(nil, k)
}

// Key returns a key, or [ErrKeyNotFound].
func (s *Service) Key(ctx context.Context, account, id string) (*Key, error) {
	return s.store.Key(ctx, account, id)
}

// Keys returns a page of the account's keys that match, oldest first, and how
// many match.
func (s *Service) Keys(ctx context.Context, account string, f KeyFilter, p Page) ([]*Key, int, error) {
	return s.store.Keys(ctx, account, f, p)
}

// KeysUnderPlan returns a page of the account's keys that a plan limits and that match the filter, oldest first, and how
// many there are. A plan limits a key that has it, and a key without a plan of its own whose user has it. The PlanID of the
// filter is not used. If users have the plan, it reads the keys that match the filter, and is a large query: an account runs
// one at a time.
func (s *Service) KeysUnderPlan(ctx context.Context, account, plan string, f KeyFilter, p Page) (list []*Key, total int, err error) {
	have, err := s.mayHavePlan(ctx, account, plan, f.UserID)
	if err != nil {
		return nil, 0, err
	}
	if !have {
		f.PlanID = &plan
		return s.store.Keys(ctx, account, f, p)
	}
	f.PlanID = nil
	err = s.runQuery(ctx, account, wholeAccount, func() error {
		limits, err := s.underPlan(ctx, account, plan, f.UserID)
		if err != nil {
			return err
		}
		return s.eachKey(ctx, account, f, func(keys []*Key) error {
			for _, k := range keys {
				if !limits(k) {
					continue
				}
				if total++; total > p.Offset() && len(list) < p.Size {
					list = append(list, k)
				}
			}
			return nil
		})
	})
	return list, total, err
}

// mayHavePlan reports whether a user has a plan as its own; for the user 0, whether any user has it.
func (s *Service) mayHavePlan(ctx context.Context, account, plan string, user int64) (bool, error) {
	if plan == "" {
		return false, nil
	}
	if user == 0 {
		_, users, err := s.store.Users(ctx, account, UserFilter{PlanID: plan}, Page{1, 1})
		return users > 0, err
	}
	u, err := s.store.User(ctx, account, user)
	if errors.Is(err, ErrUserNotFound) {
		return false, nil
	}
	return err == nil && u.PlanID == plan, err
}

// underPlan returns a function that reports whether a plan limits a key. It reads the users with the plan, unless a user is given, which
// has it.
func (s *Service) underPlan(ctx context.Context, account, plan string, user int64) (func(*Key) bool, error) {
	users := map[int64]bool{user: true}
	if user == 0 {
		list := func(p Page) ([]*User, int, error) { return s.store.Users(ctx, account, UserFilter{PlanID: plan}, p) }
		err := eachPage(ctx, list, func(page []*User) error {
			for _, u := range page {
				users[u.ID] = true
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return func(k *Key) bool { return k.PlanID == plan || k.PlanID == "" && users[k.UserID] }, nil
}

// UpdateKey sets the members that p names and returns the whole key.
func (s *Service) UpdateKey(ctx context.Context, account, id string, p KeyPatch) (*Key, error) {
	return batchOf(ctx, s, account, false, func(b *Batch) (*Key, error) { return b.UpdateKey(id, p) })
}

// UpdateKey is [Service.UpdateKey] in a batch.
func (b *Batch) UpdateKey(id string, p KeyPatch) (*Key, error) {
	return b.changeKey(id, func(k *Key) error { return p.apply(b, k, b.s.now()) })
}

// RegenerateKey gives a key a new secret, which is shown only once. The key keeps its id and its
// usage. With a grace above zero the old value works for that time. Otherwise the old value and
// every earlier one stop working at once.
func (s *Service) RegenerateKey(ctx context.Context, account, id string, grace time.Duration) (k *Key, secret string, err error) {
	if grace < 0 || grace > MaxGrace {
		return nil, "", invalid("grace_seconds", "Grace seconds must be from 0 to 604800")
	}
	err = s.batch(ctx, account, batchNeeds{prefix: true}, func(b *Batch) error {
		secret = NewUserSecret(b.prefix)
		k, err = b.changeKey(id, func(k *Key) error {
			if grace == 0 {
				k.Previous = nil
			} else if k.Previous = append(k.Previous, GraceValue{k.Digest, s.now().Add(grace)}); len(k.Previous) > maxGraceValues {
				return invalid("grace_seconds", "Too many earlier values of this key still work: regenerate it without grace, or later")
			}
			k.Digest, k.Hint = DigestOf(secret), HintOf(secret, b.prefix)
			return nil
		})
		return err
	})
	if err != nil {
		return nil, "", err
	}
	return k, secret, nil
}

// changeKey runs fn on a copy of a key, and stores the copy.
func (b *Batch) changeKey(id string, fn func(*Key) error) (*Key, error) {
	before, err := b.Key(id)
	if err != nil {
		return nil, err
	}
	k := *before
	k.dropExpiredValues(b.s.now())
	if err := fn(&k); err != nil {
		return nil, err
	}
	k.UpdatedAt = b.s.after(k.UpdatedAt)
	return &k, b.putKey(before, &k)
}

// DeleteKey deletes a key. The next request with it is refused as unknown.
func (s *Service) DeleteKey(ctx context.Context, account, id string) error {
	return s.batch(ctx, account, batchNeeds{}, func(b *Batch) error { return b.DeleteKey(id) })
}

// DeleteKey is [Service.DeleteKey] in a batch.
func (b *Batch) DeleteKey(id string) error { return remove(id, b.Key, b.putKey) }
