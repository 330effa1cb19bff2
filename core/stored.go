package core

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// The Check methods check a stored resource by the rules for requests. An import calls them, so a file follows the same rules as a request.
// They do not check ids and references to other resources.

// Check returns a validation error unless the name, the key prefixes and the meters of the account are valid.
func (a *Account) Check() error {
	if err := checkStoredName(a.Name); err != nil {
		return err
	}
	for i, name := range a.FormerNames {
		if err := checkStoredName(name); err != nil {
			return err
		}
		if i >= MaxFormerNames || name == a.Name || slices.Contains(a.FormerNames[:i], name) {
			return Invalid("former_names", fmt.Sprintf("Former names must be at most %d, each there once, without the present name", MaxFormerNames))
		}
	}
	rebuilt := Account{}
	for _, prefix := range a.KeyPrefixes {
		if err := rebuilt.accept(prefix); err != nil {
			return err
		}
	}
	if err := (AccountPatch{KeyPrefix: new(a.PrefixOfNewKeys())}).Apply(&rebuilt); err != nil {
		return err
	}
	if len(rebuilt.KeyPrefixes) != len(a.KeyPrefixes) {
		return Invalid("key_prefixes", "Key prefixes must be there once, with the prefix of new keys, and without "+secrets.DefaultKeyPrefix)
	}
	if len(a.Meters) > MaxMetersEver {
		return Invalid("meters", fmt.Sprintf("An account has at most %d meters in its lifetime", MaxMetersEver))
	}
	for _, m := range a.Meters {
		if err := checkMeterName("meters", m); err != nil {
			return err
		}
	}
	for _, m := range a.OwnMeters {
		if !slices.Contains(a.Meters, m) {
			return Invalid("own_meters", "Each of the own meters must be one of the meters")
		}
	}
	return nil
}

// Check returns a validation error unless the name, the role and the hint of the owner's key are valid.
func (k *OwnerKey) Check() error {
	if err := checkStoredName(k.Name); err != nil {
		return err
	}
	if err := CheckRole(k.ItsRole(), KeyRoles()); err != nil {
		return err
	}
	return checkHint(k.Hint)
}

// Check returns a validation error unless the hash of the password asks for at most MaxArgonMemory, MaxArgonTime and MaxArgonLanes, and each
// list is within its bound. A sign-in computes the hash: a larger one could take all memory.
func (ac *Access) Check() error {
	if err := checkPassword(ac.Password); err != nil {
		return err
	}
	if err := ac.checkPeople(); err != nil {
		return err
	}
	if len(ac.Links) > MaxLinks || len(ac.Sessions) > MaxSessions || len(ac.Browsers) > MaxBrowsers {
		return Invalid("sessions", fmt.Sprintf("An account has at most %d links, %d sessions and %d browsers", MaxLinks, MaxSessions, MaxBrowsers))
	}
	for _, b := range ac.Browsers {
		if ac.PasswordOf(b.PersonID) == nil {
			return Invalid("browsers", "Each browser must be of one of the people, or of the account")
		}
	}
	for _, se := range ac.Sessions {
		if ac.PasswordOf(se.PersonID) == nil {
			return Invalid("sessions", "Each session must be of one of the people, or of the account")
		}
		if se.UserAgent != CleanUserAgent(se.UserAgent) || len(se.Address) > maxAddress {
			return Invalid("sessions", "The browser or the address of a session is too long, or has other characters than a browser sends")
		}
		if len(se.SpentForms) > MaxSpentForms {
			return Invalid("sessions", fmt.Sprintf("A session has at most %d used tokens", MaxSpentForms))
		}
		for _, token := range se.SpentForms {
			if len(token.ID) > secrets.MaxLength {
				return Invalid("sessions", "A used token is too long")
			}
		}
	}
	return nil
}

// maxAddress is the largest length of a stored address in bytes.
const maxAddress = 64

// checkPeople returns a validation error unless the people are valid, and have ids and emails of their own.
func (ac *Access) checkPeople() error {
	if len(ac.People) > MaxPeople {
		return Invalid("people", fmt.Sprintf("An account has at most %d people", MaxPeople))
	}
	for i := range ac.People {
		p := &ac.People[i]
		if err := p.check(); err != nil {
			return err
		}
		if ac.Person(p.ID) != p || ac.PersonByEmail(p.Email) != p {
			return Invalid("people", "Two people must not have the same id or email")
		}
	}
	return nil
}

// checkPassword returns a validation error unless the text is empty or the hash of a password that a sign-in can compute.
func checkPassword(hash string) error {
	if hash == "" {
		return nil
	}
	if _, err := secrets.ParsePHC(hash); err != nil {
		return Invalid("password", fmt.Sprintf("Password must be an argon2id hash with at most m=%d, t=%d and p=%d", secrets.MaxArgonMemory, secrets.MaxArgonTime, secrets.MaxArgonLanes))
	}
	return nil
}

// Check returns a validation error unless the members of the user are valid.
func (u *User) Check() error {
	if len(u.Anchors) > MaxAnchors {
		return Invalid("anchors", fmt.Sprintf("A user has at most %d anchors", MaxAnchors))
	}
	for i, a := range u.Anchors[min(1, len(u.Anchors)):] {
		if !a.From.After(u.Anchors[i].From) {
			return Invalid("anchors", "Anchors must be sorted by from")
		}
	}
	return UserMembers.check(u)
}

// Check returns a validation error unless the members of the key are valid.
func (k *Key) Check() error {
	if len(k.Previous) > MaxGraceValues {
		return Invalid("previous", fmt.Sprintf("At most %d earlier values of a key work", MaxGraceValues))
	}
	if err := checkHint(k.Hint); err != nil {
		return err
	}
	return KeyMembers.check(k)
}

// checkStoredName returns an error unless a name is valid and has no space at its ends.
func checkStoredName(name string) error {
	cleaned, err := CleanName("name", name)
	if err == nil && cleaned != name {
		err = Invalid("name", "Name must have no insignificant space")
	}
	return err
}

// checkHint returns an error unless a hint has the form of a hint, in few bytes.
func checkHint(hint string) error {
	const most = 64
	if len(hint) > most || !strings.Contains(hint, "…") || !utf8.ValidString(hint) || strings.ContainsFunc(hint, unicode.IsControl) {
		return Invalid("hint", fmt.Sprintf("Hint must be the prefix and the last characters of a value, such as lk_user_…wxyz, at most %d bytes", most))
	}
	return nil
}
