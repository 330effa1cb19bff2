package dashboard_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// The settings change the prefix of new keys of the account of the session, and of no other account. Bad prefixes, a used
// form and a form of another site are refused.
func TestKeyPrefixForm(t *testing.T) {
	s := newSite(t)
	pl := s.plan(s.acc, "Team", 100)
	u := s.user(s.acc, "Ada", pl.ID)
	other := s.account("Other")
	b := s.signedIn("Acme")
	const page, action = "/dashboard/settings", "settings/key-prefix"
	b.get(page).want(t, 200, `name="key_prefix" type="text" value="lk_user_"`, "All earlier keys keep working.")
	b.send(page, action, url.Values{"key_prefix": {" site_live_ "}}).want(t, 200, "begin with the new prefix", `value="site_live_"`, "<code>lk_user_</code>")

	k, secret := s.key(s.acc, u.ID, "production")
	if !strings.HasPrefix(secret, "site_live_") {
		t.Errorf("got the key %q, want the prefix site_live_", secret)
	}
	b.get("/dashboard/keys").want(t, 200, "<code>"+k.Hint+"</code>")
	b.get("/dashboard/start").want(t, 200, "grep -o 'site_live_[A-Za-z0-9]*'")
	for path, want := range map[string]string{
		"keys?q=" + secret: "/dashboard/keys/" + k.ID,
		"keys?q=" + secrets.NewUserSecret("site_live_"): "/dashboard/keys?q=site_live_***",
		"users?q=" + secret:                             "/dashboard/users?q=site_live_***",
		"users?q=site_live_customers":                   "/dashboard/users?q=site_live_customers", // an ordinary search
		"keys?q=site_live_production_of_the_customer":   "/dashboard/keys?q=site_live_production_of_the_customer",
	} {
		if p := b.get("/dashboard/" + path); p.path != want || strings.Contains(p.body, secret) {
			t.Errorf("%s: got to %s, want %s", path, p.path, want)
		}
	}

	for bad, want := range map[string]string{"": "1 to 32 characters", "Acme_": "A key prefix has letters a to z", "acme": "A key prefix ends with _", "lk_live_": "does not begin with lk_"} {
		b.send(page, action, url.Values{"key_prefix": {bad}}).want(t, 422, want, `id="key_prefix" name="key_prefix" type="text" value="`+bad+`"`, `aria-invalid="true"`)
	}
	form := url.Values{"form": {b.token(page)}, "key_prefix": {"site_test_"}}
	b.post("/dashboard/"+action, form).want(t, 200)
	form.Set("key_prefix", "site_again_")
	if p := b.post("/dashboard/"+action, form); p.status == 200 && strings.Contains(p.body, "begin with the new prefix") {
		t.Errorf("a used form: got status %d", p.status)
	}
	form = url.Values{"form": {b.token(page)}, "key_prefix": {"site_evil_"}}
	if p := b.do("POST", "/dashboard/"+action, form, map[string][]string{"Origin": {"https://evil.example"}, "Sec-Fetch-Site": {"cross-site"}}); p.status != 403 {
		t.Errorf("a form of another site: got status %d, want 403", p.status)
	}
	for id, want := range map[string]string{s.acc.ID: "site_test_", other.ID: "lk_user_"} {
		if a, err := s.svc.Account(t.Context(), id); err != nil || a.PrefixOfNewKeys() != want {
			t.Errorf("account %s: got %+v, %v, want the prefix %s", id, a, err, want)
		}
	}
}
