package core

import (
	"context"
	"io"
	"time"

	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// Store persists what the service decides. Implementations are in storage/, and
// storage/storetest checks every promise made here.
//
// Concurrency: all methods are safe for concurrent use.
//
// Durability: a write that returned nil survives the death of the process. A write that returned
// an error changed nothing, unless the error is [ErrUnavailable]: then the whole write or none of
// it was stored.
//
// Ownership: results are copies that the caller may change, and the caller may change its
// arguments after the call. Strings, numbers and compact JSON come back unchanged. Times come back
// as the same instant in UTC.
//
// Accounts are separate: a store reports a missing account, or a resource of another account, as
// a missing resource. The error is ErrUserNotFound, ErrPlanNotFound, ErrKeyNotFound or
// ErrOwnerKeyNotFound. A list is empty, and a counter is the zero counter.
//
// Lists are in the order of creation, oldest first, with the total number of matches. A page
// beyond the end is an empty slice or nil. The time of a page and of its total does not grow with
// the number of resources: a page of 10 out of 100,000 costs about as much as out of 100.
//
// Close: afterwards every method returns ErrUnavailable. Close finishes the writes that have
// begun. Denials that were answered before Close are in the history when the store is opened
// again.
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

	// UpdateAccount runs fn on an account and stores the result, atomically. fn does not change the
	// id or the time of creation, and may run more than once. If fn returns an error,
	// UpdateAccount stores nothing and returns that error. A missing account is ErrAccountNotFound. A new name that another account has is
	// ErrAccountExists; the former name is free at once. A closed account is stored and listed like any other: the service refuses it.
	//
	// fn may set Deleting. From then on, the name is free, and AccountByName and all writes that create something answer as for a missing account. Account and
	// Accounts find the account until PurgeAccount has removed it. Other reads may find resources that are not removed yet.
	UpdateAccount(ctx context.Context, id string, fn func(*Account) error) (*Account, error)

	// PurgeAccount removes a bounded part of an account with Deleting: owner's keys, access, users, plans, keys, prices, webhooks, events, audit logs, counters, days, holds, request ids and
	// rankings, and the account itself last. It returns whether more is left: false also for a missing account. Several processes may call it at once;
	// after a crash the next call goes on. After it has returned false, no read finds anything of the account, whatever the store is rebuilt from, and
	// a new account may have the digests of its keys and owner's keys. An account without Deleting is ErrAccountNotFound.
	PurgeAccount(ctx context.Context, id string) (more bool, err error)

	// CreateOwnerKey stores another owner's key of an account, which must exist
	// (ErrAccountNotFound). A digest that any account has is ErrOwnerKeyExists.
	CreateOwnerKey(ctx context.Context, k *OwnerKey) error
	// OwnerKeyByDigest returns the owner's key of any account that has the digest,
	// in force or not, or ErrOwnerKeyNotFound.
	OwnerKeyByDigest(ctx context.Context, d secrets.Digest) (*OwnerKey, error)
	// OwnerKeys lists the owner's keys of an account.
	OwnerKeys(ctx context.Context, account string, p Page) ([]*OwnerKey, int, error)
	// UpdateOwnerKey runs fn on an owner's key and stores the result, atomically. fn does not
	// change the id or the digest, and may run more than once. If fn returns an error,
	// UpdateOwnerKey stores nothing and returns that error.
	UpdateOwnerKey(ctx context.Context, account, id string, fn func(*OwnerKey) error) (*OwnerKey, error)

	// Access returns how people sign in to an account: the zero Access before the first setup. A
	// missing account is ErrAccountNotFound.
	Access(ctx context.Context, account string) (*Access, error)
	// UpdateAccess runs fn on the Access of an account and stores the result, atomically. fn may
	// run more than once. If fn returns an error, UpdateAccess stores nothing and returns that
	// error. A missing account is ErrAccountNotFound.
	UpdateAccess(ctx context.Context, account string, fn func(*Access) error) (*Access, error)

	// Update runs fn in a transaction on the resources of one account. If fn returns nil, all its
	// writes are stored together. Otherwise none is stored, and Update returns the error of fn.
	// Transactions of one account are serializable: values that fn read are still current when
	// its writes are stored. fn may run more than once, and must not use the store itself. In a
	// missing account fn finds nothing, and every Put is ErrAccountNotFound. A transaction with more writes than the store
	// takes at once is ErrTooLarge.
	Update(ctx context.Context, account string, fn func(Tx) error) error

	// Audit lists the entries of the audit log of an account with a smaller number than before, or all if before is 0, newest first: at most n. total
	// is the number of all entries.
	//
	// CreateAccount, UpdateAccount, CreateOwnerKey, UpdateOwnerKey, UpdateAccess and Update append the entries of [Auditing] in the same step as
	// the change, if the context leaves entries, see [WithAuditTime]. Each log of an account drops its oldest entries beyond [MaxAuditEntries] or
	// [MaxAuditBytes] with every append, and keeps at least the newest one.
	Audit(ctx context.Context, account string, before int64, n int) (list []AuditEntry, total int, err error)
	// AppendAudit appends entries, at most [MaxImport], and sets their numbers. An entry with a number keeps it, unless its log has that number or a
	// larger one. A missing account is ErrAccountNotFound. After an error the entries of one of the two logs may have been appended.
	AppendAudit(ctx context.Context, account string, entries []AuditEntry) error
	// RemoveAudit removes entries with the numbers from first to last, oldest first. It removes at most [MaxImport] entries of each log; more says that
	// others remain.
	RemoveAudit(ctx context.Context, account string, first, last int64) (more bool, err error)

	// View runs fn on a view of one account. fn must not use the store itself, and may run more than once.
	View(ctx context.Context, account string, fn func(View) error) error
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
	KeyByDigest(ctx context.Context, d secrets.Digest) (*Key, error)
	// Keys lists the keys that match, by Seq.
	Keys(ctx context.Context, account string, f KeyFilter, p Page) ([]*Key, int, error)
	// Prices returns the prices of an account: the zero Prices before the first [Tx.PutPrices], and for a missing account.
	Prices(ctx context.Context, account string) (*Prices, error)

	// Webhook returns a webhook, or ErrWebhookNotFound.
	Webhook(ctx context.Context, account, id string) (*Webhook, error)
	// Webhooks lists the webhooks by Seq.
	Webhooks(ctx context.Context, account string, p Page) ([]*Webhook, int, error)
	// Event returns an event, or ErrEventNotFound.
	Event(ctx context.Context, account, id string) (*Event, error)
	// Events returns the first n of the events that match and whose Seq is larger than after, by Seq, and the number of all events that match. An
	// event is on one page only, whatever is put or deleted between the pages.
	Events(ctx context.Context, account string, f EventFilter, after int64, n int) ([]*Event, int, error)
	// Attempts lists the delivery log of a webhook by Seq: every attempt that was put and neither replaced nor deleted with its webhook.
	Attempts(ctx context.Context, account, webhook string, p Page) ([]*Attempt, int, error)

	// Consume counts a request if every limit of its terms has room for it, each of its [Buckets] has a token, and it is
	// not refused. In the same atomic and durable step it appends an entry to the history of the key and of the user. It
	// decides as [Counter.Decide] does, and counts as [Counter.Add] does, on all meters or on none. It returns the usage
	// after the step and whether the request is allowed. Consume is linearizable for each counter: the sum of the allowed
	// costs in a window never exceeds a limit that denies, and a request is denied only for one of the [Reasons].
	//
	// An allowed request that is not a look, see [Consumption.Counts], counts on the counter of the key and, if the counter of the
	// user decides, on both. A look writes nothing. A denied request counts nowhere and need
	// not be durable when Consume returns. If [Counter.Deny] of the counter of the key returns
	// true, an entry marked Denied is appended soon afterwards. The number of denials recorded on
	// a day survives the death of the process.
	//
	// A request without a key has only the counter and the history of its user: the user stands in for the key.
	//
	// An allowed request with a cost takes a token out of each of its [Buckets] that has a rate.
	// A denied request takes none. A dropped bucket is full. A store may drop all buckets when it is closed, and a bucket that is
	// full under the rate of its last request; when it has 1,000,000 other buckets, it may drop any.
	//
	// The entry in the history is that of [Consumption.Recorded], with the limit that refused and the request id. LastRefused of the counter of the
	// key is the second of the last denied request, whether it is recorded or not. Denials of the last moments before the process died
	// may be missing.
	//
	// A refused request is denied and recorded like any denied request, and is never a repeat, see [Consumption.Refused]. An adjustment is made as
	// [Counter.Adjust] makes it, on the deciding counter only, and its entry is in the history of its key and of its user. It
	// is as durable as an allowed request, and its request id is remembered in the same way.
	//
	// A store may cap a usage at [MaxLimit].
	//
	// Holds: an allowed request with a Hold opens that hold in the same step, at the time of [Consumption.NotBefore]. The concurrencies
	// of the terms bound the open holds of the deciding counter and of the key. ErrTooManyHolds means that MaxOpenHolds holds
	// of the deciding counter, or MaxAccountHolds holds of the account, are open already: nothing is counted then. Before a decision,
	// Consume ends the holds of both counters that have expired at the time of the request.
	//
	// A missing or deleted key or user is ErrKeyNotFound or ErrUserNotFound, and nothing is
	// counted: Consume does not restore a deleted counter.
	//
	// Request ids: in the same step, Consume remembers an allowed request with a cost and a
	// RequestID under its key and that id, for RequestIDRetention by the clock of the requests, see
	// [Consumption.Repeats]. A later request with the same id, even with other members, writes
	// nothing. It gets the first answer again: allowed, with the usage and the window of that time,
	// and the terms as FirstTerms, without their rates. The first count is durable by then, even if both requests ran
	// concurrently. Ids are compared byte by byte. Denied requests and requests of cost 0 are not
	// remembered. Deleting the key forgets its ids; changing the key keeps them. If the clock steps
	// back after an id has expired, a store may or may not remember the id.
	//
	// Once the step has begun it is finished, even if ctx is canceled.
	Consume(ctx context.Context, c *Consumption) (ConsumeResult, error)
	// Settle ends an open hold by a [Settlement], and returns the hold afterwards. In one atomic and durable step it changes the
	// counters that have counted the hold, as [Counter.Settle] does, and appends an entry to the history of the key and of the user.
	// The days of the hold change, too: see Days. repeated says that the hold was settled or released before: Settle then returns
	// that hold and changes nothing. A store remembers an ended hold for RequestIDRetention.
	//
	// The error is ErrHoldExpired for a hold that has expired at the time of the settlement, ErrHoldNotFound for an unknown hold,
	// and ErrKeyNotFound or ErrUserNotFound for a hold of a deleted key or user. When a key moves to another user, its open holds
	// end as if they had expired with KeepHeld. Once the step has begun it is finished, even if ctx is canceled.
	Settle(ctx context.Context, c *Consumption) (h *Hold, repeated bool, err error)
	// Hold returns a hold that is open, or that ended at most RequestIDRetention ago. The error is ErrHoldNotFound for any other id. A hold
	// of a deleted key or user may be missing.
	Hold(ctx context.Context, account, id string) (*Hold, error)
	// ExtendHold moves the end of an open hold to until, unless the hold ends later anyway. Reopening the store may undo the change. The error is
	// ErrHoldNotFound for an unknown hold, and ErrHoldExpired for a hold that is not open at the time at: settled, released or expired.
	ExtendHold(ctx context.Context, account, id string, at, until time.Time) error
	// OldestHolds returns the [Hold.At] of the oldest open hold of each user of an account that has one. It includes each hold whose Consume has returned
	// before the call. Expired holds that nothing has ended yet may be included or not, unless they have ReleaseHeld: then they are.
	OldestHolds(ctx context.Context, account string) (map[int64]time.Time, error)
	// ExpireHolds ends the holds of the account that have expired at a time. The held costs of a hold with ReleaseHeld are given back,
	// with an entry in the history for the retention. The held costs of any other hold stay counted.
	ExpireHolds(ctx context.Context, account string, at time.Time, retention time.Duration) error

	// Counters returns the counters with the ids, in the order of ids. Each includes every Consume that has returned.
	Counters(ctx context.Context, ids []CounterID) ([]Counter, error)
	// PlanUsed adds up the usage of the requests in the window of the period at the time at, see [Counter.Usage]. It reads the counters that
	// a plan limits: the counters of all keys and users whose PlanID is plan, which is not empty. The sum is at most [MaxLimit]. Every
	// Consume that has returned is included. The result need not be a snapshot: a key or user that is created or deleted during the call may
	// be included or not.
	PlanUsed(ctx context.Context, account, plan string, p Period, at time.Time) (int64, error)
	// Rank changes the ranking of an account, which lists its counters by their fullest limits. The caller computes the fills, because a store
	// does not know the terms. The list has at most [MaxImport] counters. Each counter changes atomically: its Fills raise the present fills as
	// [RaiseFills] does, or with Exact replace them. A counter without fills leaves the ranking. The account exists; the store does not check
	// that the counters exist. With soon, Rank does not wait for the network: the ranking changes within a second.
	//
	// A ranking keeps the first [MaxRanked] counters in the order of [Ranking]. After counters were left out, the store forgets the time of
	// CompleteRanking as soon as fewer than half of MaxRanked are left. Closing the store may drop the ranking and this time. A ranking is not a
	// record of usage: a crash may lose the last second of changes with soon.
	Rank(ctx context.Context, account string, list []Ranked, soon bool) error
	// Ranking returns a page of the ranking of an account. It includes every Rank without soon that has returned. Its duration does not grow with
	// the number of counters. Fills of windows that have ended do not count, unless the result is [Ranking.Behind].
	Ranking(ctx context.Context, account string, q RankingQuery, p Page) (Ranking, error)
	// CompleteRanking stores the time at which all counters of an account were ranked; the zero time removes it.
	CompleteRanking(ctx context.Context, account string, at time.Time) error

	// History returns a page of the entries of a key or user, newest first, in the order in which they were counted, and the total. Entries at or
	// before since are left out. Every request that was answered as allowed is included. Each entry has its [Entry.Late].
	History(ctx context.Context, of CounterID, since time.Time, p Page) ([]Entry, int, error)

	// Days returns the traffic of each day from first to last, in that order and without a gap. Every Consume that has returned is included. The
	// range has at most [DaysKept] days. A sum over many keys or users need not be a snapshot.
	//
	// Consume adds the cost of a request, in its step, to the traffic of its key and of its user on that day: to Allowed or to Denied. Denied
	// requests that are not in the history are included; repeats and requests of cost 0 are not. If the counter of the user decides, Consume also
	// adds the cost to the Shared traffic of the user, see [CounterDay]. Each of these numbers is a [WindowUsage] of a day. It moves to a later day
	// only, like a window. The allowed cost of the current day is [Counter.Day]. A crash may lose the denials of the last moments.
	//
	// The costs on other meters are added to the traffic of these meters in the same way, on the day that counts the cost of the request.
	// [MeterCount] counts this cost minus 1. An adjustment adds the result of [Counter.Adjust] to Adjusted of its meter. The days of the changed
	// counter have it on the day of the counter's At. Without OwnOnly, the days of the user have it on the day of the request, or on a later day
	// with allowed requests. The numbers of a meter stay from -[MaxLimit] to MaxLimit.
	//
	// A settlement adds the differences of the costs to the allowed costs on the day of its hold. A release also subtracts the request. The result
	// of [Counter.CutOff] is added to Adjusted of that counter on the same day. The result of the deciding counter is also added to Adjusted of the user.
	//
	// For each meter, the sum of Allowed and Adjusted over the days of a month is the usage of the counter of a key in that month. For the counter
	// of a user, this is true of the Shared traffic of its days. For a day, a week and a year, the sum may differ after a change was cut off at 0
	// in some windows only.
	//
	// Days does the same for the hours from first to last, at most [HoursKept]. Whatever changes a number of a day changes the same number of one
	// hour of that day by as much, see [Date.HourIn]: the hour of the request, or of the hold of a settlement. SetCounters changes no hour. So
	// the hours of a day add up to that day, unless SetCounters or SetDays have set other numbers or a number was bounded.
	//
	// A day is kept for [DaysKept] days, an hour for [HoursKept] hours. Deleting a key deletes its days and keeps the days of its
	// user. Deleting a user adds its days to the days of the deleted users of the account. The sum of an account includes these days. A request
	// that is answered while its user is deleted may be missing there. A [CounterID] without key and user selects the days of the deleted
	// users, also in CounterDays and SetDays. These days have no Shared traffic. All this is true of hours, too.
	Days(ctx context.Context, of DaysFilter, first, last Date) ([]DayTotals, error)
	// DaysOf returns the days, or hours, with traffic from first to last of each counter, oldest first, in the order of ids. ids has at most [ReadSize]
	// counters of one account. The CounterID of the deleted users must be the only one. A missing counter has no days.
	DaysOf(ctx context.Context, ids []CounterID, first, last Date) ([][]CounterDay, error)

	io.Closer
}

// View reads the resources and counters of one account, as the methods of [Store] with the same names do. The resources are of
// one moment in badgerstore only. Counters may be newer than the resources.
type View interface {
	User(id int64) (*User, error)
	Plan(id string) (*Plan, error)
	Key(id string) (*Key, error)
	Keys(f KeyFilter, p Page) ([]*Key, int, error)
	Counters(ids []CounterID) ([]Counter, error)
}

// A HistoryIndex is a [Store] that finds times in histories fast, and waits for no network.
type HistoryIndex interface {
	Store
	// NewestEntries returns for each history the latest time of an entry that it has or has had, in the order of ids, and the zero time for
	// a history without any.
	NewestEntries(ctx context.Context, ids []CounterID) ([]time.Time, error)
	// CountFrom returns how many entries after since can be skipped by a search of the entries before from: the newest ones, all with the
	// time from or a later one. If no entry is late, these are all with such a time.
	CountFrom(ctx context.Context, of CounterID, since, from time.Time) (int, error)
}

// LossyStore is a [Store] whose database can lose writes that it has answered. After a loss the store refuses everything.
type LossyStore interface {
	Store
	// Accept ends the refusal. It returns a line of text for each loss, none if nothing was lost.
	Accept(ctx context.Context) (lost []string, err error)
}

// SnapshotStore is a [Store] that can be read as of one instant while it serves.
type SnapshotStore interface {
	Store
	// Snapshot returns the data at the instant of the call. The caller closes the snapshot.
	Snapshot(ctx context.Context) (Importer, error)
}

// CappedHistory is a [Store] that may drop entries before their retention ends. It drops the
// oldest entries of a history first.
type CappedHistory interface {
	Store
	// HistoryCap returns the number of newest entries that each history keeps; 0 keeps all. Older
	// ones may be missing.
	HistoryCap() int
	// HistoryCut reports whether a history may have fewer entries than HistoryCap says,
	// because the store bounds the bytes of the history.
	HistoryCut(ctx context.Context, of CounterID) (bool, error)
}

// BoundedHistory is a [Store] that bounds the bytes of all histories together.
type BoundedHistory interface {
	Store
	// HistoryExcess returns by how many bytes the histories exceed the bound: the store will remove the oldest entries soon. It is 0 or less
	// if it will remove none.
	HistoryExcess() int64
}

// LeaseStore is a [Store] that several processes use, and that gives one of them a lease.
type LeaseStore interface {
	Store
	// Lease reports whether the holder has the lease with a name for the next d: no other holder has it then, by the clock of the store. The
	// holder renews the lease by another call, and gives it back with a d of 0. A failover of the database may give a lease to two holders.
	Lease(ctx context.Context, name, holder string, d time.Duration) (held bool, err error)
	// Confirm returns nil when what an account has now is as safe from a failover of the database as a write that has succeeded. Before, a reader may see a write
	// that fails later.
	Confirm(ctx context.Context, account string) error
}

// HealthStore is a [Store] that knows why it refuses requests.
type HealthStore interface {
	Store
	// Health returns nil while requests are counted. Else its error is an [Error] with the code
	// [CodeUnavailable]. The message gives the reason and is safe to show to anyone.
	Health(ctx context.Context) error
}

// WatchedStore is a [Store] that other processes change, too.
type WatchedStore interface {
	Store
	// Watch reports every change to accounts, users, plans, keys, prices, webhooks and owner's keys, and every new event with a pending delivery, to
	// w, until the store is closed. It is called once.
	Watch(w Watcher)
}

// Watcher keeps the caches of a process up to date with a store that other processes change. Its
// methods are safe for concurrent use and return quickly.
type Watcher interface {
	// Changed is called soon after a change by any process, this one included.
	Changed(c Change)
	// RenewLease says that every change up to a moment ago was reported, and that every change
	// of the next d will be. For that long, values that were read after the last ChangesMissed
	// may be used without asking the store. A d of 0 ends the lease at once.
	RenewLease(d time.Duration)
	// ChangesMissed says that some changes may not have been reported.
	ChangesMissed()
}

// Change names a resource that was changed, created or deleted. Besides Account, exactly one
// member is set: KeyPrefix for a change of the account itself.
type Change struct {
	Account  string
	UserID   int64
	PlanID   string
	Prices   bool           // of the prices
	Webhooks bool           // of a webhook, or a new event with a pending delivery
	Digest   secrets.Digest // of the value of a key, present or former
	OwnerKey secrets.Digest // of an owner's key; Account is empty

	State bool // of the account: it was closed or opened, see [Account.Closed]

	// KeyPrefix is the prefix of the keys that the account creates since the change, [secrets.DefaultKeyPrefix] included.
	KeyPrefix string
}
