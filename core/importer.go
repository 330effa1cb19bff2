package core

import (
	"context"
	"time"
)

// MaxImport is the largest number of entries or counters in one call of an [Importer].
const MaxImport = 1000

// Importer is a [Store] that can import the content of another store. Accounts and owner's keys
// are created as usual. Users, plans and keys are put by Update with the numbers that they have:
// the store marks such a number as given, and the next one is larger.
//
// A deleted resource may be put again at once, and its number may be put with another id. The
// history is then empty and the counter zero; earlier request ids may be remembered or not. A key
// that is put with another UserID keeps its history and its counter.
type Importer interface {
	Store

	// LastNumbers returns the largest numbers that the account has given to users, plans and keys, or that were put. Deleted
	// resources are included. They are 0 in a missing account.
	LastNumbers(ctx context.Context, account string) (Numbers, error)
	// RaiseNumbers makes the account give only numbers larger than n. It lowers none.
	RaiseNumbers(ctx context.Context, account string, n Numbers) error

	// SetHistory replaces the history of a key or user with entries: at most [MaxImport], oldest
	// first. Every other entry is removed; without entries the history is empty. The entries stay
	// as they are, Denied or not. SetHistory counts nothing, leaves nothing out, remembers no
	// request ids, and changes no counter, no day and no other history. retention is that of
	// [Consumption].
	//
	// The entries of a key have its KeyID, and the UserID of the user that the key had at that time.
	// The entries of a user have its UserID. The other key or user of an entry may be deleted.
	//
	// After nil the history is durable. A missing key or user is ErrKeyNotFound or ErrUserNotFound.
	// After an error the history is as before, or it has some number of the entries, from the first
	// on. The call may be repeated.
	SetHistory(ctx context.Context, id CounterID, entries []Entry, retention time.Duration) error

	// AppendHistory appends more entries to the history of a key or user, as SetHistory puts them.
	// After an error some number of entries from the first on, possibly none or all, were appended:
	// begin again with SetHistory.
	AppendHistory(ctx context.Context, id CounterID, entries []Entry, retention time.Duration) error

	// SetCounters replaces the counters with the ids, in the order of ids, at most [MaxImport].
	// The counters take the given values, larger or smaller, see [Counter.Set]. Histories do not change. Each counter is replaced
	// in one step. The count of a concurrent Consume before that step is overwritten. A Consume after that step adds to the given value. [Counter.Day]
	// also sets the allowed traffic of its day; other days do not change. After nil all counters are durable.
	//
	// A missing key or user is ErrKeyNotFound or ErrUserNotFound. After an error some counters may
	// have been replaced. The call may be repeated.
	SetCounters(ctx context.Context, ids []CounterID, counters []Counter) error

	// CounterDays returns the kept days of a key or user on which there was traffic, oldest first, and then the hours.
	// A missing key or user has none.
	CounterDays(ctx context.Context, id CounterID) ([]CounterDay, error)

	// SetDays replaces the days and hours of a key or user. days is sorted as CounterDays returns it, without
	// duplicates. Call SetCounters first. SetDays ignores the allowed traffic that days has on [Counter.Day], and keeps the value of SetCounters. No
	// later day may have allowed traffic.
	//
	// A missing key or user is ErrKeyNotFound or ErrUserNotFound. After an error some days may have been replaced. The call may be repeated.
	SetDays(ctx context.Context, id CounterID, days []CounterDay) error
}

// Numbers are the ID of a user, and the Seqs of a plan and of a key, within an account.
type Numbers struct {
	User int64 `json:"user"`
	Plan int64 `json:"plan"`
	Key  int64 `json:"key"`
}

// LiveStore is an [Importer] that other processes may change during an export.
type LiveStore interface {
	Importer
	// UsersAfter returns at most n users whose ID is larger than id, sorted by ID. Each page begins behind the last user of the page
	// before, so a user that stays is on exactly one page, whatever is created or deleted meanwhile.
	UsersAfter(ctx context.Context, account string, id int64, n int) ([]*User, error)
	// PlansAfter is UsersAfter for plans and their Seq.
	PlansAfter(ctx context.Context, account string, seq int64, n int) ([]*Plan, error)
	// KeysAfter is UsersAfter for keys and their Seq.
	KeysAfter(ctx context.Context, account string, seq int64, n int) ([]*Key, error)
	// CountersWithDays returns what Counters and CounterDays return for each id. A counter and its days are of one instant.
	CountersWithDays(ctx context.Context, ids []CounterID) ([]Counter, [][]CounterDay, error)
}
