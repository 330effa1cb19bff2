// Package storetest is the conformance suite of [core.Store]: a store that passes [Run] keeps its
// promises. The suite uses the contract only, so that a store over a network passes it, too.
//
// The case "machine" runs random operations on the store and on memstore and compares every result. The other cases check
// promises that one random operation after the other cannot break. Every case names the promise that a failure breaks. A
// [core.Importer] must also keep the promises of that interface. [FillAtRandom] fills a store with the random operations,
// for tests of other packages.
package storetest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// Opened is an open store, as a constructor returns it to the suite.
type Opened struct {
	Store core.Store

	// Reopen opens the stored data again, as a new process would. The suite has closed Store
	// before, and uses only the returned store afterwards. Reopen fails t if it cannot open the
	// store.
	Reopen func(t testing.TB) core.Store
}

// Run runs every case of the suite as a subtest. open returns a new empty store at each call;
// several may be open at once. The suite closes them.
func Run(t *testing.T, open func(t *testing.T) Opened) {
	shared := open(t)
	t.Cleanup(func() { _ = shared.Store.Close() })
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) {
			if _, ok := shared.Store.(core.Importer); c.imports && !ok {
				t.Skip("the store is no core.Importer")
			}
			if !c.own {
				c.check(t, &shared)
				return
			}
			own := open(t)
			t.Cleanup(func() { _ = own.Store.Close() }) // may already be closed
			c.check(t, &own)
		})
	}
}

// testCase is one promise and the function that checks it.
type testCase struct {
	name    string
	promise string // broken if run fails
	run     func(e *env)
	own     bool // needs a store of its own; the others share one, and each uses its own accounts
	imports bool // requires a [core.Importer]
}

// check runs the case. A failure reports the broken promise.
func (c testCase) check(t testing.TB, o *Opened) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the broken promise: %s", c.promise)
		}
	})
	c.run(&env{TB: t, Opened: o, ctx: t.Context()})
}

// cases returns all cases. Most promises are checked by the machine; the other cases are about concurrent calls, many
// resources, Close and the real time.
func cases() []testCase {
	return slices.Concat(accountCases, purgeCases, listCases, raceCases, exactCases, counterCases, requestIDCases, holdCases, rankingCases, webhookCases, auditCases, deleteCases, importCases, machineCases, closeCases)
}

var uncountedWindow = core.Month.Window(time.Unix(1_800_000_000, 0))

// Uncounted returns s with a Consume that allows every request and counts nothing: a benchmark over
// it measures the code above the store.
func Uncounted(s core.Store) core.Store { return uncounted{s} }

type uncounted struct{ core.Store }

// Consume implements [core.Store].
func (uncounted) Consume(context.Context, *core.Consumption) (core.ConsumeResult, error) {
	return core.ConsumeResult{Usage: core.Usage{Window: uncountedWindow, Used: 123}, Allowed: true}, nil
}
