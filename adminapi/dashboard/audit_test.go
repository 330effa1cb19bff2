package dashboard_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// Each posted form leaves an entry with the signed-in person as its actor, and the page finds the entry by each filter.
func TestAuditLog(t *testing.T) {
	s := newSite(t)
	b := s.signedIn("Acme")
	b.get("/dashboard/audit").want(t, 200, "account.create", "sign_in.link", "Limitkeeper")
	b.send("/dashboard/plans/new", "plans", url.Values{"name": {"Basic <b>"}, "max_requests": {"1000"}, "request_period": {"month"}}).want(t, 200)
	b.send("/dashboard/settings", "settings/key-prefix", url.Values{"key_prefix": {"acme_live_"}}).want(t, 200)
	key := b.send("/dashboard/owner-keys/new", "owner-keys", url.Values{"name": {"server"}, "role": {"viewer"}}).want(t, 200)
	b.send("/dashboard/owner-keys/"+s.ownerKeyNamed("server").ID+"/revoke", "owner-keys/"+s.ownerKeyNamed("server").ID+"/revoke", nil).want(t, 200)
	const password = "correct horse battery"
	b.send("/dashboard/settings", "settings/password", url.Values{"password": {password}}).want(t, 200)
	page := b.get("/dashboard/audit").want(t, 200, "plan.create", "Basic &lt;b&gt;", "account.update", "key_prefix", "acme_live_", "owner_key.create",
		"owner_key.revoke", "sign_in.password", "127.0.0.1")
	for _, secret := range []string{password, key.secret(t)} {
		if strings.Contains(page.body, secret) {
			t.Errorf("the audit log shows %s", secret)
		}
	}
	a, err := s.svc.Audit(t.Context(), s.acc.ID, service.AuditFilter{Actor: "person"}, core.Page{Number: 1, Size: 100})
	if err != nil || a.Found != 5 {
		t.Errorf("changes by a person: got %d, error %v, want 5", a.Found, err)
	}
	for _, e := range a.Entries {
		if e.IP != "127.0.0.1" || e.Actor.Name != "Acme" {
			t.Errorf("%s: got the actor %+v from %q, want Acme from 127.0.0.1", e.Action, e.Actor, e.IP)
		}
	}
	plan := "/dashboard/audit?action=plan"
	b.get(plan).want(t, 200, "plan.create")
	if strings.Contains(b.get(plan).body, "owner_key.create") {
		t.Error("a filter by plan shows an owner's key")
	}
	b.get("/dashboard/audit?target=Basic+%3Cb%3E&from=2020-01-01&to=2999-12-31").want(t, 200, "plan.create")
	b.get("/dashboard/audit?to=2020-01-01").want(t, 200, "No change is found")
	b.get("/dashboard/audit?from=yesterday").want(t, 400, "A day is written like")
	s.account("Other")
	if other := s.signedIn("Other").get("/dashboard/audit").want(t, 200, "account.create"); strings.Contains(other.body, "plan.create") {
		t.Error("another account sees the changes of Acme")
	}
}
