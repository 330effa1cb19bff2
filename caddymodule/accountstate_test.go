package caddymodule

import (
	"net/http"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/core/secrets"
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

// Each door to a disabled account answers byte for byte as it answers unknown credentials, from the next request on, and opens again.
func TestDoorsOfDisabledAccount(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	s.Start("store memory a", "handle "+APIBase+"/* {\nlimitkeeper_api\n}\nhandle {\nlimitkeeper {\naccount acme\n}\n"+up.proxy()+"\n}")
	ten := s.Tenant("acme", 1000)
	site := func(path, key string) caddytest.Reply { return s.Get(path, "X-API-Key: "+key) }
	api := func(owner string) caddytest.Reply {
		return s.Get(APIBase+"/plans", "Authorization: Bearer "+owner, "X-Forwarded-Proto: https")
	}
	unknownKey, unknownOwner := secrets.NewUserSecret(secrets.DefaultKeyPrefix), secrets.NewOwnerSecret()
	doors := []struct {
		name      string
		of, other caddytest.Reply
	}{}
	open := func() bool {
		return site("/", ten.Secret).StatusCode == 200 && api(ten.Owner).StatusCode == 200 &&
			s.Validate(ten.Owner, ten.Secret).StatusCode == 200
	}
	if !open() {
		t.Fatal("a door is closed before the account is disabled")
	}
	reached := up.count.Load()
	_, err := s.Service().SetAccountDisabled(t.Context(), ten.Account, true)
	s.Must(err)
	for range 2 { // the gateway looks up the account again after the first refusal
		doors = append(doors, []struct {
			name      string
			of, other caddytest.Reply
		}{
			{"gateway", site("/", ten.Secret), site("/", unknownKey)},
			{"a key of another form", site("/", "acme_live_0123456789"), site("/", "other_live_0123456789")},
			{"REST API", api(ten.Owner), api(unknownOwner)},
			{"validate", s.Validate(ten.Owner, ten.Secret), s.Validate(unknownOwner, ten.Secret)},
		}...)
	}
	for _, d := range doors {
		if d.other.StatusCode != 401 {
			t.Errorf("%s: unknown credentials got %d, want 401", d.name, d.other.StatusCode)
		}
		sameAnswer(t, d.name, d.of, d.other)
	}
	if n := up.count.Load(); n != reached {
		t.Errorf("%d requests of a disabled account reached the upstream", n-reached)
	}
	_, err = s.Service().SetAccountDisabled(t.Context(), ten.Account, false)
	s.Must(err)
	if !open() {
		t.Error("a door is still closed after the account was enabled")
	}
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
	s.Must(s.Load(s.Config("store memory a"+caddytest.AccountOption("acme", owner), gateway("tenant"))))
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
	s.Must(s.Load(s.Config("store memory a"+caddytest.AccountOption("acme-europe", owner), gateway("tenant"))))
	if got := s.Get("/", "X-API-Key: "+ten.Secret); got.StatusCode != 401 {
		t.Errorf("a gateway with the former name: got %d, want 401", got.StatusCode)
	}
	s.WaitLog("the account has been renamed: every key is unknown until the config has its present name", 1)
	if s.Exists("acme") || s.Exists("tenant") {
		t.Error("a config with a former name has made an account")
	}
	s.Must(s.Load(s.Config("store memory a"+caddytest.AccountOption("acme-europe", owner), gateway("customer"))))
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
