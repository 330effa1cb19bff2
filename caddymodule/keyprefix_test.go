package caddymodule

import (
	"net/url"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
)

// newKey creates another key of a tenant and returns its value.
func (s *server) newKey(ten *tenant) string {
	s.t.Helper()
	_, secret, err := s.service().CreateKey(s.t.Context(), ten.account, core.KeyPatch{Name: new("another"), UserID: &ten.user.ID, PlanID: core.Some(ten.plan.ID)})
	s.must(err)
	return secret
}

// ownPrefix returns the options of an app with the account default and a key prefix.
func ownPrefix(prefix string) string {
	return "store memory\naccount default {\nkey lk_0123456789abcdefghijklmnopqrs\nkey_prefix " + prefix + "\n}"
}

// The gateway treats keys with a prefix of the account as it treats lk_user_: it accepts them, keeps them from the upstream
// and out of the logs, and refuses keys with the prefix of another account as malformed.
func TestGatewayKeyPrefix(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	site := "limitkeeper {\nkey header X-API-Key\nkey query api_key\nkey bearer\n}\n" + up.proxy()
	s.start("store memory", site)
	ten, other := s.tenant("default", 1000), s.tenant("other", 1000)
	for id, prefix := range map[string]string{ten.account: "gate_live_", other.account: "upstream_"} {
		_, err := s.service().UpdateAccount(t.Context(), id, core.AccountPatch{KeyPrefix: &prefix})
		s.must(err)
	}
	key, second, foreign := s.newKey(ten), s.newKey(ten), s.newKey(other)
	encoded := strings.ReplaceAll(url.QueryEscape(key), "_", "%5F")
	for _, r := range [][]string{
		{"/", "X-API-Key: " + key, "Referer: https://x/?k=" + key + "&e=" + encoded},
		{"/?api_key=" + encoded + "&b=c"},
		{"/?api_key=" + second, "X-API-Key: " + key},
		{"/", "Authorization: Bearer " + key, "X-Note: " + key},
		{"/?api_key=" + key, "X-API-Key: " + ten.secret},
	} {
		if got := s.get(r[0], r[1:]...); got.StatusCode != 200 {
			t.Fatalf("%v: got %d %s, want 200", r, got.StatusCode, got.body)
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

	if got := s.get("/", "X-API-Key: "+foreign); got.StatusCode != 401 || !strings.Contains(got.body, string(core.CodeInvalidAPIKey)) {
		t.Errorf("a key with the prefix of another account: got %d %s, want 401 %s", got.StatusCode, got.body, core.CodeInvalidAPIKey)
	}
	// A credential of the upstream that begins like the keys of another account is no key here.
	s.get("/", "X-API-Key: "+key, "Authorization: Bearer "+foreign)
	if got := up.last.Load().Header.Get("Authorization"); got != "Bearer "+foreign {
		t.Errorf("a credential of the upstream: got %q", got)
	}

	s.get("/" + key + "/" + encoded) // without a key in its place
	s.waitLog(`"logger":"http.log.access`, 8)
	log := s.logged()
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
	s.start(ownPrefix("conf_a_"), site)
	a, err := s.service().AccountByName(t.Context(), "default")
	s.must(err)
	ten := &tenant{account: a.ID}
	ten.plan, err = s.service().CreatePlan(t.Context(), a.ID, core.PlanPatch{Name: new("p"), Limit: new(int64(1000)), Period: new("year")})
	s.must(err)
	ten.user, err = s.service().CreateUser(t.Context(), a.ID, core.UserPatch{Name: new("u")})
	s.must(err)

	var secrets []string
	for _, c := range []struct{ options, want string }{
		{"", "conf_a_"}, {ownPrefix("conf_b_"), "conf_b_"}, {"store memory", "conf_b_"}, {ownPrefix("lk_user_"), "lk_user_"}, {ownPrefix("conf_a_"), "conf_a_"},
	} {
		if c.options != "" {
			s.start(c.options, site)
		}
		secret := s.newKey(ten)
		if !strings.HasPrefix(secret, c.want) {
			t.Errorf("with %q: got the key %q, want the prefix %s", c.options, secret, c.want)
		}
		secrets = append(secrets, secret)
		for _, secret := range secrets {
			if got := s.get("/", "X-API-Key: "+secret); got.StatusCode != 200 {
				t.Errorf("with %q, key %q: got %d %s, want 200", c.options, secret, got.StatusCode, got.body)
			}
		}
	}

	for i := range 14 { // of 16
		s.start(ownPrefix("conf_"+string(rune('c'+i))+"_"), site)
	}
	err = s.load(s.rejected(ownPrefix("conf_z_"), site))
	if err == nil || !strings.Contains(err.Error(), "at most 16 key prefixes") {
		t.Errorf("a config with a 17th prefix: got %v, want a refusal", err)
	}
	if err := s.load(s.rejected(ownPrefix("{env.NO_SUCH_PREFIX}nope"), site)); err == nil || !strings.Contains(err.Error(), "key_prefix of account") {
		t.Errorf("a bad prefix from a placeholder: got %v", err)
	}
}

// The command account set changes the prefix of new keys, and account list shows it.
func TestAccountSet(t *testing.T) {
	s := newServer(t)
	s.start("store memory", "limitkeeper\nrespond ok")
	ten := s.tenant("Acme / Söhne", 1000)
	out, err := s.command("set", "Acme / Söhne", "--key-prefix", "cli_live_", "--address", s.admin)
	if want := "New keys of account Acme / Söhne begin with cli_live_. Earlier keys keep working.\n"; err != nil || out != want {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
	if secret := s.newKey(ten); !strings.HasPrefix(secret, "cli_live_") {
		t.Errorf("got the key %q, want the prefix cli_live_", secret)
	}
	out, err = s.command("list", "--address", s.admin)
	if err != nil || !strings.Contains(out, "KEY PREFIX") || !strings.Contains(out, "cli_live_") {
		t.Errorf("list: got %q, %v, want the prefix", out, err)
	}
	out, err = s.command("set", "Acme / Söhne", "--key-prefix", "lk_user_", "--json", "--address", s.admin)
	if err != nil || !strings.Contains(out, `"key_prefix":"lk_user_"`) {
		t.Errorf("with --json: got %q, %v", out, err)
	}
	for want, args := range map[string][]string{
		`changing account "nope": account not found`:                             {"nope", "--key-prefix", "cli_"},
		`changing account "Acme / Söhne": a key prefix ends with _`:              {"Acme / Söhne", "--key-prefix", "cli"},
		`nothing to set: name a prefix of new keys with --key-prefix`:            {"Acme / Söhne"},
		`wrong number of arguments; usage: limitkeeper account set NAME [flags]`: {"--key-prefix", "cli_"},
	} {
		out, err := s.command(append([]string{"set", "--address", s.admin}, args...)...)
		if err == nil || !strings.HasPrefix(err.Error(), want) || out != "" {
			t.Errorf("set %v: got %q, %v, want the error %s", args, out, err, want)
		}
	}
}
