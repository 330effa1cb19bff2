// Package resource keeps the accounts, owner's keys, users, plans, keys, webhooks and events of a [core.Store]: their records, the sets that list
// them, and the values that only one of them may have. It does so over a [Database], so every database keeps them alike.
//
//	Store.PutUser … ──► Tx ──► Changes ──► Database: one commit
//	Store.Users … ────► Reader ──────────► Database: records and sets
package resource

import (
	"context"

	"github.com/limitkeeper/limitkeeper/core"
)

// Kind is a kind of resource. Within a [Scope], a kind and an id name one record.
type Kind byte

// The kinds of resources. The id of a user is its ID in decimal digits.
const (
	Account  Kind = 'A'
	OwnerKey Kind = 'O' // its id is that of the account with its own, see ownerKeyID
	Access   Kind = 'I' // the id is that of the account; an access has no number and is in no set
	User     Kind = 'U'
	Plan     Kind = 'P'
	Key      Kind = 'K'
	Prices   Kind = 'T' // of an account: the id is empty. Prices have no number and are in no set.
	Webhook  Kind = 'W'
	Event    Kind = 'N'
	Attempt  Kind = 'J' // an entry of the delivery log of a webhook
	Removed  Kind = 'D' // has no records: its last number is the number of removed accounts
)

// Scope is what a transaction reads and changes: the users, plans and keys of an account, or the registry, which has all accounts, owner's keys
// and the ways to sign in. A transaction in the registry that names an account changes only records that the account already has. With Names, it may also give
// the account another name: a unique value of the whole registry.
type Scope struct {
	Account  string
	Registry bool
	Names    bool
}

// Of returns the account that the paths of the scope begin with, "" for the registry.
func (s Scope) Of() string {
	if s.Registry {
		return ""
	}
	return s.Account
}

// Database is what a store implements to have [Resources].
type Database interface {
	// View calls fn with a reader. fn may run more than once.
	View(ctx context.Context, in Scope, fn func(Reader) error) error
	// Change calls fn with a reader, and stores the changes that fn returns in one step, if what fn has read is still current;
	// otherwise fn runs again. Empty changes store nothing. An error of fn is returned as it is. Without room for
	// more, changes that create a resource are [core.ErrUnavailable].
	Change(ctx context.Context, in Scope, fn func(Reader) (*Changes, error)) error
	// Purge removes a bounded part of the data that the database keeps of an account beside its resources, owner's keys and access, which the caller
	// has removed. The caller removes the record of the account afterwards. Purge returns whether more is left. It may be repeated.
	Purge(ctx context.Context, a *core.Account) (more bool, err error)
}

// Reader reads the records of a scope. Its errors are errors of core.
type Reader interface {
	// Exists reports whether the account of the scope exists and is not being removed.
	Exists() (bool, error)
	// Records returns the record of each id, nil for a missing one.
	Records(kind Kind, ids ...string) ([][]byte, error)
	// Page returns at most n records of a set, from offset on in the order of their numbers, and the size of the set.
	Page(kind Kind, set string, offset, n int) (records [][]byte, size int, err error)
	// After returns at most n records of a set whose numbers are larger than a number, in their order, and the size of the set.
	After(kind Kind, set string, number int64, n int) (records [][]byte, size int, err error)
	// Members returns at most n members of a set, from offset on in the order of their numbers. The members fit into a [SetChange] of another set.
	Members(set string, offset, n int) ([]Member, error)
	// Sizes returns the size of each set.
	Sizes(sets ...string) ([]int, error)
	// Holder returns the id of the resource with a unique value, "" for none.
	Holder(u Unique) (id string, err error)
	// Counters is [core.View.Counters].
	Counters(ids []core.CounterID) ([]core.Counter, error)
	// Last returns the largest number that was given to a resource of the kind.
	Last(kind Kind) (int64, error)
	// Audit returns the entries of the audit log of the scope, which names an account, with a smaller number than before, newest first: at most n. total
	// is the number of all entries.
	Audit(before int64, n int) (list []AuditRecord, total int, err error)
}

// Unique is a value that at most one resource of a scope has, such as an email.
type Unique struct{ Name, Value string }

// Changes are what a transaction stores.
type Changes struct {
	Records []Record
	Sets    map[string]*SetChange
	Unique  map[Unique]string // the id of the resource that has the value, "" for none
	Last    map[Kind]int64
	Creates bool // a resource is new
	Audit   Audit
	Purges  bool // the account is being removed: the days of its deleted users are not kept

	// The same changes as resources. Counters, digests and caches follow them.
	Accounts  []*Change[core.Account]
	OwnerKeys []*Change[core.OwnerKey]
	Users     []*Change[core.User]
	Plans     []*Change[core.Plan]
	Keys      []*Change[core.Key]
	Prices    []*Change[core.Prices]
	Webhooks  []*Change[core.Webhook]
	Events    []*Change[core.Event]
}

// Empty reports whether there is nothing to store.
func (c *Changes) Empty() bool {
	return len(c.Records)+len(c.Last)+len(c.Audit.Append) == 0 && c.Audit.Last == 0
}

// Audit is the change of an audit log. The database makes it in the same step as the other changes.
type Audit struct {
	Log         Scope // names an account, also in the registry
	Append      []*AuditRecord
	First, Last int64 // remove the entries with numbers from First to Last, the oldest [core.MaxImport] of them; a Last of 0 removes none
}

// AuditRecord is the record of an entry in an audit log.
type AuditRecord struct {
	Number int64 // of a new entry: the wanted number, see [core.AuditEntry.Wanted]. The database replaces it by [core.NextAuditSeq]
	Value  []byte
}

// Record is the new record of a resource.
type Record struct {
	Kind   Kind
	ID     string
	Number int64  // its place in sets; 0 for a resource of the registry that is not new
	Was    int64  // the number before; 0 for a new resource, and for any of the registry
	Value  []byte // nil: deleted
}

// SetChange lists the resources that enter or leave a set. One that leaves with a number may enter with another. A resource of the registry leaves
// with the number 0.
type SetChange struct{ Remove, Add []Member }

// Member is a resource in a set.
type Member struct {
	Number int64
	ID     string
}

// Change is a resource before and after a transaction, nil for none.
type Change[T any] struct {
	Before, After *T
	Given         bool // the caller has given the number. An earlier resource may have had the number of a new one

	record  []byte // of Before
	value   []byte // of After
	number  int64  // of a new resource of the registry
	written bool
}

// now returns the resource including the writes of the transaction.
func (c *Change[T]) now() *T {
	if c.written {
		return c.After
	}
	return c.Before
}
