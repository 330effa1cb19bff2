package core

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// Account is a company that sells an API: the tenant. Accounts cannot see or affect each other.
type Account struct {
	ID        string    `json:"id"` // acct_…
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"created_at"`

	KeyPrefix   string   `json:"key_prefix,omitempty"`   // of new keys; "": DefaultKeyPrefix
	KeyPrefixes []string `json:"key_prefixes,omitempty"` // of new and of earlier keys, besides DefaultKeyPrefix
	AnyKeyForm  bool     `json:"any_key_form,omitempty"` // keys need no prefix: each value of key characters is looked up

	Meters    []string `json:"meters,omitempty"`     // that a limit or a price names or has named, besides requests
	OwnMeters []string `json:"own_meters,omitempty"` // the part of Meters that limits of keys and overrides have named

	FormerNames []string `json:"former_names,omitempty"` // see [Account.Rename], the latest last
	Disabled    bool     `json:"disabled,omitempty"`     // until the operator enables the account, see [Account.Closed]
	Deleting    bool     `json:"deleting,omitempty"`     // everything of the account is being removed, see [Store.PurgeAccount]

	UsageFeed UsageFeed `json:"usage_feed,omitzero"` // the progress of the feed

	Import *AccountImport `json:"import,omitempty"` // the import that has created the account; nil for none
}

// AccountImport is an import that has created an account. Until it is complete the account lacks records, and the service
// refuses the account.
type AccountImport struct {
	SHA256   string `json:"sha256"` // of the imported records, in hexadecimal digits
	Complete bool   `json:"complete"`
	Run      string `json:"run,omitempty"` // the run of the import that writes the account; other runs have ended

	// The numbers of imported records, when the import is complete.
	Plans  int64 `json:"plans,omitempty"`
	Users  int64 `json:"users,omitempty"`
	Keys   int64 `json:"keys,omitempty"`
	Events int64 `json:"events,omitempty"`
}

// Incomplete reports whether an account lacks records, because its import has not finished.
func (a *Account) Incomplete() bool { return a.Import != nil && !a.Import.Complete }

// The bounds of key prefixes.
const (
	minKeyPrefixLetters = 4  // ordinary words do not begin with the prefix
	MaxKeyPrefixes      = 16 // of an account, besides DefaultKeyPrefix
)

// idPrefixes are the prefixes of ids. Ids must not be masked as secrets.
var idPrefixes = []string{"key_", "acct_", "okey_", "plan_", PersonIDPrefix, holdPrefix, auditIDPrefix}

// CheckKeyPrefix returns an error unless the prefix is valid: [secrets.DefaultKeyPrefix], or up to 32 characters of a to z, 0 to 9 and _,
// at least 4 of them letters. It begins with a letter, not with lk_, and ends with _. It is not a suffix of a prefix of ids.
func CheckKeyPrefix(prefix string) error {
	const field, allowed = "key_prefix", "abcdefghijklmnopqrstuvwxyz0123456789_"
	wrong := strings.Trim(prefix, allowed)
	letters := strings.Map(func(r rune) rune {
		if r < 'a' || r > 'z' {
			return -1
		}
		return r
	}, prefix)
	id := slices.IndexFunc(idPrefixes, func(id string) bool { return strings.HasSuffix(id, prefix) })
	switch {
	case prefix == secrets.DefaultKeyPrefix:
		return nil
	case prefix == "" || len(prefix) > secrets.MaxPrefix:
		return Invalid(field, fmt.Sprintf("A key prefix has 1 to %d characters, and not %d", secrets.MaxPrefix, len(prefix)))
	case wrong != "":
		r, _ := utf8.DecodeRuneInString(wrong)
		return Invalid(field, fmt.Sprintf("A key prefix has letters a to z, digits and _ only, and not %q", r))
	case prefix[0] < 'a' || prefix[0] > 'z':
		return Invalid(field, fmt.Sprintf("A key prefix begins with a letter, and not with %q", prefix[0]))
	case !strings.HasSuffix(prefix, "_"):
		return Invalid(field, "A key prefix ends with _, as in acme_live_")
	case len(letters) < minKeyPrefixLetters:
		return Invalid(field, fmt.Sprintf("A key prefix has at least %d letters, as in acme_, and not %d", minKeyPrefixLetters, len(letters)))
	case strings.HasPrefix(prefix, secrets.OwnerPrefix):
		return Invalid(field, "A key prefix does not begin with lk_, which is kept for Limitkeeper; only lk_user_ does")
	case id >= 0:
		return Invalid(field, fmt.Sprintf("The key prefix %s is the end of the id prefix %s: choose a longer one", prefix, idPrefixes[id]))
	}
	return nil
}

// AccountPatch holds the members of an account to set. A nil pointer leaves the member alone.
type AccountPatch struct {
	KeyPrefix *string // of the keys that are created from now on, see CheckKeyPrefix

	Accept     []string // prefixes of imported keys, to add to KeyPrefixes
	AnyKeyForm *bool    // see [Account.AnyKeyForm]
}

// Apply checks and sets the members.
func (p AccountPatch) Apply(a *Account) error {
	if p.AnyKeyForm != nil {
		a.AnyKeyForm = *p.AnyKeyForm
	}
	for _, prefix := range p.Accept {
		if err := a.accept(prefix); err != nil {
			return err
		}
	}
	if p.KeyPrefix == nil {
		return nil
	}
	if err := a.accept(*p.KeyPrefix); err != nil {
		return err
	}
	if a.KeyPrefix = *p.KeyPrefix; a.KeyPrefix == secrets.DefaultKeyPrefix {
		a.KeyPrefix = ""
	}
	return nil
}

// accept adds a prefix to the key prefixes of the account.
func (a *Account) accept(prefix string) error {
	if err := CheckKeyPrefix(prefix); err != nil {
		return err
	}
	if prefix == secrets.DefaultKeyPrefix || slices.Contains(a.KeyPrefixes, prefix) {
		return nil
	}
	if len(a.KeyPrefixes) >= MaxKeyPrefixes {
		return Invalid("key_prefix", fmt.Sprintf("An account has at most %d key prefixes besides %s. Choose one that the account has: %s",
			MaxKeyPrefixes, secrets.DefaultKeyPrefix, strings.Join(a.KeyPrefixes, " ")))
	}
	a.KeyPrefixes = append(a.KeyPrefixes, prefix)
	return nil
}

// PrefixOfNewKeys returns the prefix of the keys that the account creates.
func (a *Account) PrefixOfNewKeys() string { return cmp.Or(a.KeyPrefix, secrets.DefaultKeyPrefix) }

// The default caps of an account. They keep one account from filling the disk and memory
// that all accounts share.
const (
	DefaultMaxUsers = 1_000_000
	DefaultMaxKeys  = 1_000_000
	DefaultMaxPlans = 10_000
)
