package core

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// The bounds of the people of an account.
const (
	MaxPeople     = 40
	maxPersonName = 100 // characters
)

// Person has a role in an account, and signs in with a password of its own or by the authentication of the server.
type Person struct {
	ID       string `json:"id"` // person_…
	Name     string `json:"name"`
	Email    string `json:"email"` // as given; unique among the people of the account, see [FoldEmail]
	Role     Role   `json:"role"`
	Password string `json:"password,omitempty"` // its argon2id hash in the PHC string format; "" for none

	Invitation *SignInLink `json:"invitation,omitempty"` // sets the password, once; nil for none
	CreatedAt  time.Time   `json:"created_at"`
	SeenAt     time.Time   `json:"seen_at,omitzero"` // last use, to 5 minutes; zero before the first sign-in
}

// PersonSpec is what an owner chooses for a new person.
type PersonSpec struct {
	Name, Email string
	Role        Role
}

// Clean trims the name and the email, and checks all members.
func (s PersonSpec) Clean() (_ PersonSpec, err error) {
	if s.Name, err = CleanName("name", s.Name); err != nil {
		return s, err
	}
	if utf8.RuneCountInString(s.Name) > maxPersonName {
		return s, Invalid("name", "Name must be at most 100 characters long")
	}
	if s.Email = strings.TrimSpace(s.Email); s.Email == "" {
		return s, Invalid("email", "Email is required")
	}
	if err := checkEmail(&s.Email); err != nil {
		return s, err
	}
	return s, CheckRole(s.Role, PersonRoles())
}

// Person returns the person with an id, nil for none. The account's own sign-in, with the id "", is not a person.
func (ac *Access) Person(id string) *Person {
	for i := range ac.People {
		if ac.People[i].ID == id {
			return &ac.People[i]
		}
	}
	return nil
}

// PersonByEmail returns the person with an email in any case, nil for none.
func (ac *Access) PersonByEmail(email string) *Person {
	folded := FoldEmail(strings.TrimSpace(email))
	for i := range ac.People {
		if FoldEmail(ac.People[i].Email) == folded {
			return &ac.People[i]
		}
	}
	return nil
}

// PasswordOf returns a pointer to the password hash of a person, or of the account's own sign-in for the id "". It is nil for an unknown person.
func (ac *Access) PasswordOf(person string) *string {
	if person == "" {
		return &ac.Password
	}
	if p := ac.Person(person); p != nil {
		return &p.Password
	}
	return nil
}

// CanSpare reports whether a person may be removed or lose its role. It is false only for an owner that has signed in, while no other owner has and
// the account has no password of its own.
func (ac *Access) CanSpare(person string) bool {
	p := ac.Person(person)
	if p == nil || p.Role != RoleOwner || p.SeenAt.IsZero() || ac.Password != "" {
		return true
	}
	for i := range ac.People {
		if other := &ac.People[i]; other.ID != person && other.Role == RoleOwner && !other.SeenAt.IsZero() {
			return true
		}
	}
	return false
}

// check returns a validation error unless the members of a stored person are valid.
func (p *Person) check() error {
	cleaned, err := PersonSpec{p.Name, p.Email, p.Role}.Clean()
	switch {
	case err != nil:
		return err
	case cleaned.Name != p.Name || cleaned.Email != p.Email:
		return Invalid("people", "The name and the email of a person must have no insignificant space")
	case !strings.HasPrefix(p.ID, PersonIDPrefix) || !secrets.IsRandom(p.ID[len(PersonIDPrefix):]) || len(p.ID) > maxPersonID:
		return Invalid("people", "The id of a person must be "+PersonIDPrefix+" and letters or digits")
	}
	return checkPassword(p.Password)
}

// PersonIDPrefix is the prefix of the ids of people.
const PersonIDPrefix = "person_"

// maxPersonID is the largest length of the id of a person in bytes.
const maxPersonID = 64
