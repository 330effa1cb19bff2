package caddymodule

import (
	"context"
	"fmt"
	"testing"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// allowedOn is a decision on a plan of an account.
func allowedOn(account, plan string) *service.Decision {
	return &service.Decision{Account: account, Outcome: service.Allowed, Plan: &core.Plan{Name: plan}}
}

// An account that renames its plans endlessly gets the label "other". The labels of other accounts stay.
func TestMetricsOfOneAccountAreItsOwn(t *testing.T) {
	m, names := newMetrics(), &accountNames{service: service.New(memstore.New(), service.Config{})}
	names.add(&core.Account{ID: "acct_1", Name: "loud"})
	names.add(&core.Account{ID: "acct_2", Name: "quiet"})
	for i := range 5000 {
		m.decided(names, allowedOn("acct_1", fmt.Sprint(i)))
	}
	for range 3 {
		m.decided(names, allowedOn("acct_2", "Starter"))
		m.decided(names, allowedOn("acct_1", "7"))
	}
	got := m.series(t)
	if got["quiet allowed Starter"] != 3 || got["loud allowed 7"] != 4 {
		t.Errorf("got %v of the quiet account and %v of the loud, want 3 and 4", got["quiet allowed Starter"], got["loud allowed 7"])
	}
	if got["other allowed other"] != 5000-maxLabelSets || len(got) != maxLabelSets+2 {
		t.Errorf("got %v others and %d series, want %d and %d", got["other allowed other"], len(got), 5000-maxLabelSets, maxLabelSets+2)
	}
}

// The number of series is bounded for any number of accounts. Accounts beyond the bound cause no store
// reads.
func TestMetricsOfAccountsAreBounded(t *testing.T) {
	m, names := newMetrics(), &accountNames{service: service.New(memstore.New(), service.Config{})}
	for i := range maxAccounts {
		names.add(&core.Account{ID: fmt.Sprint("acct_", i), Name: fmt.Sprint(i)})
	}
	for i := range maxAccounts {
		m.decided(names, allowedOn(fmt.Sprint("acct_", i), "p"))
	}
	names.service = nil // a read of the store would panic
	for i := range 10 {
		m.decided(names, allowedOn(fmt.Sprint("acct_late_", i), "p"))
	}
	m.decided(names, allowedOn("acct_3", "q")) // an account with series gets more
	got := m.series(t)
	if len(got) != maxAccounts+2 || got["other allowed other"] != 10 || got["3 allowed q"] != 1 {
		t.Errorf("got %d series, %v others and %v of a known account, want %d series, 10 and 1",
			len(got), got["other allowed other"], got["3 allowed q"], maxAccounts+2)
	}
}

// slowAccounts is a store whose account waits until the test closes release.
type slowAccounts struct {
	core.Store
	reading, release chan struct{}
}

func (s *slowAccounts) Account(ctx context.Context, id string) (*core.Account, error) {
	close(s.reading)
	<-s.release
	return s.Store.Account(ctx, id)
}

// While the store reads the name of a new account, decisions of other accounts continue, with known and
// with new labels.
func TestMetricsDoNotWaitForNames(t *testing.T) {
	store := &slowAccounts{memstore.New(), make(chan struct{}), make(chan struct{})}
	svc := service.New(store, service.Config{})
	a, _, _, err := svc.CreateAccount(t.Context(), "new")
	if err != nil {
		t.Fatal(err)
	}
	m, names := newMetrics(), &accountNames{service: svc}
	names.add(&core.Account{ID: "acct_1", Name: "known"})
	m.decided(names, allowedOn("acct_1", "p"))

	named, others := make(chan struct{}), make(chan struct{})
	go func() { m.decided(names, allowedOn(a.ID, "p")); close(named) }()
	<-store.reading
	go func() {
		m.decided(names, allowedOn("acct_1", "p"))
		m.decided(names, allowedOn("acct_1", "q"))
		close(others)
	}()
	defer func() { <-named }()
	defer close(store.release)
	caddytest.Eventually(t, "decisions of a known account", func() bool {
		select {
		case <-others:
			return true
		default:
			return false
		}
	})
	if got := m.series(t); got["known allowed p"] != 2 || got["known allowed q"] != 1 {
		t.Errorf("got %v, want 2 of p and 1 of q", got)
	}
}
