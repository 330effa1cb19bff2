package webhook_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// feedUser creates a user with a key and a request in the present hour.
func (e *env) feedUser() *core.User {
	e.t.Helper()
	ctx := e.t.Context()
	plan, err := e.svc.CreatePlan(ctx, e.account, core.PlanPatch{Name: new("Team"), Limit: core.Some(int64(1000)), Period: new("month")})
	if err != nil {
		e.t.Fatal(err)
	}
	u, err := e.svc.CreateUser(ctx, e.account, core.UserPatch{Name: new("ann"), PlanID: core.Some(plan.ID)})
	if err != nil {
		e.t.Fatal(err)
	}
	_, secret, err := e.svc.CreateKey(ctx, e.account, core.KeyPatch{Name: new("key"), UserID: &u.ID})
	if err != nil {
		e.t.Fatal(err)
	}
	if d, err := e.svc.Validate(ctx, e.account, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 1}); err != nil || !d.Allowed() {
		e.t.Fatalf("got %v, %v", d.Outcome, err)
	}
	return u
}

func (e *env) rewind(hour core.Date) {
	e.t.Helper()
	if _, err := e.svc.RewindUsageFeed(e.t.Context(), e.account, hour); err != nil {
		e.t.Fatal(err)
	}
	e.deliverer.Wake()
}

// count returns the numbers of requests for each id.
func (r *receiver) count() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := map[string]int{}
	for _, id := range r.got {
		n[id]++
	}
	return n
}

// After a rewind, a webhook gets its events again although they still wait for another webhook, whose receiver is down.
func TestRewindBesideDownReceiver(t *testing.T) {
	e, up, down := newEnv(t), newReceiver(t), newReceiver(t)
	down.answers(func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(http.StatusServiceUnavailable) })
	w := e.webhook(up, core.EventUsage)
	e.webhook(down, core.EventUsage)
	hour := core.HourOf(e.clock.Wall())
	u := e.feedUser()
	e.clock.Pass(time.Hour + 10*time.Minute)
	e.deliverer.Wake()
	id := core.UsageEventID(core.CounterID{Account: e.account, UserID: u.ID}, hour)
	e.until("the first delivery", 0, func() bool { return up.count()[id] == 1 && down.count()[id] > 0 && e.pending(w) == 0 })
	e.rewind(hour)
	e.until("the second delivery", 0, func() bool { return up.count()[id] == 2 && e.pending(w) == 0 })
}

// An event whose data a rewind corrects during a delivery is delivered again, with the new data.
func TestRewindDuringDelivery(t *testing.T) {
	e, r := newEnv(t), newReceiver(t)
	w := e.webhook(r, core.EventUsage)
	hour := core.HourOf(e.clock.Wall())
	u := e.feedUser()
	id := core.UsageEventID(core.CounterID{Account: e.account, UserID: u.ID}, hour)
	reached, goOn := make(chan struct{}, 100), make(chan struct{})
	var bodies []string // of the event of the user
	r.answers(func(w http.ResponseWriter, _ *http.Request, got string) {
		r.mu.Lock()
		if got == id {
			bodies = append(bodies, r.bodies[got])
		}
		delete(r.bodies, got) // the next body may differ
		r.mu.Unlock()
		if got == id {
			reached <- struct{}{}
			<-goOn
		}
		w.WriteHeader(http.StatusNoContent)
	})
	e.clock.Pass(time.Hour + 10*time.Minute)
	e.deliverer.Wake()
	<-reached
	if _, err := e.svc.UpdateUser(t.Context(), e.account, u.ID, core.UserPatch{ExternalID: core.Some("cus_1")}); err != nil {
		t.Fatal(err)
	}
	e.rewind(hour)
	e.until("the hour is written again", 0, func() bool {
		f, err := e.svc.UsageFeed(t.Context(), e.account)
		return err == nil && f.Next > hour
	})
	close(goOn)
	e.until("all is delivered", 0, func() bool { return e.pending(w) == 0 })
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(bodies) != 2 || !strings.Contains(bodies[1], `"external_id":"cus_1"`) {
		t.Errorf("got %q, want the second body with the external id", bodies)
	}
}
