package core

import (
	"encoding/json"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
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
	Overrides  *Overrides      `json:"overrides,omitempty"`
	CreatedAt  time.Time       `json:"created_at"`
	UpdatedAt  time.Time       `json:"updated_at"`
}

// FoldEmail returns the form in which addresses are compared: in lower case. The Kelvin sign and the I with a dot stay, although their lower case is k and
// i: such an address must not match the address in ASCII.
func FoldEmail(email string) string {
	return strings.Map(func(r rune) rune {
		if lower := unicode.ToLower(r); r < utf8.RuneSelf || lower >= utf8.RuneSelf {
			return lower
		}
		return r
	}, email)
}

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
	Overrides  Optional[[]Override]

	// CustomStart is the time with which the windows of the user begin; cleared, they begin with the calendar.
	CustomStart Optional[time.Time]
}

// UserMembers describe users. The transaction checks plan_id and custom_start, and that an override ends in the future.
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
			unchecked(func(u *User, v bool) { u.Disabled = v })),
		nullable("overrides", TypeOverrides, func(p *UserPatch) *Optional[[]Override] { return &p.Overrides }, func(u *User) *[]Override { return notNil(u.Overrides.List()) },
			func(u *User, v *[]Override) error {
				u.Overrides = nil
				if len(OrZero(v)) > 0 {
					u.Overrides = new(Overrides(*v))
				}
				return checkOverrides(OrZero(v))
			}),
	},
	fresh: func() *User { return new(User) },
}

// Check returns the error of the members that neither an account nor the time affects, for a new user.
func (p UserPatch) Check() error { return UserMembers.Apply(&p, new(User)) }

// Apply checks and sets the members that do not depend on other resources. An override that has ended may stay as it is: what GET
// answers can be sent back.
func (p UserPatch) Apply(u *User, now time.Time) error {
	if err := checkEnds(OrZero(p.Overrides.Value), u.Overrides.List(), now); err != nil {
		return err
	}
	return UserMembers.Apply(&p, u)
}
