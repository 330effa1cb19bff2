package dashboard_test

import (
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

var secretPattern = regexp.MustCompile(`data-secret>(lk_[A-Za-z0-9_]+)<`)

// secret returns the secret that a page shows.
func (a answer) secret(t *testing.T) string {
	t.Helper()
	m := secretPattern.FindStringSubmatch(a.want(t, 200).body)
	if m == nil {
		t.Fatalf("%s: no secret on the page\n%s", a.path, a.body)
	}
	return m[1]
}

// opens reports whether an owner's key opens the account of the site.
func (s *site) opens(secret string) bool {
	s.Helper()
	k, err := s.svc.Authenticate(s.Context(), secret)
	return err == nil && k.AccountID == s.acc.ID
}

// ownerKeyNamed returns the latest owner's key with a name.
func (s *site) ownerKeyNamed(name string) (found *core.OwnerKey) {
	s.Helper()
	keys, _, err := s.svc.OwnerKeys(s.Context(), s.acc.ID, core.Page{Number: 1, Size: 1000})
	if err != nil {
		s.Fatal(err)
	}
	for _, k := range keys {
		if k.Name == name {
			found = k
		}
	}
	return found
}

// An owner's key is shown once when it is made, and never again.
func TestCreateOwnerKey(t *testing.T) {
	s := newSite(t)
	b := s.signedIn("Acme")
	b.send("/dashboard/owner-keys/new", "owner-keys", url.Values{"name": {"  "}}).want(t, 422, "Name is required")
	secret := b.send("/dashboard/owner-keys/new", "owner-keys", url.Values{"name": {"<script>deploy"}}).want(t, 200, "&lt;script&gt;deploy").secret(t)
	if !s.opens(secret) {
		t.Errorf("%s does not open the account", secret)
	}
	p := b.get("/dashboard/owner-keys").want(t, 200, secrets.HintOf(secret), "&lt;script&gt;deploy")
	if strings.Contains(p.body, secret) {
		t.Errorf("the list shows the key")
	}
}

// A new owner's key has the role and the expiry of the form, and the list shows both.
func TestOwnerKeyRole(t *testing.T) {
	s := newSite(t)
	b := s.signedIn("Acme")
	b.get("/dashboard/owner-keys/new").want(t, 200, `value="owner" checked`, `value="validator"`)
	end := s.now().Add(48 * time.Hour).UTC().Truncate(time.Minute)
	form := url.Values{"name": {"checks"}, "role": {"admin"}, "expires_at": {end.Format("2006-01-02T15:04")}}
	b.send("/dashboard/owner-keys/new", "owner-keys", form).want(t, 422, "Role must be validator")
	form.Set("role", "validator")
	b.send("/dashboard/owner-keys/new", "owner-keys", url.Values{"name": {"checks"}, "role": {"validator"}, "expires_at": {"2020-01-01T00:00"}}).want(t, 422, "must be in the future")
	b.send("/dashboard/owner-keys/new", "owner-keys", form).want(t, 200).secret(t)
	if k := s.ownerKeyNamed("checks"); k.ItsRole() != core.RoleValidator || k.ExpiresAt == nil || !k.ExpiresAt.Equal(end) {
		t.Errorf("got %+v, want a validator's key until %v", k, end)
	}
	b.get("/dashboard/owner-keys").want(t, 200, "<td>validator</td>", "<td>owner</td>", "until "+end.Format("2 Jan 2006"))
}

// Regenerating applies the chosen grace. By default the old key keeps working.
func TestRegenerateOwnerKey(t *testing.T) {
	s := newSite(t)
	b := s.signedIn("Acme")
	for _, tc := range []struct {
		grace, says, list string
		works             bool
	}{
		{"keep", "keeps working until you revoke it", "Revoke", true},
		{"3600", "works until", "until ", true},
		{"0", "has stopped working", "revoked", false},
	} {
		old := b.send("/dashboard/owner-keys/new", "owner-keys", url.Values{"name": {"deploy " + tc.grace}}).secret(t)
		page := "/dashboard/owner-keys/" + s.ownerKeyNamed("deploy "+tc.grace).ID + "/regenerate"
		b.get(page).want(t, 200, `value="keep" checked`, "Your application is not affected")
		action := strings.TrimPrefix(page, "/dashboard/")
		b.send(page, action, url.Values{"grace": {"-1"}}).want(t, 400)
		b.send(page, action, url.Values{"grace": {"99999999999999999999"}}).want(t, 400)
		next := b.send(page, action, url.Values{"grace": {tc.grace}}).want(t, 200, tc.says, secrets.HintOf(old)).secret(t)
		if s.opens(old) != tc.works || !s.opens(next) {
			t.Errorf("grace %s: the old key works: %t, want %t; the new one: %t", tc.grace, s.opens(old), tc.works, s.opens(next))
		}
		b.get("/dashboard/owner-keys").want(t, 200, tc.list)
	}
}

// A revoked key opens nothing from then on, and cannot be regenerated.
func TestRevokeOwnerKey(t *testing.T) {
	s := newSite(t)
	b := s.signedIn("Acme")
	secret := b.send("/dashboard/owner-keys/new", "owner-keys", url.Values{"name": {"deploy"}}).secret(t)
	id := s.ownerKeyNamed("deploy").ID
	b.send("/dashboard/owner-keys/"+id+"/revoke", "owner-keys/"+id+"/revoke", nil).want(t, 200, "Revoked: the next request")
	if s.opens(secret) {
		t.Errorf("a revoked key opens the account")
	}
	b.get("/dashboard/owner-keys/"+id+"/regenerate").want(t, 400, "was revoked")
	b.get("/dashboard/owner-keys/"+id+"/revoke").want(t, 200, "<h1>Owner’s keys</h1>")
}

// A key of another account gets the same answer as a missing key.
func TestOwnerKeysOfAnotherAccount(t *testing.T) {
	s := newSite(t)
	b := s.signedIn("Acme")
	other := s.account("Other")
	k, secret, err := s.svc.CreateOwnerKey(t.Context(), other.ID, core.OwnerKeySpec{Name: "theirs"})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{k.ID, "okey_none"} {
		for _, what := range []string{"regenerate", "revoke"} {
			path := "owner-keys/" + id + "/" + what
			b.get("/dashboard/"+path).want(t, 404, "Owner&#39;s key not found")
			b.send("/dashboard/settings", path, url.Values{"grace": {"0"}}).want(t, 404)
		}
	}
	if k, err := s.svc.Authenticate(t.Context(), secret); err != nil || k.AccountID != other.ID {
		t.Errorf("the other account's key: got %v, %v", k, err)
	}
}

// Many keys are on many pages, the newest first.
func TestManyOwnerKeys(t *testing.T) {
	s := newSite(t)
	b := s.signedIn("Acme")
	for i := range 60 {
		if _, _, err := s.svc.CreateOwnerKey(t.Context(), s.acc.ID, core.OwnerKeySpec{Name: "key " + string(rune('A'+i%26)) + string(rune('0'+i/26))}); err != nil {
			t.Fatal(err)
		}
	}
	b.get("/dashboard/owner-keys").want(t, 200, ">key H2", ">key J1", "1–25 of 61")
	b.get("/dashboard/owner-keys?page=2").want(t, 200, ">key I1", ">key K0", "26–50 of 61")
	b.get("/dashboard/owner-keys?page=3").want(t, 200, ">key A0", ">default", "51–61 of 61")
}
