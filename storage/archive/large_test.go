package archive

import (
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// Two counters of a user may each be adjusted to the largest usage on one day. The days of the user, and of the deleted users, can still be exported
// and imported.
func TestLargestAdjustments(t *testing.T) {
	source := inMemory()
	s := service.New(source.Store, service.Config{})
	a, _, _, err := s.CreateAccount(t.Context(), "large")
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.CreatePlan(t.Context(), a.ID, core.PlanPatch{Name: new("plan"), Limit: core.Some[int64](10), Period: new("month")})
	if err != nil {
		t.Fatal(err)
	}
	for _, deleted := range []bool{true, true, false} {
		u, err := s.CreateUser(t.Context(), a.ID, core.UserPatch{Name: new("anna")})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			k, _, err := s.CreateKey(t.Context(), a.ID, core.KeyPatch{Name: new("key"), UserID: &u.ID, PlanID: core.Some(p.ID)})
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err = s.AdjustKey(t.Context(), a.ID, k.ID, service.AdjustmentCall{Adjustment: core.Adjustment{Meter: "requests", Value: core.MaxLimit, Reason: "all"}}); err != nil {
				t.Fatal(err)
			}
		}
		if deleted {
			if err := s.DeleteUser(t.Context(), a.ID, u.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	mustImport(t, source.Store.(core.Importer), inMemory().Store.(core.Importer), small())
}
