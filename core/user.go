package core

import (
	"context"
	"encoding/json"
	"net/mail"
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
	AccountID string          `json:"account_id"`
	ID        int64           `json:"id"` // from 1, ascending within the account
	Name      string          `json:"name"`
	Email     *string         `json:"email,omitempty"`    // as given; unique in the account without regard to case
	PlanID    string          `json:"plan_id,omitempty"`  // "" for none
	Metadata  json.RawMessage `json:"metadata,omitempty"` // an object, nil for none
	Disabled  bool            `json:"disabled,omitempty"`
	CreatedAt time.Time       `json:"created_at"`
	UpdatedAt time.Time       `json:"updated_at"`
}

// FoldEmail returns the form in which two addresses are compared: without regard
// to case.
func FoldEmail(email string) string { return strings.ToLower(email) }

// UserPatch holds the members of a user to set. A nil pointer and an unset
// [Optional] leave the member alone; on creation they leave it empty.
type UserPatch struct {
	Name     *string
	Email    Optional[string]
	PlanID   Optional[string]
	Metadata Optional[json.RawMessage]
	Disabled *bool
}

// apply sets the members on u after checking each, and the plan against tx.
func (p UserPatch) apply(tx Tx, u *User) (err error) {
	if p.Name != nil {
		if u.Name, err = cleanName("name", *p.Name); err != nil {
			return err
		}
	}
	if p.Email.Set {
		if err = checkEmail(p.Email.Value); err != nil {
			return err
		}
		u.Email = p.Email.Value
	}
	if p.Metadata.Set {
		if u.Metadata, err = cleanMetadata(p.Metadata.Value); err != nil {
			return err
		}
	}
	if p.Disabled != nil {
		u.Disabled = *p.Disabled
	}
	if p.PlanID.Set {
		return p.applyPlan(tx, u)
	}
	return nil
}

func (p UserPatch) applyPlan(tx Tx, u *User) error {
	plan := p.PlanID.OrZero()
	if p.PlanID.Value != nil {
		if err := checkPlanGiven(tx, plan, u.PlanID); err != nil {
			return err
		}
	} else if u.ID != 0 && u.PlanID != "" {
		n, err := tx.CountKeys(KeyFilter{UserID: u.ID, PlanID: new("")})
		if err != nil {
			return err
		}
		if n > 0 {
			return invalid("plan_id", "The plan cannot be removed while keys without a plan of their own draw on it: "+count(n, "key"))
		}
	}
	u.PlanID = plan
	return nil
}

// CreateUser makes a user. The name is required. It is a validation error when the account has
// reached max_users.
func (s *Service) CreateUser(ctx context.Context, account string, p UserPatch) (*User, error) {
	if p.Name == nil {
		return nil, invalid("name", "Name is required")
	}
	now := s.now()
	u := &User{AccountID: account, CreatedAt: now, UpdatedAt: now}
	err := s.store.Update(ctx, account, func(tx Tx) error {
		u.ID = 0 // a transaction may be run again
		n, err := tx.CountUsers(UserFilter{})
		if err != nil {
			return err
		}
		if err := checkCap("user", s.caps.users.Load(), n); err != nil {
			return err
		}
		if err := p.apply(tx, u); err != nil {
			return err
		}
		return tx.PutUser(u)
	})
	if err != nil {
		return nil, err
	}
	s.users.forget(userRef{account, u.ID})
	return u, nil
}

// User returns a user, or [ErrUserNotFound].
func (s *Service) User(ctx context.Context, account string, id int64) (*User, error) {
	return s.store.User(ctx, account, id)
}

// Users returns a page of the account's users that match, oldest first, and how
// many match.
func (s *Service) Users(ctx context.Context, account string, f UserFilter, p Page) ([]*User, int, error) {
	return s.store.Users(ctx, account, f, p)
}

// UpdateUser sets the members that p names and returns the whole user.
func (s *Service) UpdateUser(ctx context.Context, account string, id int64, p UserPatch) (u *User, err error) {
	err = s.store.Update(ctx, account, func(tx Tx) error {
		if u, err = tx.User(id); err != nil {
			return err
		}
		if err := p.apply(tx, u); err != nil {
			return err
		}
		u.UpdatedAt = s.after(u.UpdatedAt)
		return tx.PutUser(u)
	})
	s.users.forget(userRef{account, id})
	if err != nil {
		return nil, err
	}
	return u, nil
}

// DeleteUser deletes a user with its keys: they are unknown to the next request.
func (s *Service) DeleteUser(ctx context.Context, account string, id int64) error {
	err := s.store.Update(ctx, account, func(tx Tx) error {
		if _, err := tx.User(id); err != nil {
			return err
		}
		return tx.DeleteUser(id)
	})
	s.users.forget(userRef{account, id})
	return err
}

// cleanName trims a name and holds it to 1…255 characters, none of them a control
// character: a name goes into header fields, logs and terminals.
func cleanName(field, name string) (string, error) {
	name = strings.TrimSpace(name)
	switch n := utf8.RuneCountInString(name); {
	case n == 0:
		return "", invalid(field, title(field)+" is required")
	case n > maxNameLength:
		return "", invalid(field, title(field)+" must be at most 255 characters long")
	case !utf8.ValidString(name):
		return "", invalid(field, title(field)+" must be valid UTF-8")
	case strings.ContainsFunc(name, unicode.IsControl):
		return "", invalid(field, title(field)+" must not hold control characters")
	}
	return name, nil
}

// checkEmail holds an address to the addr-spec of RFC 5322, without a display
// name. nil, no address at all, is fine.
func checkEmail(email *string) error {
	if email == nil {
		return nil
	}
	a, err := mail.ParseAddress(*email)
	if err != nil || a.Address != *email || len(*email) > maxEmailLength {
		return invalid("email", "Invalid email format")
	}
	return nil
}
