package caddymodule

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// ownPrefix returns the options of an app with the account default and a key prefix.
func ownPrefix(prefix string) string {
	return "store memory\naccount default {\nkey lk_0123456789abcdefghijklmnopqrs\nkey_prefix " + prefix + "\n}"
}

// The gateway treats keys with a prefix of the account as it treats lk_user_: it accepts them, keeps them from the upstream
// and out of the logs, and refuses keys with the prefix of another account as malformed.
func TestGatewayKeyPrefix(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	site := "limitkeeper {\nkey header X-API-Key\nkey query api_key\nkey bearer\n}\n" + up.proxy()
	s.Start("store memory", site)
	ten, other := s.Tenant("default", 1000), s.Tenant("other", 1000)
	for id, prefix := range map[string]string{ten.Account: "gate_live_", other.Account: "upstream_"} {
		_, err := s.Service().UpdateAccount(t.Context(), id, core.AccountPatch{KeyPrefix: &prefix})
		s.Must(err)
	}
	key, second, foreign := s.NewKey(ten), s.NewKey(ten), s.NewKey(other)
	encoded := strings.ReplaceAll(url.QueryEscape(key), "_", "%5F")
	for _, r := range [][]string{
		{"/", "X-API-Key: " + key, "Referer: https://x/?k=" + key + "&e=" + encoded},
		{"/?api_key=" + encoded + "&b=c"},
		{"/?api_key=" + second, "X-API-Key: " + key},
		{"/", "Authorization: Bearer " + key, "X-Note: " + key},
		{"/?api_key=" + key, "X-API-Key: " + ten.Secret},
	} {
		if got := s.Get(r[0], r[1:]...); got.StatusCode != 200 {
			t.Fatalf("%v: got %d %s, want 200", r, got.StatusCode, got.Text)
		}
		passed := up.last.Load()
		all := passed.RequestURI
		for name, values := range passed.Header {
			all += "\n" + name + ": " + strings.Join(values, ", ")
		}
		for what, secret := range map[string]string{"key": key, "encoded key": encoded, "second key": second} {
			if strings.Contains(all, secret) {
				t.Errorf("%v: the upstream got the %s:\n%s", r, what, all)
			}
		}
	}

	if got := s.Get("/", "X-API-Key: "+foreign); got.StatusCode != 401 || !strings.Contains(got.Text, string(core.CodeInvalidAPIKey)) {
		t.Errorf("a key with the prefix of another account: got %d %s, want 401 %s", got.StatusCode, got.Text, core.CodeInvalidAPIKey)
	}
	// A credential of the upstream that begins like the keys of another account is no key here.
	s.Get("/", "X-API-Key: "+key, "Authorization: Bearer "+foreign)
	if got := up.last.Load().Header.Get("Authorization"); got != "Bearer "+foreign {
		t.Errorf("a credential of the upstream: got %q", got)
	}

	s.Get("/" + key + "/" + encoded) // without a key in its place
	s.WaitLog(`"logger":"http.log.access`, 8)
	log := s.Logged()
	for what, secret := range map[string]string{"key": key, "encoded key": encoded, "second key": second, "key of the other account": foreign} {
		if i := strings.Index(log, secret); i >= 0 {
			t.Errorf("the %s is in the log: %s", what, log[max(0, i-500):i+len(secret)])
		}
	}
	if want := `"uri":"/gate_live_***`; !strings.Contains(log, want) {
		t.Errorf("the log lacks %s", want)
	}
}

// The config sets the prefix at its start and at each reload. Earlier keys keep working, and a config without the word
// keeps the prefix.
func TestConfiguredKeyPrefix(t *testing.T) {
	s := newServer(t)
	const site = "limitkeeper\nrespond ok"
	s.Start(ownPrefix("conf_a_"), site)
	a, err := s.Service().AccountByName(t.Context(), "default")
	s.Must(err)
	ten := &caddytest.Tenant{Account: a.ID}
	ten.Plan, err = s.Service().CreatePlan(t.Context(), a.ID, core.PlanPatch{Name: new("p"), Limit: core.Some(int64(1000)), Period: new("year")})
	s.Must(err)
	ten.User, err = s.Service().CreateUser(t.Context(), a.ID, core.UserPatch{Name: new("u")})
	s.Must(err)

	var secrets []string
	for _, c := range []struct{ options, want string }{
		{"", "conf_a_"}, {ownPrefix("conf_b_"), "conf_b_"}, {"store memory", "conf_b_"}, {ownPrefix("lk_user_"), "lk_user_"}, {ownPrefix("conf_a_"), "conf_a_"},
	} {
		if c.options != "" {
			s.Start(c.options, site)
		}
		secret := s.NewKey(ten)
		if !strings.HasPrefix(secret, c.want) {
			t.Errorf("with %q: got the key %q, want the prefix %s", c.options, secret, c.want)
		}
		secrets = append(secrets, secret)
		for _, secret := range secrets {
			if got := s.Get("/", "X-API-Key: "+secret); got.StatusCode != 200 {
				t.Errorf("with %q, key %q: got %d %s, want 200", c.options, secret, got.StatusCode, got.Text)
			}
		}
	}

	for i := range 14 { // of 16
		s.Start(ownPrefix("conf_"+string(rune('c'+i))+"_"), site)
	}
	err = s.Load(s.rejected(ownPrefix("conf_z_"), site))
	if err == nil || !strings.Contains(err.Error(), "at most 16 key prefixes") {
		t.Errorf("a config with a 17th prefix: got %v, want a refusal", err)
	}
	if err := s.Load(s.rejected(ownPrefix("{env.NO_SUCH_PREFIX}nope"), site)); err == nil || !strings.Contains(err.Error(), "key_prefix of account") {
		t.Errorf("a bad prefix from a placeholder: got %v", err)
	}
}

// An account that accepts keys of any form takes a key without a prefix from each place, and only a key. The gateway keeps
// the key from the upstream, and out of the logs wherever it is looked for.
func TestGatewayAnyKeyForm(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	s.Start("store memory", "limitkeeper {\nkey header X-API-Key\nkey query api_key\nkey cookie session\nkey bearer\n}\n"+up.proxy())
	ten := s.Tenant("default", 1000)
	const key, unknown = "0f1e2d3c4b5a69788796a5b4c3d2e1f0", "ffffffffffffffffffffffffffffffff"
	if got := s.Get("/", "X-API-Key: "+key); got.StatusCode != 401 || !strings.Contains(got.Text, string(core.CodeInvalidAPIKey)) {
		t.Errorf("before the account accepts any form: got %d %s, want 401 %s", got.StatusCode, got.Text, core.CodeInvalidAPIKey)
	}
	_, err := s.Service().UpdateAccount(t.Context(), ten.Account, core.AccountPatch{AnyKeyForm: new(true)})
	s.Must(err)
	d := secrets.DigestOf(key)
	s.Must(s.Service().Transact(t.Context(), ten.Account, []secrets.Digest{d}, func(b *service.Transaction) error {
		ten.Key, _, err = b.CreateKey(core.KeyPatch{Name: new("imported"), UserID: &ten.User.ID, PlanID: core.Some(ten.Plan.ID), Digest: &d})
		return err
	}))
	places := [][]string{
		{"/", "X-API-Key: " + key},
		{"/?api_key=" + key + "&b=c"},
		{"/", "Authorization: Bearer " + key},
		{"/", "Cookie: session=" + key + "; a=b"},
	}
	for _, r := range places {
		if got := s.Get(r[0], r[1:]...); got.StatusCode != 200 {
			t.Fatalf("%v: got %d %s, want 200", r, got.StatusCode, got.Text)
		}
		passed := up.last.Load()
		if all := fmt.Sprint(passed.RequestURI, passed.Header); strings.Contains(all, key) {
			t.Errorf("%v: the upstream got the key: %s", r, all)
		}
	}
	for secret, want := range map[string]core.Code{unknown: core.CodeAPIKeyNotFound, "not.a.key": core.CodeInvalidAPIKey} {
		if got := s.Get("/?api_key="+secret, "X-API-Key: "+secret); got.StatusCode != 401 || !strings.Contains(got.Text, string(want)) {
			t.Errorf("%s: got %d %s, want 401 %s", secret, got.StatusCode, got.Text, want)
		}
	}
	if got := s.used(ten); got != int64(len(places)) {
		t.Errorf("%d requests were counted, want %d", got, len(places))
	}
	s.WaitLog(`"logger":"http.log.access`, len(places)+3)
	log := s.Logged()
	for _, secret := range []string{unknown, "not.a.key"} {
		if strings.Contains(log, secret) {
			t.Errorf("the log has the unknown value %s", secret)
		}
	}
	if i := strings.Index(log, key); i >= 0 {
		t.Errorf("the key is in the log: %s", log[max(0, i-500):i+len(key)])
	}
}
