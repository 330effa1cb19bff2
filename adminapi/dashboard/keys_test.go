package dashboard_test

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// key makes a key of a user, on the user's plan.
func (s *site) key(acc *core.Account, user int64, name string) (*core.Key, string) {
	s.Helper()
	k, secret, err := s.svc.CreateKey(context.Background(), acc.ID, core.KeyPatch{Name: &name, UserID: &user})
	if err != nil {
		s.Fatal(err)
	}
	return k, secret
}

// keyNow returns a key as it is.
func (s *site) keyNow(id string) *core.Key {
	s.Helper()
	k, err := s.svc.Key(context.Background(), s.acc.ID, id)
	if err != nil {
		s.Fatal(err)
	}
	return k
}

// keys returns the keys of the account of the site.
func (s *site) keys() []*core.Key {
	s.Helper()
	keys, _, err := s.svc.Keys(context.Background(), s.acc.ID, core.KeyFilter{}, core.Page{Number: 1, Size: 100})
	if err != nil {
		s.Fatal(err)
	}
	return keys
}

// wantOutcome fails unless a request with a value comes out so.
func (s *site) wantOutcome(secret string, want service.Outcome) {
	s.Helper()
	d, err := s.svc.Validate(context.Background(), s.acc.ID, service.Request{Secret: secret, Endpoint: "/v1/orders", Method: "GET", Cost: 1})
	if err != nil {
		s.Fatal(err)
	}
	if d.Outcome != want {
		s.Errorf("got %s, want %s", d.Outcome, want)
	}
}

// withKey returns a site with one user that has one key, on a plan of 100 a month.
func withKey(t *testing.T) (s *site, b *browser, k *core.Key, secret string) {
	t.Helper()
	s = newSite(t)
	u := s.user(s.acc, "Ada", s.plan(s.acc, "Team", 100).ID)
	k, secret = s.key(s.acc, u.ID, "production")
	return s, s.signedIn("Acme"), k, secret
}

func TestKeyIsCreated(t *testing.T) {
	s := newSite(t)
	b := s.signedIn("Acme")
	b.get("/dashboard/keys").want(t, http.StatusOK, "No keys yet", "Go to the users")
	own := s.plan(s.acc, "Own", 3)
	s.user(s.acc, "Ada", s.plan(s.acc, "Team", 100).ID)

	p := b.send("/dashboard/keys/new?user=1", "keys?user=1", url.Values{"name": {"production"}, "status": {"active"}})
	s.wantOutcome(p.want(t, http.StatusOK, "Your new key", "production").secret(t), service.Allowed)
	k := s.keys()[0]
	p.want(t, http.StatusOK, `href="/dashboard/keys/`+k.ID+`"`)
	if k.UserID != 1 || k.PlanID != "" || k.ExpiresAt != nil || k.Metadata != nil {
		t.Errorf("got %+v, want a key of the user on its plan", k)
	}

	p = b.send("/dashboard/keys/new", "keys", url.Values{"name": {"batch"}, "user_id": {" 1 "}, "plan_id": {own.ID}, "status": {"inactive"},
		"expires_at": {"2099-03-04T05:06"}, "metadata": {`{"region":"eu"}`}})
	s.wantOutcome(p.want(t, http.StatusOK, "batch").secret(t), service.Disabled)
	k = s.keys()[1]
	if k.PlanID != own.ID || !k.ExpiresAt.Equal(time.Date(2099, 3, 4, 5, 6, 0, 0, time.UTC)) || string(k.Metadata) != `{"region":"eu"}` {
		t.Errorf("got %+v, want what was filled in", k)
	}
	b.get("/dashboard/keys/"+k.ID).want(t, http.StatusOK, "Own", "4 Mar 2099, 05:06:00 UTC", "&#34;region&#34;: &#34;eu&#34;", ">disabled<", "<b>0</b> of 3 a month").
		wantNone(t, "the user’s")
}

func TestKeyIsEdited(t *testing.T) {
	s, b, k, _ := withKey(t)
	own := s.plan(s.acc, "Own", 3)
	other := s.user(s.acc, "Grace", own.ID)
	page, edit := "/dashboard/keys/"+k.ID, "/dashboard/keys/"+k.ID+"/edit"
	b.get(edit).want(t, http.StatusOK, `value="production"`, `name="user_id" type="text" value="1"`, `value="active" checked`)
	b.send(edit, "keys/"+k.ID, url.Values{"name": {"batch"}, "user_id": {"2"}, "plan_id": {own.ID}, "status": {"inactive"},
		"expires_at": {"2099-03-04T05:06:07"}, "metadata": {"{}"}}).want(t, http.StatusOK, "Saved.", "batch", "Grace")
	if got := s.keyNow(k.ID); got.Name != "batch" || got.UserID != other.ID || got.PlanID != own.ID || got.Status != core.KeyInactive ||
		!got.ExpiresAt.Equal(time.Date(2099, 3, 4, 5, 6, 7, 0, time.UTC)) || string(got.Metadata) != "{}" || got.Digest != k.Digest {
		t.Errorf("got %+v, want what was filled in", got)
	}
	b.get(edit).want(t, http.StatusOK, `value="2099-03-04T05:06:07"`, `value="inactive" checked`)
	b.send(edit, "keys/"+k.ID, url.Values{"name": {"batch"}, "user_id": {"2"}, "plan_id": {""}, "status": {"active"}, "expires_at": {""}, "metadata": {""}}).
		want(t, http.StatusOK, "Saved.")
	if got := s.keyNow(k.ID); got.PlanID != "" || got.ExpiresAt != nil || got.Metadata != nil {
		t.Errorf("got %+v, want them cleared", got)
	}
	b.get(page).want(t, http.StatusOK, "the user’s", "<b>0</b> of 3 a month")
}

// A key that has expired can be edited without another expiry.
func TestExpiredKeyIsEdited(t *testing.T) {
	now := time.Now().Add(-time.Hour)
	s := newSiteAt(t, func() time.Time { return now })
	u := s.user(s.acc, "Ada", s.plan(s.acc, "Team", 100).ID)
	k, secret := s.key(s.acc, u.ID, "production")
	until := now.Add(time.Minute)
	if _, err := s.svc.UpdateKey(context.Background(), s.acc.ID, k.ID, core.KeyPatch{ExpiresAt: core.Some(until)}); err != nil {
		t.Fatal(err)
	}
	now = time.Now()
	s.wantOutcome(secret, service.Expired)
	b := s.signedIn("Acme")
	form := url.Values{"name": {"renamed"}, "user_id": {"1"}, "status": {"active"}, "expires_at": {until.UTC().Format("2006-01-02T15:04:05")}}
	b.send("/dashboard/keys/"+k.ID+"/edit", "keys/"+k.ID, form).want(t, http.StatusOK, "Saved.", "renamed", ">expired<")
	if got := s.keyNow(k.ID); !got.ExpiresAt.Equal(until) {
		t.Errorf("got the expiry %s, want %s", got.ExpiresAt, until)
	}
}

// An error is shown at its field, and the entered values stay.
func TestKeyFaults(t *testing.T) {
	s, b, k, _ := withKey(t)
	if _, err := s.svc.CreateUser(context.Background(), s.acc.ID, core.UserPatch{Name: new("No plan")}); err != nil {
		t.Fatal(err)
	}
	about := func(field string) string { return `<small id="about-` + field + `" class="fault">` }
	for _, c := range []struct{ field, value, fault string }{
		{"name", "", about("name") + "Name is required"},
		{"user_id", "", about("user_id") + "Must be a whole number"},
		{"user_id", "ada", about("user_id") + "Must be a whole number"},
		{"user_id", "3", about("user_id") + "There is no user with this id"},
		{"user_id", "0", about("user_id") + "There is no user with this id"},
		{"user_id", "2", about("plan_id") + "Plan id is required: the user has no plan of its own"},
		{"plan_id", "plan_none", about("plan_id") + "There is no such plan"},
		{"status", "perhaps", `<small class="fault">Status must be active or inactive`},
		{"expires_at", "tomorrow", about("expires_at") + "Must be a date and a time"},
		{"expires_at", "2001-02-03T04:05", about("expires_at") + "Expires at must be in the future"},
		{"metadata", "region", about("metadata") + "Metadata must be JSON: invalid character"},
	} {
		for _, at := range []struct{ page, action string }{{"/dashboard/keys/new", "keys"}, {"/dashboard/keys/" + k.ID + "/edit", "keys/" + k.ID}} {
			form := url.Values{"name": {"Typed name"}, "user_id": {"1"}, "status": {"inactive"}, "expires_at": {"2098-07-06T05:04"}, "metadata": {`{"typed":1}`}}
			form.Set(c.field, c.value)
			status := faultStatus(c.fault)
			p := b.send(at.page, at.action, form).want(t, status, c.fault)
			for name, kept := range map[string]string{"name": "Typed name", "status": `value="inactive" checked`, "expires_at": "2098-07-06T05:04", "metadata": "{&#34;typed&#34;:1}"} {
				if name != c.field {
					p.want(t, status, kept)
				}
			}
		}
	}
	b.send("/dashboard/keys/new?user=2", "keys?user=2", url.Values{"name": {"Typed name"}, "status": {"active"}}).
		want(t, http.StatusUnprocessableEntity, "A key of No plan.", "Plan id is required", "Typed name", `action="/dashboard/keys?user=2"`)
	if keys := s.keys(); len(keys) != 1 || keys[0].Name != "production" || keys[0].Status != core.KeyActive {
		t.Errorf("got %+v, want the one key unchanged", keys)
	}
}

func TestKeysAreSearchedFilteredAndPaged(t *testing.T) {
	s := newSite(t)
	pl, own := s.plan(s.acc, "Team", 100), s.plan(s.acc, "Own", 100)
	s.user(s.acc, "Ada", pl.ID)
	s.user(s.acc, "Grace", pl.ID)
	names := numbered("key ", 1, 60)
	for i, name := range names {
		s.key(s.acc, int64(1+i/50), name)
	}
	keys := s.keys()
	if _, err := s.svc.UpdateKey(context.Background(), s.acc.ID, keys[3].ID, core.KeyPatch{PlanID: core.Some(own.ID), Status: new("inactive")}); err != nil {
		t.Fatal(err)
	}
	b := s.signedIn("Acme")
	b.get("/dashboard/keys").want(t, http.StatusOK, "1–25 of 60", "Ada", "never").wantRows(t, names[:25]...)
	b.get("/dashboard/keys?page=3").want(t, http.StatusOK, "51–60 of 60", "Grace").wantRows(t, names[50:]...)
	b.get("/dashboard/keys?user=2").want(t, http.StatusOK, "1–10 of 10").wantRows(t, names[50:]...)
	b.get("/dashboard/keys?user=1&page=2").want(t, http.StatusOK, "26–50 of 50", "page=1&amp;user=1").wantRows(t, names[25:50]...)
	b.get("/dashboard/keys?plan="+own.ID).want(t, http.StatusOK, ">disabled<").wantRows(t, "key 04")
	b.get("/dashboard/keys?plan="+pl.ID).want(t, http.StatusOK, "1–25 of 59").wantRows(t, append(slices.Clone(names[:3]), names[4:26]...)...)
	b.get("/dashboard/keys?q=key%200&plan="+pl.ID).wantRows(t, append(slices.Clone(names[:3]), names[4:9]...)...)
	b.get("/dashboard/keys?user=2&plan="+pl.ID).want(t, http.StatusOK, "1–10 of 10").wantRows(t, names[50:]...)
	b.get("/dashboard/keys?status=inactive").want(t, http.StatusOK, `<option value="inactive" selected>`).wantRows(t, "key 04")
	b.get("/dashboard/keys?q=KEY%205&status=active&user=2").wantRows(t, names[50:59]...)
	b.get("/dashboard/keys?q=key").want(t, http.StatusOK, "1–25<", "page=2&amp;q=key").wantRows(t, names[:25]...)
	b.get("/dashboard/keys?q="+keys[6].ID).wantRows(t, "key 07")
	b.get("/dashboard/keys?q="+keys[6].Hint[len(keys[6].Hint)-4:]).wantRows(t, "key 07")
	for _, none := range []string{"q=nothing", "user=99", "user=ada", "user=0", "user=-5", "plan=plan_none", "status=perhaps", "page=99"} {
		status := http.StatusOK
		if strings.HasPrefix(none, "user") || strings.HasPrefix(none, "plan") {
			status = http.StatusNotFound
		}
		b.get("/dashboard/keys?"+none).want(t, status, "No key is found", "Show all keys").wantRows(t)
	}
	b.get("/dashboard/users/1").want(t, http.StatusOK, `href="/dashboard/keys?user=1"`).wantRows(t, append([]string{"key 04"}, names[:25]...)...) // that has a counter of its own
}

func TestKeyIsDisabledAndEnabled(t *testing.T) {
	s, b, k, secret := withKey(t)
	page, action := "/dashboard/keys/"+k.ID, "keys/"+k.ID+"/disabled"
	b.send(page, action, url.Values{"disabled": {"true"}}).want(t, http.StatusOK, "Disabled: the next request is refused.", ">Enable<")
	s.wantOutcome(secret, service.Disabled)
	b.send(page, action, url.Values{"disabled": {""}}).want(t, http.StatusBadRequest)
	s.wantOutcome(secret, service.Disabled)
	b.send(page, action, url.Values{"disabled": {"false"}}).want(t, http.StatusOK, "Enabled again.", ">Disable<")
	s.wantOutcome(secret, service.Allowed)
}

func TestKeyIsDeleted(t *testing.T) {
	s, b, k, secret := withKey(t)
	s.wantOutcome(secret, service.Allowed)
	page := "/dashboard/keys/" + k.ID + "/delete"
	b.get(page).want(t, http.StatusOK, "Delete “production”?", k.Hint, "What it used stays in the counter and the history of its user.")
	b.send(page, "keys/"+k.ID+"/delete", nil).want(t, http.StatusOK, "Deleted.", "No keys yet")
	s.wantOutcome(secret, service.Unknown)
	b.get("/dashboard/keys/"+k.ID).want(t, http.StatusNotFound, "API key not found")
	b.get("/dashboard/users/1").want(t, http.StatusOK, "No keys yet")
}

// The old value of a regenerated key works for the chosen time.
func TestKeyIsRegenerated(t *testing.T) {
	for _, c := range []struct {
		grace string
		works time.Duration
	}{{"0", 0}, {"3600", time.Hour}, {"86400", 24 * time.Hour}, {"604800", 7 * 24 * time.Hour}} {
		t.Run(c.grace, func(t *testing.T) {
			now := time.Now()
			s := newSiteAt(t, func() time.Time { return now })
			u := s.user(s.acc, "Ada", s.plan(s.acc, "Team", 100).ID)
			k, old := s.key(s.acc, u.ID, "production")
			b := s.signedIn("Acme")
			page := "/dashboard/keys/" + k.ID + "/regenerate"
			b.get(page).want(t, http.StatusOK, "Regenerate “production”", `value="86400" checked`, k.Hint)
			p := b.send(page, "keys/"+k.ID+"/regenerate", url.Values{"grace": {c.grace}})
			fresh := p.want(t, http.StatusOK, "The old key "+k.Hint).secret(t)
			s.wantOutcome(fresh, service.Allowed)
			if c.works > 0 {
				b.get("/dashboard/keys/"+k.ID).want(t, http.StatusOK, "An earlier value works until").wantNone(t, fresh)
				now = now.Add(c.works - time.Second)
				s.wantOutcome(old, service.Allowed)
				now = now.Add(time.Second)
			} else {
				b.get("/dashboard/keys/"+k.ID).wantNone(t, "An earlier value", fresh)
			}
			s.wantOutcome(old, service.Unknown)
			s.wantOutcome(fresh, service.Allowed)
		})
	}
}

func TestKeyIsNotRegenerated(t *testing.T) {
	s, b, k, secret := withKey(t)
	page, action := "/dashboard/keys/"+k.ID+"/regenerate", "keys/"+k.ID+"/regenerate"
	for _, grace := range []string{"", "-1", "604801", "keep", "9999999999999999999"} {
		b.send(page, action, url.Values{"grace": {grace}}).want(t, http.StatusBadRequest, "There is no such choice")
	}
	s.wantOutcome(secret, service.Allowed)
	for range 16 {
		if _, _, err := s.svc.RegenerateKey(context.Background(), s.acc.ID, k.ID, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	b.send(page, action, url.Values{"grace": {"3600"}}).want(t, http.StatusUnprocessableEntity, "Too many earlier values", `value="3600" checked`)
	s.wantOutcome(secret, service.Allowed)
}

// A form that is sent twice creates one key and shows no second secret.
func TestKeyFormsAreTakenOnce(t *testing.T) {
	s, b, k, _ := withKey(t)
	for action, form := range map[string]url.Values{
		"keys": {"name": {"again"}, "user_id": {"1"}, "status": {"active"}}, "keys/" + k.ID + "/regenerate": {"grace": {"0"}}} {
		form.Set("form", b.token("/dashboard/keys/new"))
		fresh := b.post("/dashboard/"+action, form).secret(t)
		b.post("/dashboard/"+action, form).want(t, http.StatusBadRequest, "already sent").wantNone(t, "data-secret")
		s.wantOutcome(fresh, service.Allowed)
	}
	if n := len(s.keys()); n != 2 {
		t.Errorf("got %d keys, want 2", n)
	}
}

// Resources of another account get 404.
func TestKeysOfAnotherAccount(t *testing.T) {
	s, b, mine, _ := withKey(t)
	other := s.account("Other")
	pl := s.plan(other, "Theirs", 100)
	s.user(other, "Theirs", pl.ID)
	theirs := s.user(other, "Theirs too", pl.ID) // the account of the session has no user with this id
	k, _ := s.key(other, theirs.ID, "their key")
	path := "keys/" + k.ID
	for _, page := range []string{path, path + "/edit", path + "/regenerate", path + "/delete", "keys/new?user=2"} {
		b.get("/dashboard/"+page).want(t, http.StatusNotFound)
	}
	for action, form := range map[string]url.Values{path: {"name": {"Taken over"}}, path + "/disabled": {"disabled": {"true"}},
		path + "/regenerate": {"grace": {"0"}}, path + "/delete": {}, "keys?user=2": {"name": {"Mine"}, "status": {"active"}}} {
		b.send("/dashboard/keys/new", action, form).want(t, http.StatusNotFound)
	}
	for action, page := range map[string]string{"keys": "/dashboard/keys/new", "keys/" + mine.ID: "/dashboard/keys/" + mine.ID + "/edit"} {
		b.send(page, action, url.Values{"name": {"Taken"}, "user_id": {"2"}, "status": {"active"}}).want(t, http.StatusNotFound, "There is no user with this id")
		b.send(page, action, url.Values{"name": {"Taken"}, "user_id": {"1"}, "plan_id": {pl.ID}, "status": {"active"}}).want(t, http.StatusNotFound, "There is no such plan")
	}
	for _, list := range []string{"q=their", "q=" + k.ID, "user=2", "plan=" + pl.ID} {
		if p := b.get("/dashboard/keys?" + list); strings.Contains(p.body, "their key") {
			t.Errorf("%s: the other account's key is on the page", list)
		}
	}
	got, err := s.svc.Key(context.Background(), other.ID, k.ID)
	if err != nil || got.Name != "their key" || got.Status != core.KeyActive || got.Digest != k.Digest {
		t.Errorf("the other account's key: got %+v, %v, want it unchanged", got, err)
	}
	if keys := s.keys(); len(keys) != 1 || keys[0].Name != "production" || keys[0].UserID != 1 {
		t.Errorf("got %+v, want the one key unchanged", keys)
	}
}
