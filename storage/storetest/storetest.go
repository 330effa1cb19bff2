// Package storetest is the conformance suite of [core.Store]: a store that passes
// [Run] keeps the promises made there. It knows nothing but the contract, so that a
// store over a network passes it as well.
//
// Every case names the promise that is broken when it fails. One case, the
// machine, runs random operations on the store and on memstore and compares every
// answer. A store that is a [core.Importer] has to keep the promises made there too.
package storetest

import (
	"slices"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
)

// Opened is an open store that a constructor returns to the suite.
type Opened struct {
	Store core.Store

	// Reopen opens what was stored once more, as a new process would. The suite has
	// closed Store before and uses nothing but the returned store afterwards. It fails
	// t when that is impossible.
	Reopen func(t testing.TB) core.Store
}

// Run runs every case of the suite as a subtest. open returns an empty store each
// time it is called; several may be open at once. The suite closes them.
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
			t.Cleanup(func() { _ = own.Store.Close() }) // it may be closed already
			c.check(t, &own)
		})
	}
}

// testCase is one promise and the function that fails when it is broken.
type testCase struct {
	name    string
	promise string // what is broken when run fails
	run     func(e *env)
	own     bool // needs a store of its own; the others share one and use accounts of their own
	imports bool // is about a [core.Importer]
}

// check runs the case. When it fails it says which promise is broken.
func (c testCase) check(t testing.TB, o *Opened) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the broken promise: %s", c.promise)
		}
	})
	c.run(&env{TB: t, Opened: o, ctx: t.Context()})
}

// cases lists all cases. Those that share a store come first.
func cases() []testCase {
	return slices.Concat(accountCases, accessCases, ownerKeyCases, userCases, emailCases, planCases, keyCases, digestCases,
		listCases, tenancyCases, copyCases, txCases, raceCases,
		usageCases, windowCases, sharedCases, counterCases, exactCases,
		planTotalsCases, dayCases, historyCases, requestIDCases, requestIDRaceCases, deniedCases, deleteCases, reopenCases,
		importCases, importCounterCases, machineCases, closeCases)
}
