package webhook_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// A deliverer sends each hour of a user and of its key once, after the hour and after its holds have ended. A webhook without a list of types gets no
// usage events.
func TestUsageFeed(t *testing.T) {
	e, r, all := newEnv(t), newReceiver(t), newReceiver(t)
	w := e.webhook(r, core.EventUsage)
	e.webhook(all)
	ctx := t.Context()
	plan, err := e.svc.CreatePlan(ctx, e.account, core.PlanPatch{Name: new("Team"), Limit: core.Some(int64(1000)), Period: new("month"),
		Limits: core.Some([]core.Limit{{Meter: "tokens", Max: 1000, Period: core.Month}})})
	if err != nil {
		t.Fatal(err)
	}
	user, err := e.svc.CreateUser(ctx, e.account, core.UserPatch{Name: new("ann"), ExternalID: core.Some("cus_1"), PlanID: core.Some(plan.ID)})
	if err != nil {
		t.Fatal(err)
	}
	key, secret, err := e.svc.CreateKey(ctx, e.account, core.KeyPatch{Name: new("key"), UserID: &user.ID})
	if err != nil {
		t.Fatal(err)
	}
	use := func(tokens int64, hold time.Duration) service.Decision {
		t.Helper()
		d, err := e.svc.Validate(ctx, e.account, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 1, Costs: []core.MeterCost{{Meter: "tokens", Cost: tokens}}, HoldFor: hold})
		if err != nil || !d.Allowed() {
			t.Fatalf("got %v, %v", d.Outcome, err)
		}
		return d
	}
	use(10, 0)
	e.clock.Pass(time.Hour)
	hold := use(100, 10*time.Hour)
	e.clock.Pass(time.Hour)
	use(7, 0)
	for range 3 {
		e.clock.Pass(time.Hour)
		e.deliverer.Wake()
	}
	received := func() []string {
		r.mu.Lock()
		defer r.mu.Unlock()
		var list []string
		for _, id := range r.got {
			var body struct {
				Type, Subject string
				Time          time.Time
				Data          struct {
					KeyID  *string `json:"key_id"`
					Meters map[string]struct{ Used int64 }
				}
			}
			if err := json.Unmarshal([]byte(r.bodies[id]), &body); err != nil {
				t.Fatal(err)
			}
			of := "user"
			if body.Data.KeyID != nil && *body.Data.KeyID == key.ID {
				of = "key"
			}
			text, _ := json.Marshal(body.Data.Meters)
			list = append(list, body.Type+" "+of+" "+body.Time.Format(time.TimeOnly)+" "+string(text))
		}
		slices.Sort(list) // the order of different subjects is not defined
		return list
	}
	event := func(of, at, requests, tokens string) string {
		return "limitkeeper.usage " + of + " " + at + ` {"requests":{"Used":` + requests + `},"tokens":{"Used":` + tokens + "}}"
	}
	want := []string{event("user", "12:00:00", "1", "10"), event("key", "12:00:00", "1", "10")}
	e.until("the first hour", 0, func() bool { return len(received()) == len(want) })
	if _, err := e.svc.Settle(ctx, e.account, hold.HoldID, &service.Final{Costs: []core.MeterCost{{Meter: "tokens", Cost: 60}}}); err != nil {
		t.Fatal(err)
	}
	e.deliverer.Wake()
	want = append(want, event("user", "13:00:00", "1", "60"), event("user", "14:00:00", "1", "7"), event("key", "13:00:00", "1", "60"), event("key", "14:00:00", "1", "7"))
	e.until("the other hours", 0, func() bool { return len(received()) >= len(want) && e.pending(w) == 0 })
	slices.Sort(want)
	if diff := cmp.Diff(want, received()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	for id, body := range all.bodies {
		var b struct{ Type string }
		if err := json.Unmarshal([]byte(body), &b); err != nil || b.Type == core.EventUsage {
			t.Errorf("a webhook that names no types got %s: %s", id, body)
		}
	}
}
