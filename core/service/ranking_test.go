package service_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// A page after many changes says that it is not complete, and the next ones have the rest.
func TestThresholdsAfterManyChanges(t *testing.T) {
	c := newThresholds(t, memstore.New())
	pl, small := c.plan(1000), c.plan(10)
	var users []*core.User
	for i := range 150 {
		u, _, secret := c.customer(fmt.Sprint(i), pl, core.KeyPatch{})
		c.use(secret, 9)
		users = append(users, u)
	}
	c.want(80, "", "")
	for _, u := range users {
		_, err := c.svc.UpdateUser(t.Context(), c.id, u.ID, core.UserPatch{PlanID: core.Some(small.ID)})
		c.ok(err)
	}
	for _, complete := range []bool{false, true} {
		list, err := c.svc.Thresholds(t.Context(), c.id, 80, "", core.Page{Number: 1, Size: 10})
		c.ok(err)
		if list.Complete != complete || complete != (list.Total == len(users)) {
			t.Errorf("got %d of %d, complete %v, want complete %v", list.Total, len(users), list.Complete, complete)
		}
	}
}

// Counters that fall leave the list although nobody reads their page: when users are deleted, and when the limit of a plan rises.
func TestThresholdsOfFallenCounters(t *testing.T) {
	c := newThresholds(t, memstore.New())
	pl := c.plan(100)
	var users []*core.User
	for i := range core.ReadSize + 200 {
		u, _, secret := c.customer(fmt.Sprint(i), pl, core.KeyPatch{})
		c.use(secret, 90)
		users = append(users, u)
	}
	_, _, secret := c.customer("bob", c.plan(100), core.KeyPatch{})
	c.use(secret, 85)
	c.ok(c.svc.RankAccounts(t.Context()))
	last := func(want int) {
		t.Helper()
		list, err := c.svc.Thresholds(t.Context(), c.id, 80, "", core.Page{Number: want, Size: 1})
		c.ok(err)
		if got := describe(list.Counters); got != "bob plan requests/month 85/100 0 denied" || list.Total != want || !list.Complete {
			t.Errorf("the last of %d: got %s of %d, complete %v", want, got, list.Total, list.Complete)
		}
	}
	last(len(users) + 1)
	for _, u := range users[:50] {
		c.ok(c.svc.DeleteUser(t.Context(), c.id, u.ID))
	}
	last(len(users) - 49)
	_, err := c.svc.UpdatePlan(t.Context(), c.id, pl.ID, core.PlanPatch{Limit: core.Some(int64(1000))})
	c.ok(err)
	c.ok(c.svc.RankAccounts(t.Context()))
	last(1)
}

// busyKeys counts the keys that are read.
type busyKeys struct {
	core.Store
	read int
}

func (s *busyKeys) Keys(ctx context.Context, account string, f core.KeyFilter, p core.Page) ([]*core.Key, int, error) {
	list, n, err := s.Store.Keys(ctx, account, f, p)
	s.read += len(list)
	return list, n, err
}

// The keys of a user with many are not read while a client waits. They are in the list after KeepRankings.
func TestThresholdsOfManyKeys(t *testing.T) {
	store := &busyKeys{Store: memstore.New()}
	c := newThresholds(t, store)
	pl := c.plan(100)
	u, _, secret := c.customer("ann", pl, core.KeyPatch{PlanID: core.Some(pl.ID)})
	for range core.ReadSize {
		_, _, err := c.svc.CreateKey(t.Context(), c.id, core.KeyPatch{Name: new("one of many"), UserID: &u.ID})
		c.ok(err)
	}
	c.use(secret, 9)
	c.ok(c.svc.RankAccounts(t.Context()))
	_, err := c.svc.UpdateUser(t.Context(), c.id, u.ID, core.UserPatch{Overrides: core.Some([]core.Override{{Meter: core.MeterRequests, Period: core.Month, Max: 10}})})
	c.ok(err)
	store.read = 0
	list, err := c.svc.Thresholds(t.Context(), c.id, 80, "", core.Page{Number: 1, Size: 10})
	c.ok(err)
	if store.read > 10 || len(list.Counters) > 0 || list.Complete {
		t.Errorf("%d keys were read for %s, complete %v, want few, and an incomplete answer", store.read, describe(list.Counters), list.Complete)
	}
	c.ok(c.svc.KeepRankings(t.Context()))
	c.want(80, "", "ann [key] user requests/month 9/10 0 denied")
}

// unreadable is a store that cannot read the ranking of an account.
type unreadable struct {
	core.Store
	account string
}

func (s *unreadable) Ranking(ctx context.Context, account string, q core.RankingQuery, p core.Page) (core.Ranking, error) {
	if account == s.account {
		return core.Ranking{}, core.ErrUnavailable
	}
	return s.Store.Ranking(ctx, account, q, p)
}

// An account that cannot be read delays no other one.
func TestRankingsAfterAnError(t *testing.T) {
	store := &unreadable{Store: memstore.New()}
	c := newThresholds(t, store)
	other := newTenant(t, c.svc, "other")
	store.account = c.id
	for name, keep := range map[string]func(context.Context) error{"KeepRankings": c.svc.KeepRankings, "RankAccounts": c.svc.RankAccounts} {
		if err := keep(t.Context()); !errors.Is(err, core.ErrUnavailable) {
			t.Errorf("%s: got %v, want the error of the account", name, err)
		}
	}
	if r, err := store.Ranking(t.Context(), other.id, core.RankingQuery{}, core.Page{Number: 1}); err != nil || r.WholeAt.IsZero() {
		t.Errorf("the other account is not ranked, %v", err)
	}
}

// deleting is a store in which a user leaves when users are read, see TestThresholdsWhileUsersLeave.
type deleting struct {
	core.Store
	leave func()
}

func (s *deleting) Users(ctx context.Context, account string, f core.UserFilter, p core.Page) ([]*core.User, int, error) {
	list, n, err := s.Store.Users(ctx, account, f, p)
	if p.Size == core.ReadSize && s.leave != nil {
		s.leave()
		s.leave = nil
	}
	return list, n, err
}

// A user that is deleted while all counters are ranked moves the users behind it to other pages. None of them is left out.
func TestThresholdsWhileUsersLeave(t *testing.T) {
	store := &deleting{Store: memstore.New()}
	c := newThresholds(t, store)
	pl := c.plan(1000)
	first, _, _ := c.customer("first", pl, core.KeyPatch{})
	for n := 0; n < core.ReadSize; {
		_, err := c.svc.CreateUser(t.Context(), c.id, core.UserPatch{Name: new("one of many")})
		c.ok(err)
		_, n, err = store.Users(t.Context(), c.id, core.UserFilter{}, core.Page{Number: 1})
		c.ok(err)
	}
	_, _, secret := c.customer("ann", pl, core.KeyPatch{})
	c.use(secret, 90)
	_, err := c.svc.UpdatePlan(t.Context(), c.id, pl.ID, core.PlanPatch{Limit: core.Some(int64(100))})
	c.ok(err)
	store.leave = func() { c.ok(c.svc.DeleteUser(t.Context(), c.id, first.ID)) }
	c.ok(c.svc.RankAccounts(t.Context()))
	c.want(80, "", "ann plan requests/month 90/100 0 denied")
}

// A customer whose windows begin on the 25th from now on stays in the list on the 25th: the usage of the month that was open still counts.
func TestThresholdsAfterANewAnchor(t *testing.T) {
	c := newThresholds(t, memstore.New())
	*c.now = at("2026-03-10T00:00:00Z")
	u, _, secret := c.customer("ann", c.plan(100), core.KeyPatch{})
	c.use(secret, 95)
	*c.now = at("2026-03-20T00:00:00Z")
	_, err := c.svc.UpdateUser(t.Context(), c.id, u.ID, core.UserPatch{CustomStart: core.Some(at("2026-01-25T00:00:00Z"))})
	c.ok(err)
	const full = "ann plan requests/month 95/100 0 denied"
	for _, x := range [][2]string{{"2026-03-24T23:00:00Z", full}, {"2026-03-26T00:00:00Z", full}, {"2026-04-24T23:00:00Z", full}, {"2026-04-25T00:00:00Z", ""}} {
		*c.now = at(x[0])
		c.want(80, "", x[1])
	}
}

// An account is ranked when its import is complete: earlier, its counters are not there.
func TestRankingsDuringAnImport(t *testing.T) {
	store := memstore.New()
	c := newThresholds(t, store)
	for _, complete := range []bool{false, true} {
		_, err := store.UpdateAccount(t.Context(), c.id, func(a *core.Account) error {
			a.Import = &core.AccountImport{Complete: complete}
			return nil
		})
		c.ok(err)
		c.ok(c.svc.RankAccounts(t.Context()))
		r, err := store.Ranking(t.Context(), c.id, core.RankingQuery{}, core.Page{Number: 1})
		c.ok(err)
		if r.WholeAt.IsZero() == complete {
			t.Errorf("complete %v: the ranking is whole at %v", complete, r.WholeAt)
		}
	}
}

// lateErrors is a store whose transactions are stored, and answered with an error.
type lateErrors struct{ core.Store }

func (s lateErrors) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	if err := s.Store.Update(ctx, account, fn); err != nil {
		return err
	}
	return core.Unavailable(errors.New("no answer"))
}

// A change that may have been stored is in the list, and another limit of a plan is known to all nodes at once.
func TestThresholdsAfterAnUnknownChange(t *testing.T) {
	store := memstore.New()
	c := newThresholds(t, store)
	pl := c.plan(100)
	u, _, secret := c.customer("ann", pl, core.KeyPatch{})
	c.use(secret, 45)
	c.want(80, "", "")
	late := service.New(lateErrors{store}, service.Config{Clock: func() time.Time { return *c.now }})
	if _, err := late.UpdatePlan(t.Context(), c.id, pl.ID, core.PlanPatch{Limit: core.Some(int64(50))}); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	c.svc.ForgetAll()
	c.want(80, "", "ann plan requests/month 45/50 0 denied")
	if _, err := late.UpdateUser(t.Context(), c.id, u.ID, core.UserPatch{PlanID: core.Some(c.plan(48).ID)}); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	c.svc.ForgetAll()
	c.ok(late.KeepRankings(t.Context()))
	c.want(93, "", "ann plan requests/month 45/48 0 denied")
}
