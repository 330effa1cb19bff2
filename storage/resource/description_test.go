package resource

import (
	"fmt"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
)

// Two filters never share a set, whatever the ids of plans that a caller asks for.
func TestSetNames(t *testing.T) {
	seen := map[string]string{}
	add := func(set, filter string) {
		if other, ok := seen[set]; ok {
			t.Errorf("%s and %s have the same set %q", filter, other, set)
		}
		seen[set] = filter
		if kind := KindOfSet(set); kind != User && kind != Key && kind != Plan {
			t.Errorf("the set %q has the kind %q", set, kind)
		}
	}
	add(PlanSet, "all plans")
	add(UserSet(core.UserFilter{}), "all users")
	add(UserSet(core.UserFilter{Anchored: true}), "anchored users")
	plans := []string{"", "plan_1", "anchored", "n", "on", "nplan_1", ":p", ":u1", ":sactive:p", "\x00"}
	for _, plan := range plans {
		if plan != "" {
			add(UserSet(core.UserFilter{PlanID: plan}), "users with plan "+plan)
			add(UserSet(core.UserFilter{OnPlan: plan}), "users on plan "+plan)
		}
	}
	for _, user := range []int64{0, 1, 11} {
		for _, status := range []core.KeyStatus{"", core.KeyActive, core.KeyInactive} {
			add(KeySet(core.KeyFilter{UserID: user, Status: status}), fmt.Sprint("keys of ", user, status))
			for _, plan := range plans {
				add(KeySet(core.KeyFilter{UserID: user, Status: status, PlanID: &plan}), fmt.Sprint("keys of ", user, status, " with ", plan))
				if user == 0 && plan != "" {
					add(KeySet(core.KeyFilter{Status: status, UnderPlan: plan}), fmt.Sprint("keys ", status, " under ", plan))
				}
			}
		}
	}
}
