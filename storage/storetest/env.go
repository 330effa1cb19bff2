package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/limitkeeper/limitkeeper/core"
)

// env is the test and the store of a case.
type env struct {
	testing.TB
	*Opened
	ctx context.Context
}

// reopen closes the store and opens it again.
func (e *env) reopen() {
	e.Helper()
	if err := e.Store.Close(); err != nil {
		e.Fatalf("Close: %v", err)
	}
	e.Store = e.Reopen(e)
}

// serial makes names unique among all cases.
var serial atomic.Int64

// account creates an account with a unique name and id, and returns the id.
func (e *env) account() string {
	e.Helper()
	a, k := newAccount(fmt.Sprintf("acct_%d", serial.Add(1)))
	if err := e.Store.CreateAccount(e.ctx, a, k); err != nil {
		e.Fatalf("CreateAccount: %v", err)
	}
	return a.ID
}

// update runs a transaction that must succeed.
func (e *env) update(account string, fn func(core.Tx) error) {
	e.Helper()
	if err := e.Store.Update(e.ctx, account, fn); err != nil {
		e.Fatalf("Update: %v", err)
	}
}

// put stores users, plans and keys of one account in one transaction, and sets the IDs and Seqs of
// new ones.
func (e *env) put(things ...any) {
	e.Helper()
	e.update(accountOf(things[0]), putting(things...))
}

// parallel runs fn in n goroutines at once and waits for them. fn reports failures by Errorf only.
func (e *env) parallel(n int, fn func(i int)) {
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	ready.Add(n)
	for i := range n {
		done.Go(func() {
			ready.Done()
			<-start
			fn(i)
		})
	}
	ready.Wait()
	close(start)
	done.Wait()
}

// waitTimeout is the longest wait of the suite for a condition.
var waitTimeout = 10 * time.Second

// eventually waits until isTrue returns true. It fails if the wait takes too long.
func (e *env) eventually(what string, isTrue func() bool) {
	e.Helper()
	if !within(waitTimeout, isTrue) {
		e.Fatalf("%s: still false after %v", what, waitTimeout)
	}
}

// within polls isTrue until it returns true, and reports whether it did in time.
func within(d time.Duration, isTrue func() bool) bool {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(d); !isTrue(); <-tick.C {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// same fails unless got equals want. Nil and empty slices are equal, and so are times of the same
// instant. The number of denials in the current second is ignored: stores need not keep it.
func (e *env) same(what string, want, got any) {
	e.Helper()
	if d := diff(want, got); d != "" {
		e.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// diff returns "" if got equals want. The fast path compares without a report of the difference.
func diff(want, got any) string {
	if reflect.DeepEqual(want, got) {
		return ""
	}
	return cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(core.Counter{}))
}

// isErr fails unless err wraps want.
func (e *env) isErr(what string, err, want error) {
	e.Helper()
	if !errors.Is(err, want) {
		e.Errorf("%s: got error %v, want %v", what, err, want)
	}
}

// ok stops the case if err is not nil.
func (e *env) ok(what string, err error) {
	e.Helper()
	if err != nil {
		e.Fatalf("%s: got error %v, want none", what, err)
	}
}

// noon is the time of most requests: Thursday, 2026-03-12, inside a day, a week, a month and a
// year. Its nanoseconds have nine digits.
var noon = time.Date(2026, time.March, 12, 12, 0, 0, 123456789, time.UTC)

// forever is a retention within which no entry expires, whatever the time is.
const forever = 200 * 365 * 24 * time.Hour

func newAccount(id string) (*core.Account, *core.OwnerKey) {
	return &core.Account{ID: id, Name: "name of " + id, CreatedAt: noon}, newOwnerKey(id, "okey_1")
}

func newOwnerKey(account, id string) *core.OwnerKey {
	return &core.OwnerKey{AccountID: account, ID: id, Name: id, Digest: core.DigestOf(account + id),
		Hint: "lk_…" + id, CreatedAt: noon}
}

func newUser(account, name string) *core.User {
	return &core.User{AccountID: account, Name: name, CreatedAt: noon, UpdatedAt: noon}
}

func newPlan(account, id string) *core.Plan {
	return &core.Plan{AccountID: account, ID: id, Name: "name of " + id, Limit: 1000, Period: core.Month,
		CreatedAt: noon, UpdatedAt: noon}
}

// newKey returns a new key. plan may be "".
func newKey(account, id string, user int64, plan string) *core.Key {
	return &core.Key{AccountID: account, ID: id, Name: "name of " + id, UserID: user, PlanID: plan,
		Status: core.KeyActive, Digest: digest(account, id, 1), Hint: "lk_user_…" + id,
		CreatedAt: noon, UpdatedAt: noon}
}

// digest returns the digest of the nth value of a key.
func digest(account, key string, n int) core.Digest {
	return core.DigestOf(fmt.Sprintf("%s/%s/%d", account, key, n))
}

// accountOf returns the account of a user, plan or key.
func accountOf(thing any) string {
	switch x := thing.(type) {
	case *core.User:
		return x.AccountID
	case *core.Plan:
		return x.AccountID
	case *core.Key:
		return x.AccountID
	}
	panic(fmt.Sprintf("%T is not a resource", thing))
}

// putting returns a transaction that stores users, plans and keys. It may run more than once.
func putting(things ...any) func(core.Tx) error {
	var renew []func()
	for _, thing := range things {
		number := numberOf(thing)
		if *number == 0 {
			renew = append(renew, func() { *number = 0 })
		}
	}
	return func(tx core.Tx) error {
		for _, again := range renew {
			again()
		}
		for _, thing := range things {
			if err := put(tx, thing); err != nil {
				return err
			}
		}
		return nil
	}
}

// numberOf returns the member to which the store writes the number of a new resource.
func numberOf(thing any) *int64 {
	switch x := thing.(type) {
	case *core.User:
		return &x.ID
	case *core.Plan:
		return &x.Seq
	case *core.Key:
		return &x.Seq
	}
	panic(fmt.Sprintf("%T is not a resource", thing))
}

func put(tx core.Tx, thing any) error {
	switch x := thing.(type) {
	case *core.User:
		return tx.PutUser(x)
	case *core.Plan:
		return tx.PutPlan(x)
	case *core.Key:
		return tx.PutKey(x)
	}
	panic(fmt.Sprintf("%T is no resource", thing))
}

// Fill creates n users with numbered names, emails and external ids, each with a key on one new plan. It returns
// the plan and the keys in the order of creation.
func Fill(t testing.TB, s core.Store, account string, n int) (*core.Plan, []*core.Key) {
	t.Helper()
	const batch = 100
	pl := newPlan(account, "plan_fill")
	if err := s.Update(t.Context(), account, putting(pl)); err != nil {
		t.Fatalf("Fill: %v", err)
	}
	keys := make([]*core.Key, 0, n)
	for len(keys) < n {
		var users []*core.User
		var things []any
		for i := len(keys); i < min(len(keys)+batch, n); i++ {
			u := newUser(account, fmt.Sprintf("user %d", i+1))
			u.Email, u.ExternalID = new(fmt.Sprintf("user%d@example.com", i+1)), fmt.Sprintf("cus_%d", i+1)
			users, things = append(users, u), append(things, u)
		}
		if err := s.Update(t.Context(), account, putting(things...)); err != nil {
			t.Fatalf("Fill: %v", err)
		}
		things = things[:0]
		for _, u := range users {
			k := newKey(account, fmt.Sprintf("key_fill%d", u.ID), u.ID, pl.ID)
			keys, things = append(keys, k), append(things, k)
		}
		if err := s.Update(t.Context(), account, putting(things...)); err != nil {
			t.Fatalf("Fill: %v", err)
		}
	}
	return pl, keys
}

// snapshot is the whole content of an account.
type snapshot struct {
	Owners    []*core.OwnerKey
	Users     []*core.User
	Plans     []*core.Plan
	Keys      []*core.Key
	ByDigest  []*core.Key
	Counters  []core.Counter
	Histories [][]core.Entry
	Days      [][]core.DayTotals // of the counters around noon
}

// snapshot reads the whole content of an account.
func (e *env) snapshot(account string) snapshot {
	e.Helper()
	s := snapshot{
		Owners: all(e, e.ownerKeys(account)), Users: all(e, e.users(account, core.UserFilter{})),
		Plans: all(e, e.plans(account)), Keys: all(e, e.keys(account, core.KeyFilter{})),
	}
	var ids []core.CounterID
	for _, u := range s.Users {
		ids = append(ids, core.CounterID{Account: account, UserID: u.ID})
	}
	for _, k := range s.Keys {
		ids = append(ids, core.CounterID{Account: account, KeyID: k.ID})
		for _, d := range k.Digests() {
			found, err := e.Store.KeyByDigest(e.ctx, d)
			e.ok("KeyByDigest", err)
			s.ByDigest = append(s.ByDigest, found)
		}
	}
	var err error
	s.Counters, err = e.Store.Counters(e.ctx, ids)
	e.ok("Counters", err)
	for _, id := range ids {
		s.Histories = append(s.Histories, all(e, e.entries(id, time.Time{})))
		days, err := e.Store.Days(e.ctx, core.DaysFilter{Account: account, KeyID: id.KeyID, UserID: id.UserID}, today-1, today+3)
		e.ok("Days", err)
		s.Days = append(s.Days, days)
	}
	return s
}

// copied returns a deep copy.
func (e *env) copied(s snapshot) (c snapshot) {
	e.Helper()
	text, err := json.Marshal(s)
	e.ok("copy", err)
	e.ok("copy", json.Unmarshal(text, &c))
	return c
}

// awaitHistory waits until a history has n entries.
func (e *env) awaitHistory(of core.CounterID, n int) {
	e.Helper()
	got := -1
	e.eventually(fmt.Sprintf("the history of %+v has %d entries", of, n), func() bool {
		got = e.historyTotal(of)
		return got >= n
	})
	if got != n {
		e.Errorf("history of %+v: got %d entries, want %d", of, got, n)
	}
}
