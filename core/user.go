package core

import (
	"context"
	"encoding/json"
	"strings"
	"time"
)

// The bounds of a user's members.
const (
	maxNameLength  = 255  // characters of a name
	maxEmailLength = 254  // octets of an address, RFC 5321 section 4.5.3.1.3
	maxMetadata    = 4096 // bytes of a metadata object, without insignificant space
)

// User is a customer of an account.
type User struct {
	AccountID  string          `json:"account_id"`
	ID         int64           `json:"id"` // from 1, ascending within the account
	Name       string          `json:"name"`
	Email      *string         `json:"email,omitempty"`       // as given; unique in the account, case-insensitive
	ExternalID string          `json:"external_id,omitempty"` // the customer's own id of the user; unique in the account, "" for none
	PlanID     string          `json:"plan_id,omitempty"`     // "" for none
	Metadata   json.RawMessage `json:"metadata,omitempty"`    // an object, nil for none
	Disabled   bool            `json:"disabled,omitempty"`
	Anchors    Anchors         `json:"anchors,omitempty"` // the starts of the windows; none for the calendar
	CreatedAt  time.Time       `json:"created_at"`
	UpdatedAt  time.Time       `json:"updated_at"`
}

// FoldEmail returns the form in which addresses are compared: in lower case.
func FoldEmail(email string) string { return strings.ToLower(email) }

// UniqueFilters returns the filters that the user matches and no other user of its account may match: by its email,
// folded by [FoldEmail], and by its external id. A nil user has none.
func (u *User) UniqueFilters() (filters []UserFilter) {
	if u == nil {
		return nil
	}
	if u.Email != nil && *u.Email != "" {
		filters = append(filters, UserFilter{Email: FoldEmail(*u.Email)})
	}
	if u.ExternalID != "" {
		filters = append(filters, UserFilter{ExternalID: u.ExternalID})
	}
	return filters
}

// Filters returns the filters on members of the user that the user matches, none for nil. A store keeps an index for
// each filter, and one more for [UserFilter.OnPlan], which depends on the keys of the user.
func (u *User) Filters() []UserFilter {
	if u == nil {
		return nil
	}
	filters := []UserFilter{{}}
	if u.PlanID != "" {
		filters = append(filters, UserFilter{PlanID: u.PlanID})
	}
	if len(u.Anchors) > 0 {
		filters = append(filters, UserFilter{Anchored: true})
	}
	return filters
}

// UserPatch holds the members of a user to set. A nil pointer and an unset
// [Optional] leave the member alone; on creation they leave it empty.
type UserPatch struct {
	Name       *string
	Email      Optional[string]
	ExternalID Optional[string]
	PlanID     Optional[string]
	Metadata   Optional[json.RawMessage]
	Disabled   *bool

	// CustomStart is the time with which the windows of the user begin; cleared, they begin with the calendar.
	CustomStart Optional[time.Time]
}

// UserMembers describe users. The batch checks plan_id and custom_start.
var UserMembers = Members[User, UserPatch]{
	List: []Member[User, UserPatch]{
		nameMember(func(p *UserPatch) **string { return &p.Name }, func(u *User) *string { return &u.Name }),
		nullable("email", TypeText, func(p *UserPatch) *Optional[string] { return &p.Email }, func(u *User) *string { return u.Email },
			func(u *User, v *string) error {
				u.Email = v
				return checkEmail(v)
			}),
		nullable("external_id", TypeText, func(p *UserPatch) *Optional[string] { return &p.ExternalID }, func(u *User) *string { return orNil(u.ExternalID) },
			func(u *User, v *string) (err error) {
				u.ExternalID, err = cleanExternalID(v)
				return err
			}),
		nullable("plan_id", TypeText, func(p *UserPatch) *Optional[string] { return &p.PlanID }, func(u *User) *string { return orNil(u.PlanID) }, nil),
		metadataMember(func(p *UserPatch) *Optional[json.RawMessage] { return &p.Metadata }, func(u *User) *json.RawMessage { return &u.Metadata }),
		nullable("custom_start", TypeStart, func(p *UserPatch) *Optional[time.Time] { return &p.CustomStart }, func(u *User) *time.Time { return orNil(u.Anchors.Start()) }, nil),
		plain("is_disabled", TypeFlag, func(p *UserPatch) **bool { return &p.Disabled }, func(u *User) bool { return u.Disabled },
			func(u *User, v bool) error {
				u.Disabled = v
				return nil
			}),
	},
	fresh: func() *User { return new(User) },
}

// Check returns the error of the members that an account does not affect, for a new user.
func (p UserPatch) Check() error { return UserMembers.apply(&p, new(User)) }

// apply checks and sets the members. The batch finds the plan.
func (p UserPatch) apply(b *Batch, u *User) error {
	if err := UserMembers.apply(&p, u); err != nil || !p.PlanID.Set {
		return err
	}
	return p.applyPlan(b, u)
}

func (p UserPatch) applyPlan(b *Batch, u *User) error {
	plan := p.PlanID.OrZero()
	if p.PlanID.Value != nil {
		if err := b.checkPlanAssignable(plan, u.PlanID); err != nil {
			return err
		}
	} else if u.ID != 0 && u.PlanID != "" {
		n, err := b.tx.CountKeys(KeyFilter{UserID: u.ID, PlanID: new("")})
		if err != nil {
			return err
		}
		if n += b.moreKeys[keysOf{u.ID, ""}]; n > 0 {
			return invalid("plan_id", "The plan cannot be removed while keys without a plan of their own draw on it: "+countNoun(n, "key"))
		}
	}
	u.PlanID = plan
	return nil
}

// CreateUser creates a user. The name is required. It is a validation error if the account has
// reached max_users.
func (s *Service) CreateUser(ctx context.Context, account string, p UserPatch) (*User, error) {
	if err := s.checkNoKey(ctx, account, p); err != nil {
		return nil, err
	}
	return batchOf(ctx, s, account, false, func(b *Batch) (*User, error) { return b.CreateUser(p) })
}

// checkNoKey returns [ErrSecretExternalID] if an external id is the value of a key of the account. Only a look-up tells an imported key
// from another text.
func (s *Service) checkNoKey(ctx context.Context, account string, p UserPatch) error {
	if p.ExternalID.Value == nil {
		return nil
	}
	secret, err := s.AreKeys(ctx, account, []string{*p.ExternalID.Value}, nil)
	if err == nil && secret[0] {
		err = ErrSecretExternalID
	}
	return err
}

// AreKeys reports for each text, without the space around it, whether it is the value of a key of the account, or has one of the digests.
func (s *Service) AreKeys(ctx context.Context, account string, texts []string, digests []Digest) ([]bool, error) {
	given := map[Digest]bool{}
	for _, d := range digests {
		given[d] = true
	}
	var of []int // the indexes of the texts that may be keys
	var look []Digest
	for i, text := range texts {
		if text = strings.TrimSpace(text); HasKeyCharacters(text) {
			of, look = append(of, i), append(look, DigestOf(text))
		}
	}
	found, err := s.KeysByDigest(ctx, look)
	are := make([]bool, len(texts))
	for i, k := range found {
		are[of[i]] = k != nil && k.AccountID == account || given[look[i]]
	}
	return are, err
}

// EachKeyLikeExternalID calls fn with each user of the account whose external id may be the value of a key, and the digest of the external
// id. No store finds external ids by digest, so it reads all users.
func (s *Service) EachKeyLikeExternalID(ctx context.Context, account string, fn func(Digest, *User)) error {
	list := func(p Page) ([]*User, int, error) { return s.store.Users(ctx, account, UserFilter{}, p) }
	return eachPage(ctx, list, func(page []*User) error {
		for _, u := range page {
			if HasKeyCharacters(u.ExternalID) {
				fn(DigestOf(u.ExternalID), u)
			}
		}
		return nil
	})
}

// CreateUser is [Service.CreateUser] in a batch.
func (b *Batch) CreateUser(p UserPatch) (*User, error) {
	if err := UserMembers.required(p); err != nil {
		return nil, err
	}
	n, err := b.tx.CountUsers(UserFilter{})
	if err != nil {
		return nil, err
	}
	if err := checkCap("user", b.s.caps.users.Load(), n+b.newUsers); err != nil {
		return nil, err
	}
	now := b.s.now()
	u := &User{AccountID: b.account, CreatedAt: now, UpdatedAt: now}
	if p.CustomStart.Value != nil {
		u.Anchors = Anchors{{Start: p.CustomStart.Value.UTC().Truncate(time.Second)}}
	}
	if err := p.apply(b, u); err != nil {
		return nil, err
	}
	return u, b.putUser(nil, u)
}

// User returns a user, or [ErrUserNotFound].
func (s *Service) User(ctx context.Context, account string, id int64) (*User, error) {
	return s.store.User(ctx, account, id)
}

// Users returns a page of the users of the account that match, oldest first, and their total. Unlike
// the filter of a [Store], f may have both an email and an external id: a user then matches both.
func (s *Service) Users(ctx context.Context, account string, f UserFilter, p Page) ([]*User, int, error) {
	if f.Email == "" || f.ExternalID == "" {
		return s.store.Users(ctx, account, f, p)
	}
	list, _, err := s.store.Users(ctx, account, UserFilter{ExternalID: f.ExternalID}, Page{Number: 1, Size: 1})
	if err != nil || len(list) == 0 || list[0].Email == nil || FoldEmail(*list[0].Email) != FoldEmail(f.Email) {
		return nil, 0, err
	}
	if p.Offset() > 0 {
		return nil, 1, nil
	}
	return list, 1, nil
}

// UpdateUser sets the members that p names and returns the whole user.
func (s *Service) UpdateUser(ctx context.Context, account string, id int64, p UserPatch) (*User, error) {
	if err := s.checkNoKey(ctx, account, p); err != nil {
		return nil, err
	}
	return batchOf(ctx, s, account, false, func(b *Batch) (*User, error) { return b.UpdateUser(id, p) })
}

// UpdateUser is [Service.UpdateUser] in a batch.
func (b *Batch) UpdateUser(id int64, p UserPatch) (*User, error) {
	before, err := b.User(id)
	if err != nil {
		return nil, err
	}
	u := *before
	if p.CustomStart.Set {
		if u.Anchors, err = u.Anchors.moved(p.CustomStart.OrZero(), b.s.now()); err != nil {
			return nil, err
		}
	}
	if err := p.apply(b, &u); err != nil {
		return nil, err
	}
	u.UpdatedAt = b.s.after(u.UpdatedAt)
	return &u, b.putUser(before, &u)
}
