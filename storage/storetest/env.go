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
