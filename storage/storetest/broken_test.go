package storetest

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// defect is a store that breaks a promise, and the case that must fail.
type defect struct {
	name     string
	caughtBy string // name of a case
	open     func() Opened
}

// wrapped opens stores that wrap a good store. Each opening makes a new wrapper.
func wrapped(wrap func(core.Store) core.Store) func() Opened {
	return func() Opened {
		inner := memstore.New()
		return Opened{Store: wrap(inner), Reopen: func(testing.TB) core.Store {
			inner = inner.Reopen()
			return wrap(inner)
		}}
	}
}

// A defect that passes the suite may also be in a real store: then the suite would not prove the
// contract.
func TestBrokenStores(t *testing.T) {
	for _, d := range slices.Concat(brokenUsage, brokenLimits, brokenHistory, brokenResources, brokenMembers, brokenLists, brokenTransactions, brokenPrices, brokenWebhooks, brokenFiles,
		brokenPlanUsed, brokenAccounts, brokenPurges, brokenDays, brokenRequestIDs, brokenHolds, brokenRankings, brokenAudits, brokenImports) {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			r := observe(t, caseNamed(t, d.caughtBy), d.open())
			if !r.Failed() {
				t.Errorf("the case %q: got passed, want failed", d.caughtBy)
			}
			t.Logf("caught by %q:\n\t%s", d.caughtBy, r.text())
		})
	}
}

// The recorder itself causes no failure: every case passes with it on a good store.
func TestGoodStoreIsNotCaught(t *testing.T) {
	fewerChecks(t)
	good := wrapped(func(s core.Store) core.Store { return checksSeq{s.(core.Importer)} })
	for _, c := range cases() {
		if r := observe(t, c, good()); r.Failed() {
			t.Errorf("the case %q: got failed, want passed:\n\t%s", c.name, r.text())
		}
	}
}

// checksSeq refuses requests with a key and the Seq of another key: a store may find the key by
// either.
type checksSeq struct{ core.Importer }

func (s checksSeq) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	if k, err := s.Key(ctx, c.Account, c.KeyID); err == nil && k.Seq != c.KeySeq {
		return core.ConsumeResult{}, fmt.Errorf("request of key %s: got the Seq %d, want %d", c.KeyID, c.KeySeq, k.Seq)
	}
	return s.Importer.Consume(ctx, c)
}

// Case names are unique, and each case has a promise.
func TestCasesAreNamed(t *testing.T) {
	names := map[string]bool{}
	for _, c := range cases() {
		if c.name == "" || c.promise == "" || c.run == nil {
			t.Errorf("case %q: got the promise %q, want a name, a promise and a function", c.name, c.promise)
		}
		if names[c.name] {
			t.Errorf("there are two cases called %q", c.name)
		}
		names[c.name] = true
	}
}

func caseNamed(t *testing.T, name string) testCase {
	t.Helper()
	for _, c := range cases() {
		if c.name == name {
			return c
		}
	}
	t.Fatalf("there is no case %q", name)
	return testCase{}
}
