package service_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// interrupted is a store that runs first once, before a transaction, and counts the reads of lists of plans and users.
type interrupted struct {
	*memstore.Store
	first func()
	lists int // of plans
	users int // lists of users
}

func (s *interrupted) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	if first := s.first; first != nil {
		s.first = nil
		first()
	}
	return s.Store.Update(ctx, account, fn)
}

func (s *interrupted) Plans(ctx context.Context, account string, p core.Page) ([]*core.Plan, int, error) {
	s.lists++
	return s.Store.Plans(ctx, account, p)
}

func (s *interrupted) Users(ctx context.Context, account string, f core.UserFilter, p core.Page) ([]*core.User, int, error) {
	s.users++
	return s.Store.Users(ctx, account, f, p)
}

// limited returns the patch of a plan with limits of meters m<from> to m<to-1>.
func limited(name string, from, to int) core.PlanPatch {
	limits := make([]core.Limit, 0, to-from)
	for i := from; i < to; i++ {
		limits = append(limits, core.Limit{Meter: fmt.Sprintf("m%d", i), Max: 1, Period: core.Day})
	}
	return core.PlanPatch{Name: &name, Limit: core.Null[int64](), Limits: core.Some(limits)}
}

// Two plans that are created at the same time give an account no more meters than one after the other.
func TestMetersOfConcurrentPlans(t *testing.T) {
	store := &interrupted{Store: memstore.New()}
	svc := service.New(store, service.Config{})
	c := newTenant(t, svc, "acme")
	create := func(p core.PlanPatch) error {
		_, err := svc.CreatePlan(t.Context(), c.id, p)
		return err
	}
	node := service.New(store.Store, service.Config{}) // on the same store
	if err := create(limited("a", 0, core.MaxMeters-1)); err != nil {
		t.Fatal(err)
	}
	store.first = func() {
		if _, err := node.CreatePlan(t.Context(), c.id, limited("b", 20, 21)); err != nil {
			t.Error(err)
		}
	}
	if e, ok := errors.AsType[*core.Error](create(limited("c", 30, 31))); !ok || e.Field != "limits" {
		t.Errorf("the meter above the bound: got %v", e)
	}
	if meters, err := node.Meters(t.Context(), c.id); err != nil || len(meters) != 1+core.MaxMeters {
		t.Errorf("got the meters %v, %v", meters, err)
	}
}

// An adjustment does not read all plans of the account each time.
func TestAdjustReadsNoList(t *testing.T) {
	store := &interrupted{Store: memstore.New()}
	svc := service.New(store, service.Config{})
	c := newTenant(t, svc, "acme")
	k, _ := c.newKey("k")
	if _, err := svc.CreatePlan(t.Context(), c.id, limited("a", 0, 1)); err != nil {
		t.Fatal(err)
	}
	adjust := func() {
		t.Helper()
		a := service.AdjustmentCall{Adjustment: core.Adjustment{Meter: "m0", Value: 1, Reason: "test"}}
		if _, _, err := svc.AdjustKey(t.Context(), c.id, k.ID, a); err != nil {
			t.Fatal(err)
		}
	}
	adjust()
	store.lists = 0
	for range 3 {
		adjust()
	}
	if store.lists != 0 {
		t.Errorf("3 adjustments read lists of plans %d times", store.lists)
	}
}

// The keys of one user under a plan are found without a list of all users of the plan.
func TestKeysUnderPlanOfUser(t *testing.T) {
	store := &interrupted{Store: memstore.New()}
	svc := service.New(store, service.Config{})
	c := newTenant(t, svc, "acme")
	k, _ := c.newKey("k")
	u, err := svc.User(t.Context(), c.id, k.UserID)
	c.ok(err)
	for plan, want := range map[string]int{u.PlanID: 1, "plan_other": 0} {
		store.users = 0
		list, total, err := svc.KeysUnderPlan(t.Context(), c.id, plan, core.KeyFilter{UserID: u.ID}, core.Page{Number: 1, Size: 10})
		if err != nil || total != want || len(list) != want || store.users != 0 {
			t.Errorf("%q: got %d of %d keys, %v, and %d lists of users; want %d keys and no list", plan, len(list), total, err, store.users, want)
		}
		found, _, err := svc.SearchKeys(t.Context(), c.id, "", core.KeyFilter{UserID: u.ID, PlanID: &plan}, core.Page{Number: 1, Size: 10})
		if err != nil || len(found) != want || store.users != 0 {
			t.Errorf("%q: the search got %d keys, %v, and %d lists of users", plan, len(found), err, store.users)
		}
	}
}

// The keys of a plan are the keys with the plan, and the keys without a plan whose user has the plan, oldest first. Lists and searches agree, for all users and
// for one user, also after a change of the plan of the user.
func TestKeysUnderPlanOfBothKinds(t *testing.T) {
	svc := service.New(memstore.New(), service.Config{})
	c := newTenant(t, svc, "acme")
	first, _ := c.newKey("k 0")
	u, err := svc.User(t.Context(), c.id, first.UserID)
	c.ok(err)
	plan, want := u.PlanID, []string{first.ID}
	for i, own := range []core.Optional[string]{core.Some(plan), {}, core.Some(plan), {}} {
		k, _, err := svc.CreateKey(t.Context(), c.id, core.KeyPatch{Name: new(fmt.Sprint("k ", i+1)), UserID: &u.ID, PlanID: own})
		c.ok(err)
		want = append(want, k.ID)
	}
	check := func(want []string) {
		t.Helper()
		for _, user := range []int64{0, u.ID} {
			f := core.KeyFilter{UserID: user, PlanID: &plan, Status: core.KeyActive}
			var listed, found []string
			for n := 1; n < 4; n++ {
				p := core.Page{Number: n, Size: 2}
				list, total, err := svc.KeysUnderPlan(t.Context(), c.id, plan, f, p)
				if err != nil || total != len(want) {
					t.Fatalf("user %d: got %d keys in all, %v, want %d", user, total, err, len(want))
				}
				matches, _, err := svc.SearchKeys(t.Context(), c.id, "k ", f, p)
				c.ok(err)
				for _, k := range list {
					listed = append(listed, k.ID)
				}
				for _, k := range matches {
					found = append(found, k.ID)
				}
			}
			if !slices.Equal(listed, want) || !slices.Equal(found, want) {
				t.Errorf("user %d: the list has %q, the search %q, want %q", user, listed, found, want)
			}
		}
	}
	check(want)
	other, err := svc.CreatePlan(t.Context(), c.id, core.PlanPatch{Name: new("other"), Limit: core.Some(int64(9)), Period: new("day")})
	c.ok(err)
	_, err = svc.UpdateUser(t.Context(), c.id, u.ID, core.UserPatch{PlanID: core.Some(other.ID)})
	c.ok(err)
	check([]string{want[1], want[3]})
	plan = other.ID
	check([]string{want[0], want[2], want[4]})
}
