package storetest

import (
	"context"
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
	e.ok("CreateAccount", e.Store.CreateAccount(e.ctx, a, k))
	return a.ID
}

// update runs a transaction that must succeed.
func (e *env) update(account string, fn func(core.Tx) error) {
	e.Helper()
	e.ok("Update", e.Store.Update(e.ctx, account, fn))
}

// put stores users, plans and keys of one account in one transaction, and sets the IDs and Seqs of
// new ones.
func (e *env) put(things ...any) {
	e.Helper()
	account, _, _ := membersOf(things[0])
	e.update(account, putting(things...))
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
	Audit     []core.AuditEntry  // the newest 1000
}

// snapshot reads the whole content of an account.
func (e *env) snapshot(account string) (s snapshot) {
	e.Helper()
	s.Owners = all(e, func(p core.Page) ([]*core.OwnerKey, int, error) { return e.Store.OwnerKeys(e.ctx, account, p) })
	s.Users = all(e, e.users(account, core.UserFilter{}))
	s.Plans = all(e, func(p core.Page) ([]*core.Plan, int, error) { return e.Store.Plans(e.ctx, account, p) })
	s.Keys = all(e, e.keys(account, core.KeyFilter{}))
	var ids []core.CounterID
	for _, u := range s.Users {
		ids = append(ids, core.CounterID{Account: account, UserID: u.ID})
	}
	for _, k := range s.Keys {
		ids = append(ids, keyCounter(k))
		for _, d := range k.Digests() {
			found, err := e.Store.KeyByDigest(e.ctx, d)
			e.ok("KeyByDigest", err)
			s.ByDigest = append(s.ByDigest, found)
		}
	}
	var err error
	s.Audit, _, err = e.Store.Audit(e.ctx, account, 0, 1000)
	e.ok("Audit", err)
	s.Counters, err = e.Store.Counters(e.ctx, ids)
	e.ok("Counters", err)
	for _, id := range ids {
		s.Histories = append(s.Histories, all(e, e.entries(id)))
		days, err := e.Store.Days(e.ctx, core.DaysFilter{Account: account, KeyID: id.KeyID, UserID: id.UserID}, today-1, today+3)
		e.ok("Days", err)
		s.Days = append(s.Days, days)
	}
	return s
}

// sameReopened fails unless the account is the same after the store was opened again.
func (e *env) sameReopened(account string) {
	e.Helper()
	before := e.snapshot(account)
	e.reopen()
	e.same("the account after reopening", before, e.snapshot(account))
}
