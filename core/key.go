package core

import (
	"cmp"
	"encoding/json"
	"reflect"
	"time"

	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// MaxGraceValues bounds the earlier values that work at the same time.
const MaxGraceValues = 16

// KeyStatus says whether a key may be used.
type KeyStatus string

// The statuses of a key.
const (
	KeyActive   KeyStatus = "active"
	KeyInactive KeyStatus = "inactive"
)

// Key is a key of a user. Its value, the secret, is not stored.
type Key struct {
	AccountID    string          `json:"account_id"`
	ID           string          `json:"id"`  // key_…
	Seq          int64           `json:"seq"` // from 1, in the order of creation within the account
	Name         string          `json:"name"`
	UserID       int64           `json:"user_id"`
	PlanID       string          `json:"plan_id,omitempty"` // "": the plan of the user
	Status       KeyStatus       `json:"status"`
	Digest       secrets.Digest  `json:"digest"`
	Hint         string          `json:"hint"`               // lk_user_…wxyz
	Previous     []GraceValue    `json:"previous,omitempty"` // values before the last regeneration that still work
	ExpiresAt    *time.Time      `json:"expires_at,omitempty"`
	Metadata     json.RawMessage `json:"metadata,omitempty"`     // an object, nil for none
	Restrictions *Restrictions   `json:"restrictions,omitempty"` // nil for none
	CreatedAt    time.Time       `json:"created_at"`
	UpdatedAt    time.Time       `json:"updated_at"`
}

// GraceValue is an earlier value of a key that works until a time.
type GraceValue struct {
	Digest secrets.Digest `json:"digest"`
	Until  time.Time      `json:"until"`
}

// Own returns the limits, the rate and the concurrency of the key alone.
func (k *Key) Own() OwnLimits {
	if k.Restrictions == nil {
		return OwnLimits{}
	}
	return k.Restrictions.OwnLimits
}

// Digests returns all digests that find the key: first of its value, then of its earlier values.
func (k *Key) Digests() []secrets.Digest {
	ds := make([]secrets.Digest, 0, 1+len(k.Previous))
	ds = append(ds, k.Digest)
	for _, g := range k.Previous {
		ds = append(ds, g.Digest)
	}
	return ds
}

// Filters returns the filters that the key matches, none for nil. A store keeps an index for each filter, and for each filter of
// [Key.PlanFilters], which depends on the user.
func (k *Key) Filters() []KeyFilter {
	if k == nil {
		return nil
	}
	list := make([]KeyFilter, 0, 8)
	if tail := k.hintTail(); tail != "" {
		list = append(list, KeyFilter{HintTail: tail})
	}
	for _, user := range []int64{0, k.UserID} {
		for _, plan := range []*string{nil, &k.PlanID} {
			for _, status := range []KeyStatus{"", k.Status} {
				if user != 0 || plan == nil || status == "" {
					list = append(list, KeyFilter{UserID: user, PlanID: plan, Status: status})
				}
			}
		}
	}
	return list
}

// PlanFilters returns the filters by UnderPlan that the key matches. ofUser is the plan of its user, "" for none. A nil key matches no filter.
func (k *Key) PlanFilters(ofUser string) []KeyFilter {
	if k == nil || k.PlanID == "" && ofUser == "" {
		return nil
	}
	plan := cmp.Or(k.PlanID, ofUser)
	return []KeyFilter{{UnderPlan: plan}, {UnderPlan: plan, Status: k.Status}}
}

// HintTailLength is the length of the tails of hints in the index of keys, in bytes. Of 3,800 keys with random values, one has a given tail.
// Longer tails would make the index larger.
const HintTailLength = 2

// hintTail returns the last bytes of the hint, "" for a shorter hint.
func (k *Key) hintTail() string {
	if len(k.Hint) < HintTailLength {
		return ""
	}
	return k.Hint[len(k.Hint)-HintTailLength:]
}

// Accepts reports whether the value with the digest works at the time now.
func (k *Key) Accepts(d secrets.Digest, now time.Time) bool {
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

// Expired reports whether the key has expired at the time now.
func (k *Key) Expired(now time.Time) bool {
	return k.ExpiresAt != nil && !now.Before(*k.ExpiresAt)
}

// DropExpiredValues drops the earlier values that no longer work.
func (k *Key) DropExpiredValues(now time.Time) {
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
	Name             *string
	UserID           *int64
	PlanID           Optional[string]
	Status           *string // active or inactive
	ExpiresAt        Optional[time.Time]
	Metadata         Optional[json.RawMessage]
	Scopes           Optional[[]string]
	AllowedEndpoints Optional[[]string]
	AllowedIPs       Optional[[]string]
	Limits           Optional[[]Limit]
	Rate             Optional[Rate]
	Concurrency      Optional[int64]
	Secret           *string // must be a present value of the key: callers cannot choose values

	// Digest is the SHA-256 of the value of the key, in place of a new value. A key that gets another digest loses its
	// earlier values at once. Only a transaction takes a digest, and only a digest
	// that its caller has named before.
	Digest *secrets.Digest

	Hint string // of the value with the digest, see [secrets.HintOf]; "" if the value is not known
}

// OnlyDisables reports whether a patch disables a key and sets nothing else.
func (p KeyPatch) OnlyDisables() bool {
	disabling := p.Status != nil && *p.Status == string(KeyInactive)
	p.Status = nil
	return disabling && reflect.DeepEqual(p, KeyPatch{})
}

// KeyMembers describe keys. The transaction checks user_id and plan_id, and that the key expires in the future.
var KeyMembers = Members[Key, KeyPatch]{
	List: []Member[Key, KeyPatch]{
		nameMember(func(p *KeyPatch) **string { return &p.Name }, func(k *Key) *string { return &k.Name }),
		plain("user_id", TypeWhole, func(p *KeyPatch) **int64 { return &p.UserID }, func(k *Key) int64 { return k.UserID }, nil).required(),
		nullable("plan_id", TypeText, func(p *KeyPatch) *Optional[string] { return &p.PlanID }, func(k *Key) *string { return orNil(k.PlanID) }, nil),
		word("status", []string{string(KeyActive), string(KeyInactive)}, "Status must be active or inactive",
			func(p *KeyPatch) **string { return &p.Status }, func(k *Key) string { return string(k.Status) },
			func(k *Key, v string) { k.Status = KeyStatus(v) }),
		nullable("expires_at", TypeTime, func(p *KeyPatch) *Optional[time.Time] { return &p.ExpiresAt }, func(k *Key) *time.Time { return k.ExpiresAt },
			unchecked(func(k *Key, v *time.Time) { k.ExpiresAt = v })),
		metadataMember(func(p *KeyPatch) *Optional[json.RawMessage] { return &p.Metadata }, func(k *Key) *json.RawMessage { return &k.Metadata }),
		restriction("scopes", func(p *KeyPatch) *Optional[[]string] { return &p.Scopes }, func(r *Restrictions) *[]string { return &r.Scopes }),
		restriction("allowed_endpoints", func(p *KeyPatch) *Optional[[]string] { return &p.AllowedEndpoints }, func(r *Restrictions) *[]string { return &r.Endpoints }),
		restriction("allowed_ips", func(p *KeyPatch) *Optional[[]string] { return &p.AllowedIPs }, func(r *Restrictions) *[]string { return &r.IPs }),
		nullable("limits", TypeLimits, func(p *KeyPatch) *Optional[[]Limit] { return &p.Limits }, func(k *Key) *[]Limit { return notNil(k.Own().Limits) },
			restrict(func(r *Restrictions, v *[]Limit) { r.Limits = OrZero(v) })),
		nullable("rate", TypeRate, func(p *KeyPatch) *Optional[Rate] { return &p.Rate }, func(k *Key) *Rate { return k.Own().Rate },
			restrict(func(r *Restrictions, v *Rate) { r.Rate = v })),
		concurrencyMember(func(p *KeyPatch) *Optional[int64] { return &p.Concurrency }, func(k *Key) int64 { return k.Own().Concurrency }, setConcurrency),
	},
	fresh: func() *Key { return new(Key) },
	rule:  (*Key).checkRestrictions,
}

// Check returns the error of the members that an account does not affect, for a new key.
func (p KeyPatch) Check(now time.Time) error { return p.Apply(new(Key), now) }

// Apply checks and sets the members that do not depend on other resources.
func (p KeyPatch) Apply(k *Key, now time.Time) error {
	if p.Secret != nil && !k.Accepts(secrets.DigestOf(*p.Secret), now) {
		return Invalid("api_key", "The value of a key cannot be chosen: regenerate the key to change it")
	}
	if t, had := p.ExpiresAt.Value, k.ExpiresAt; t != nil && !t.After(now) && (had == nil || !t.Equal(*had)) {
		return Invalid("expires_at", "Expires at must be in the future")
	}
	return KeyMembers.Apply(&p, k)
}
