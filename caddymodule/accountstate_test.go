package caddymodule

import (
	"net/http"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// sameAnswer fails unless two answers differ in nothing but date and request id.
func sameAnswer(t *testing.T, door string, got, want caddytest.Reply) {
	t.Helper()
	for _, h := range []http.Header{got.Header, want.Header} {
		h.Del("Date")
		h.Del("X-Request-Id")
	}
	if got.StatusCode != want.StatusCode || got.Text != want.Text {
		t.Errorf("%s: got %d %s, something unknown answers %d %s", door, got.StatusCode, got.Text, want.StatusCode, want.Text)
	}
	for name := range want.Header {
		if g, w := got.Header.Get(name), want.Header.Get(name); g != w {
			t.Errorf("%s: %s: got %q, something unknown answers %q", door, name, g, w)
		}
	}
	if len(got.Header) != len(want.Header) {
		t.Errorf("%s: headers: got %v, want %v", door, got.Header, want.Header)
	}
}

// doorsOf is a server with the doors to an account, and the account.
type doorsOf struct {
	*server
	ten *caddytest.Tenant
	up  *recorder
}

// newDoors starts a server with the REST API and a gateway of the account acme.
func newDoors(t *testing.T) *doorsOf {
	t.Helper()
	d := &doorsOf{server: newServer(t), up: newRecorder(t, nil)}
	d.Start("store memory a", "handle "+APIBase+"/* {\nlimitkeeper_api\n}\nhandle {\nlimitkeeper {\naccount acme\n}\n"+d.up.proxy()+"\n}")
	d.ten = d.Tenant("acme", 1000)
	d.wantOpen("at first")
	return d
}

func (d *doorsOf) gateway(key string) caddytest.Reply { return d.Get("/", "X-API-Key: "+key) }

func (d *doorsOf) plans(owner string) caddytest.Reply {
	return d.Get(APIBase+"/plans", "Authorization: Bearer "+owner, "X-Forwarded-Proto: https")
}

// wantOpen fails unless each door is open.
func (d *doorsOf) wantOpen(when string) {
	d.T.Helper()
	for door, got := range map[string]caddytest.Reply{"gateway": d.gateway(d.ten.Secret), "REST API": d.plans(d.ten.Owner), "validate": d.Validate(d.ten.Owner, d.ten.Secret)} {
		if got.StatusCode != 200 {
			d.T.Errorf("%s: %s: got %d, want 200", when, door, got.StatusCode)
		}
	}
}

// wantUnknown fails unless each door answers as it answers unknown credentials.
func (d *doorsOf) wantUnknown(when string) {
	d.T.Helper()
	reached := d.up.count.Load()
	unknownKey, unknownOwner := secrets.NewUserSecret(secrets.DefaultKeyPrefix), secrets.NewOwnerSecret()
	for range 2 { // the gateway looks up the account again after the first refusal
		for _, door := range []struct {
			name      string
			of, other caddytest.Reply
		}{
			{"gateway", d.gateway(d.ten.Secret), d.gateway(unknownKey)},
			{"a key of another form", d.gateway("acme_live_0123456789"), d.gateway("other_live_0123456789")},
			{"REST API", d.plans(d.ten.Owner), d.plans(unknownOwner)},
			{"validate", d.Validate(d.ten.Owner, d.ten.Secret), d.Validate(unknownOwner, d.ten.Secret)},
		} {
			if door.other.StatusCode != 401 {
				d.T.Errorf("%s: unknown credentials got %d, want 401", door.name, door.other.StatusCode)
			}
			sameAnswer(d.T, when+": "+door.name, door.of, door.other)
		}
	}
	if n := d.up.count.Load(); n != reached {
		d.T.Errorf("%s: %d requests reached the upstream", when, n-reached)
	}
}

// Each door to a disabled account answers byte for byte as it answers unknown credentials, from the next request on, and opens again.
func TestDoorsOfDisabledAccount(t *testing.T) {
	d := newDoors(t)
	for range 2 {
		_, err := d.Service().SetAccountDisabled(t.Context(), d.ten.Account, true)
		d.Must(err)
		d.wantUnknown("disabled")
		_, err = d.Service().SetAccountDisabled(t.Context(), d.ten.Account, false)
		d.Must(err)
		d.wantOpen("enabled")
	}
}

// A gateway goes on serving an account that was renamed while, or after, it refused requests because the account was disabled.
func TestRenameAfterDisabled(t *testing.T) {
	d := newDoors(t)
	set := func(disabled bool) {
		t.Helper()
		_, err := d.Service().SetAccountDisabled(t.Context(), d.ten.Account, disabled)
		d.Must(err)
	}
	for _, name := range []string{"while disabled", "after enabled"} {
		set(true)
		d.wantUnknown("disabled")
		if name == "after enabled" {
			set(false)
		}
		_, err := d.Service().RenameAccount(t.Context(), d.ten.Account, name)
		d.Must(err)
		set(false)
		d.wantOpen("renamed " + name)
	}
	d.WaitLog("the account is disabled: every key is unknown until limitkeeper account enable brings it back", 1)
}

// The same is true of a deleted account, before and after everything of it is removed. A new account with its name is served without a reload.
func TestDoorsOfDeletedAccount(t *testing.T) {
	d := newDoors(t)
	_, err := d.Service().DeleteAccount(t.Context(), d.ten.Account)
	d.Must(err)
	d.wantUnknown("deleted")
	d.Must(d.Service().PurgeAccounts(t.Context(), func(service.Purge) {}))
	d.wantUnknown("removed")
	if d.Exists("acme") {
		t.Error("the account exists")
	}
	d.ten = d.Tenant("acme", 1000)
	d.wantOpen("a new account with the name")
}

// A rename interrupts nobody: the gateway goes on serving until a reload. A config with the former name is refused or makes every key unknown, and says
// so; it makes no account.
func TestRenamedAccountInConfig(t *testing.T) {
	s, owner := newServer(t), secrets.NewOwnerSecret()
	gateway := func(name string) string { return "limitkeeper {\naccount " + name + "\n}\nrespond ok" }
	s.Start("store memory a"+caddytest.AccountOption("acme", owner), gateway("acme"))
	a, err := s.Service().AccountByName(t.Context(), "acme")
	s.Must(err)
	running, err := RunningStore()
	s.Must(err)
	if got, want := strings.Join(running.Directives("acme"), ", "), `account "acme" of the global option limitkeeper, account "acme" of the directive limitkeeper`; got != want {
		t.Errorf("directives: got %s, want %s", got, want)
	}
	ten := s.Tenant("tenant", 1000)
	s.Start("store memory a"+caddytest.AccountOption("acme", owner), gateway("tenant"))
	if got := s.Get("/", "X-API-Key: "+ten.Secret); got.StatusCode != 200 {
		t.Fatalf("before: got %d", got.StatusCode)
	}
	for id, name := range map[string]string{a.ID: "acme-europe", ten.Account: "customer"} {
		_, err := s.Service().RenameAccount(t.Context(), id, name)
		s.Must(err)
	}
	if got := s.Get("/", "X-API-Key: "+ten.Secret); got.StatusCode != 200 {
		t.Errorf("after the rename: got %d, want 200", got.StatusCode)
	}
	for _, key := range []string{owner, secrets.NewOwnerSecret()} {
		err := s.Load(s.rejected("store memory a"+caddytest.AccountOption("acme", key), gateway("customer")))
		if err == nil || !strings.Contains(err.Error(), `the account "acme" has been renamed to "acme-europe": change the name in the configuration`) {
			t.Errorf("a config with the former name: got %v, want an error with the present name", err)
		}
	}
	s.Start("store memory a"+caddytest.AccountOption("acme-europe", owner), gateway("tenant"))
	if got := s.Get("/", "X-API-Key: "+ten.Secret); got.StatusCode != 401 {
		t.Errorf("a gateway with the former name: got %d, want 401", got.StatusCode)
	}
	s.WaitLog("the account has been renamed: every key is unknown until the config has its present name", 1)
	if s.Exists("acme") || s.Exists("tenant") {
		t.Error("a config with a former name has made an account")
	}
	s.Start("store memory a"+caddytest.AccountOption("acme-europe", owner), gateway("customer"))
	if got := s.Get("/", "X-API-Key: "+ten.Secret); got.StatusCode != 200 {
		t.Errorf("a gateway with the new name: got %d, want 200", got.StatusCode)
	}
}

// A server whose config declares a disabled account starts, says so, and leaves it disabled.
func TestDisabledAccountInConfig(t *testing.T) {
	s, owner := newServer(t), secrets.NewOwnerSecret()
	s.Start("store memory a"+caddytest.AccountOption("acme", owner), caddytest.Both("respond ok"))
	a, err := s.Service().AccountByName(t.Context(), "acme")
	s.Must(err)
	_, err = s.Service().SetAccountDisabled(t.Context(), a.ID, true)
	s.Must(err)
	s.Must(s.Load(s.Config("store memory a"+caddytest.AccountOption("acme", owner), caddytest.Both("respond again"))))
	s.WaitLog("a configured account is disabled", 1)
	if s.Exists("acme") {
		t.Error("a reload has enabled the account")
	}
}
