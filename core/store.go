package core

import (
	"context"
	"io"
	"time"
)

// Store persists what the service decides. Implementations are in storage/, and
// storage/storetest checks every promise made here.
//
// All methods may be called by many goroutines at once. A write that has returned
// without an error survives the death of the process. A write that has returned
// an error has changed nothing, or is [ErrUnavailable]: then it may or may not
// have happened, whole.
//
// What a method returns is the caller's own copy, and what is given to one may be
// changed by the caller afterwards. Strings, numbers and compact JSON come back as
// they went in, times as the same instant in UTC.
//
// A missing account, or something of another account, is reported like something
// that does not exist: by ErrUserNotFound, ErrPlanNotFound, ErrKeyNotFound,
// ErrOwnerKeyNotFound; in a list, by nothing at all; as a counter, by the zero
// counter.
//
// Lists come in the order of creation, oldest first, with the total that matches,
// and an empty slice or nil beyond the end. Neither a page nor a total takes time
// that grows with the number of resources: a page of 10 out of 100,000, and its
// total, cost about what they cost out of 100.
//
// After Close every method returns ErrUnavailable. Close finishes what was begun:
// the denials that were answered are in the history when the store is opened again.
type Store interface {
	// CreateAccount stores an account with its first owner's key, both or none. A
	// name that is taken is ErrAccountExists, a digest that is taken
	// ErrOwnerKeyExists.
	CreateAccount(ctx context.Context, a *Account, k *OwnerKey) error
	// AccountByName returns the account with exactly this name, or
	// ErrAccountNotFound.
	AccountByName(ctx context.Context, name string) (*Account, error)
	// Account returns the account with the id, or ErrAccountNotFound.
	Account(ctx context.Context, id string) (*Account, error)
	// Accounts lists all accounts.
	Accounts(ctx context.Context, p Page) ([]*Account, int, error)

	// CreateOwnerKey stores another owner's key of an account, which must exist
	// (ErrAccountNotFound). A digest that any account has is ErrOwnerKeyExists.
	CreateOwnerKey(ctx context.Context, k *OwnerKey) error
	// OwnerKeyByDigest returns the owner's key of any account that has the digest,
	// in force or not, or ErrOwnerKeyNotFound.
	OwnerKeyByDigest(ctx context.Context, d Digest) (*OwnerKey, error)
	// OwnerKeys lists the owner's keys of an account.
	OwnerKeys(ctx context.Context, account string, p Page) ([]*OwnerKey, int, error)
	// UpdateOwnerKey runs fn on an owner's key and stores what it left, atomically.
	// fn does not change identity or digest, and may be run again. Its error is
	// returned and nothing stored.
	UpdateOwnerKey(ctx context.Context, account, id string, fn func(*OwnerKey) error) (*OwnerKey, error)

	// Access returns how an account is signed in to, the zero Access when nobody ever
	// did. A missing account is ErrAccountNotFound.
	Access(ctx context.Context, account string) (*Access, error)
	// UpdateAccess runs fn on the Access of an account and stores what it left,
	// atomically. fn may be run again. Its error is returned and nothing stored. A missing
	// account is ErrAccountNotFound.
	UpdateAccess(ctx context.Context, account string, fn func(*Access) error) (*Access, error)

	// Update runs fn in a transaction on the resources of one account. When fn
	// returns nil all its writes happen at once, else none does and its error is
	// returned. Transactions of one account are serializable: what fn has read is
	// still true when its writes happen. fn may be run more than once, and must not
	// use the store itself. In a missing account it finds nothing, and every Put is
	// ErrAccountNotFound.
	Update(ctx context.Context, account string, fn func(Tx) error) error

	// User returns a user, or ErrUserNotFound.
	User(ctx context.Context, account string, id int64) (*User, error)
	// Users lists the users that match, by id.
	Users(ctx context.Context, account string, f UserFilter, p Page) ([]*User, int, error)
	// Plan returns a plan, or ErrPlanNotFound.
	Plan(ctx context.Context, account, id string) (*Plan, error)
	// Plans lists the plans by Seq.
	Plans(ctx context.Context, account string, p Page) ([]*Plan, int, error)
	// Key returns a key, or ErrKeyNotFound.
	Key(ctx context.Context, account, id string) (*Key, error)
	// KeyByDigest returns the key of any account that has the digest among its
	// Digests, whether it still works or not, or ErrKeyNotFound.
	KeyByDigest(ctx context.Context, d Digest) (*Key, error)
	// Keys lists the keys that match, by Seq.
	Keys(ctx context.Context, account string, f KeyFilter, p Page) ([]*Key, int, error)

	// Consume counts a request if it fits, and appends its entry to the history of
	// the key and of the user, in one atomic and durable step. It follows
	// [Counter.Consume] on the deciding counter, and returns the usage after the
	// step and whether the request is allowed. Of any number of concurrent calls on
	// one counter exactly as many are allowed as fit.
	//
	// An allowed request with a cost counts on the key's counter, and when the
	// user's counter decides, on that too. A cost of 0 writes nothing. A denied
	// request counts nowhere and need not be durable when Consume returns: its
	// entry, marked Denied, is appended soon after when [Counter.Deny] of the key's
	// counter says so. How many were recorded on the day survives the process.
	//
	// A key or user that does not exist, as one that was deleted meanwhile, counts
	// nothing and is ErrKeyNotFound or ErrUserNotFound: what was deleted does not come
	// back.
	//
	// An allowed request with a cost and a RequestID is remembered in the same step,
	// under its key and that id, for RequestIDRetention of the clock of the requests:
	// [Consumption.Repeats] says until when. Asked again with the id, whatever else is
	// different, Consume writes nothing and answers what it answered then: allowed, with
	// the usage and its window as they were, and the terms as First. That count is
	// durable by then, also when both were asked at once. An id is the exact string. A
	// denied request is not remembered, nor one of cost 0. Deleting the key forgets its
	// ids, changing it does not. When the clock steps back after the time of an id was
	// over, it may be remembered or not.
	//
	// Once the step has begun it is finished, whatever becomes of ctx.
	Consume(ctx context.Context, c *Consumption) (ConsumeResult, error)
	// Counters returns the counters with the ids, in that order, each as it was
	// after every Consume that has returned.
	Counters(ctx context.Context, ids []CounterID) ([]Counter, error)
	// PlanTotals returns what the counters that draw on a plan have used in the window of a
	// period at a time, see [Counter.Usage]: those of the keys and of the users whose
	// PlanID it is, which is not empty. Of those that have used something, Most has the n
	// that have used the most, the most first; of those that have used the same the users
	// come first, by their ids, and then the keys, by their Seq. Every Consume that has
	// returned is in it. It need not be of one moment: what comes or goes meanwhile may be
	// in it or not, and Most the shorter for what goes.
	PlanTotals(ctx context.Context, account, plan string, p Period, at time.Time, n int) (PlanTotals, error)
	// History returns a page of the entries of a key or user, newest first, in the
	// order in which they were counted, and how many there are, leaving out those
	// from since and before. What was answered as allowed is in it.
	History(ctx context.Context, of CounterID, since time.Time, p Page) ([]Entry, int, error)

	// Days returns the traffic on each day from first to last, in that order and without
	// a gap, with every Consume that has returned. There are at most [DaysKept] days. What
	// is a sum over many keys or users need not be of one moment.
	//
	// Consume adds the cost of a request, in its step, to what its key and its user were
	// allowed on that day, or were denied: also of a denied request that is not in the
	// history, but of none that is a repeat or costs nothing. When the user's counter
	// decides, it adds it to the Shared traffic of the user as well: see [CounterDay]. Each
	// of these numbers is a [Tally] of a day by itself, left only for a later day; that of
	// what a counter allowed is the one in its Tallies. What was denied a moment before the
	// process died may be missing.
	//
	// A day is kept for [DaysKept] days, and may be missing afterwards. Deleting a key
	// forgets its days, and leaves those of its user; a deleted user takes its days along.
	Days(ctx context.Context, of DaysFilter, first, last Date) ([]DayTotals, error)

	io.Closer
}

// MaxImport is how many entries or counters an [Importer] takes at once.
const MaxImport = 1000

// Importer is a [Store] that can take over what another store holds. Accounts and
// owner's keys are created there, users, plans and keys are put by Update under the
// numbers that they have: a number that is put was given, and the next one is larger.
// What was deleted may be put again at once, and so may its number under another id: the
// history is empty then and the counter zero, whatever was there before; the request ids
// of before may be remembered or not. A key that is put with another UserID keeps its
// history and its counter.
type Importer interface {
	Store

	// AppendHistory appends entries to the histories of their user and of their keys, in
	// their order and as they are, Denied or not: nothing is counted, thinned out or
	// remembered as a request id. There are at most [MaxImport], all of one user, and of
	// keys that are this user's at that moment, any number of them. retention is that of
	// [Consumption].
	//
	// An entry is appended to both histories in one step, or to neither. When it returns
	// nil all are durable, and History shows them. A missing user is ErrUserNotFound, a
	// missing key ErrKeyNotFound, which a store may also say of a key that is another
	// user's. After any error the first few of the entries were appended, or none, or all:
	// asking again would append them again.
	AppendHistory(ctx context.Context, account string, entries []Entry, retention time.Duration) error

	// SetCounters puts counters in place of those with the ids, in that order, at most
	// [MaxImport]: Tallies, LastUsedAt and DeniedOmitted become as given, larger or
	// smaller, and the histories stay. Each is replaced in one step, and a Consume comes
	// before it, and is forgotten, or after it, and counts on top. What a counter allowed on
	// the day of its tally becomes what that says, and other days stay. When it returns nil
	// all are durable.
	//
	// A missing key or user is ErrKeyNotFound or ErrUserNotFound. After any error some of
	// the counters were replaced and others not: setting them again is enough.
	SetCounters(ctx context.Context, ids []CounterID, counters []Counter) error

	// CounterDays returns the days that are kept of a key or user on which there was
	// traffic, the oldest first. That of a missing one is empty.
	CounterDays(ctx context.Context, id CounterID) ([]CounterDay, error)

	// SetDays puts days, the oldest first and none twice, in place of those of a key or
	// user, which has its counter already: what that allowed on the day of its tally is what
	// the tally says, whatever is given here, and no day after it is one on which it allowed
	// anything. A missing key or user is ErrKeyNotFound or ErrUserNotFound. After any error
	// some of the days were replaced and others not: setting them again is enough.
	SetDays(ctx context.Context, id CounterID, days []CounterDay) error
}

// CappedHistory is a [Store] that does not keep every entry for as long as it was asked
// to. It drops the oldest entries of a history first.
type CappedHistory interface {
	// HistoryCap returns how many entries of each history are kept, the newest ones, 0 for
	// all. Older ones may be missing.
	HistoryCap() int
	// HistoryCut reports whether a history may have fewer entries than HistoryCap says,
	// because the store bounds the bytes of the history.
	HistoryCut(ctx context.Context, of CounterID) (bool, error)
}

// HealthStore is a [Store] that can refuse requests while it can be read.
type HealthStore interface {
	// Health returns nil while requests are counted. Else its error is an [Error] with the code
	// [CodeUnavailable], whose message says why to anybody.
	Health(ctx context.Context) error
}

// Tx is a transaction on the resources of one account. Its reads show the account
// as it was when the transaction began: read first, then write, and write each
// thing once. What its methods return is the caller's own.
type Tx interface {
	// User returns a user, or ErrUserNotFound.
	User(id int64) (*User, error)
	// Plan returns a plan, or ErrPlanNotFound.
	Plan(id string) (*Plan, error)
	// Key returns a key, or ErrKeyNotFound.
	Key(id string) (*Key, error)
	// CountUsers returns how many users match.
	CountUsers(f UserFilter) (int, error)
	// CountKeys returns how many keys match.
	CountKeys(f KeyFilter) (int, error)
	// CountPlans returns how many plans the account has.
	CountPlans() (int, error)

	// PutUser stores a user in place of the one with its ID. A user with the ID 0 is
	// new and gets the next ID: one more than the largest that the account ever gave,
	// from 1. An email that another user of the account has, compared by [FoldEmail],
	// is ErrDuplicateEmail.
	PutUser(u *User) error
	// PutPlan stores a plan in place of the one with its ID. A plan with the Seq 0 is
	// new and gets the next Seq.
	PutPlan(p *Plan) error
	// PutKey stores a key in place of the one with its ID, to be found under its
	// Digests and no others. A key with the Seq 0 is new and gets the next Seq.
	PutKey(k *Key) error
	// DeleteUser deletes a user and its keys with their counters and histories.
	// However many they are, they are all gone for whoever asks afterwards.
	DeleteUser(id int64) error
	// DeletePlan deletes a plan.
	DeletePlan(id string) error
	// DeleteKey deletes a key with its counter and its history. What it used stays
	// in the counter and history of its user.
	DeleteKey(id string) error
}

// UserFilter selects users. At most one member is set.
type UserFilter struct {
	Email  string // the whole address, compared by [FoldEmail]
	PlanID string // users whose PlanID it is
	OnPlan string // users whose PlanID it is, or with a key whose PlanID it is
}

// KeyFilter selects keys that match every member that is set.
type KeyFilter struct {
	UserID int64     // 0 for any
	PlanID *string   // nil for any, "" for keys without a plan of their own
	Status KeyStatus // "" for any
}

// WatchedStore is a [Store] that other processes change, too.
type WatchedStore interface {
	Store
	// Watch tells w of every change to users, plans, keys and owner's keys, until the
	// store is closed. It is called once.
	Watch(w Watcher)
}

// Watcher is told what others change in a store, and how far it may rely on that. Its
// methods may be called by many goroutines at once, and are quick.
type Watcher interface {
	// Changed is called soon after a change, by this process or by another.
	Changed(c Change)
	// RenewLease says that every change up to a moment ago was told, and that the next ones
	// will be: what was read since the last call of Lost may be relied on for so long. 0
	// ends it at once.
	RenewLease(d time.Duration)
	// ChangesMissed says that changes were missed, or may have been.
	ChangesMissed()
}

// Change names what was changed, created or deleted: one of its members beside Account
// is set.
type Change struct {
	Account  string
	UserID   int64
	PlanID   string
	Digest   Digest // a key is found by it, or was
	OwnerKey Digest // an owner's key has it; without Account
}
