package command

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
)

// The origin of the dashboard comes from the running config: host names first, then localhost, and none if
// the dashboard is off.
func TestDashboardOrigins(t *testing.T) {
	for _, tc := range []struct{ name, config, want string }{
		{"a site", `api.example.com {
			limitkeeper_api
		}`, "[https://api.example.com]"},
		{"a port", `api.example.com:8444 {
			handle /dashboard/* {
				limitkeeper_api
			}
		}`, "[https://api.example.com:8444]"},
		{"no name", `:8444 {
			tls internal
			limitkeeper_api
		}`, "[https://localhost:8444]"},
		{"several", `:8444 {
			tls internal
			limitkeeper_api
		}
		b.example.com, a.example.com, *.example.com {
			limitkeeper_api
		}
		other.example.com {
			respond ok
		}`, "[https://a.example.com https://b.example.com https://localhost:8444]"},
		{"a pattern alone", `*.example.com {
			limitkeeper_api
		}`, "[]"},
		{"plain HTTP", `http://api.example.com {
			limitkeeper_api
		}`, "[]"},
		{"plain HTTP on a port", `http://:8080 {
			limitkeeper_api
		}`, "[]"},
		{"off", `api.example.com {
			limitkeeper_api {
				dashboard off
			}
		}`, "[]"},
		{"none", `api.example.com {
			respond ok
		}`, "[]"},
	} {
		config, err := caddytest.Adapt("{\n\tlimitkeeper {\n\t\tstore badger x\n\t}\n}\n" + tc.config)
		if err != nil {
			t.Fatal(err)
		}
		var whole struct {
			Apps struct{ HTTP caddyhttp.App } `json:"apps"`
		}
		if err := json.Unmarshal(config, &whole); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(dashboardOrigins(&whole.Apps.HTTP)); got != tc.want {
			t.Errorf("%s: got %s, want %s", tc.name, got, tc.want)
		}
	}
}

// The printed link signs in once. Without a dashboard the error says what to do.
func TestSignInCommand(t *testing.T) {
	s := newServer(t)
	s.Start("store memory", "limitkeeper_api")
	s.Tenant("acme", 1)
	out, err := s.command("sign-in", "acme", "--address", s.Admin, "--url", "https://api.example.com/")
	if err != nil || !strings.HasPrefix(out, "https://api.example.com/dashboard/sign-in?link=lk_link_acct_") || !strings.Contains(out, "It signs in to acme, once, until 2") {
		t.Fatalf("got %q, %v", out, err)
	}
	path := strings.TrimPrefix(strings.Fields(out)[0], "https://api.example.com")
	resp := s.Get(path, "X-Forwarded-Proto: https")
	if resp.StatusCode != 200 {
		t.Errorf("the link: got %d, want 200", resp.StatusCode)
	}
	out, err = s.command("sign-in", "acme", "--address", s.Admin, "--json", "--url", "https://x:8444")
	var v signInView
	if err != nil || json.Unmarshal([]byte(out), &v) != nil || v.Account != "acme" || !strings.HasPrefix(v.Link, "https://x:8444/dashboard/sign-in?link=") {
		t.Errorf("--json: got %q, %v", out, err)
	}
	for _, tc := range []struct{ args, want string }{
		{"sign-in nobody --url https://x", `creating a link for account "nobody": account not found`},
		{"sign-in acme --url https://x/y", "--url: want an address like https://api.example.com"},
		{"sign-in acme --url https://u:p@x", "--url: want an address like https://api.example.com"},
		{"sign-in acme --url http://x", "--url: want an address like https://api.example.com"},
		{"sign-in", "wrong number of arguments; usage: limitkeeper account sign-in NAME"},
	} {
		if _, err := s.command(append(strings.Fields(tc.args), "--address", s.Admin)...); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %s", tc.args, err, tc.want)
		}
	}
}

// After the command regenerate the old key works as long as the flag says.
func TestKeyRegenerateCommand(t *testing.T) {
	s := newServer(t)
	s.Start("store memory", "limitkeeper_api")
	s.Tenant("acme", 1)
	works := func(key string) bool {
		return s.Get("/functions/v1/keys", "Authorization: Bearer "+key, "X-Forwarded-Proto: https").StatusCode == 200
	}
	for _, tc := range []struct {
		grace, says string
		works       bool
	}{{"", "works until it is revoked", true}, {"--grace=keep", "works until it is revoked", true}, {"--grace=24h", "works for another 24h", true}, {"--grace=0", "has stopped working", false}} {
		var old, next ownerKeyView
		out, err := s.command("key", "create", "acme", "--json", "--address", s.Admin)
		if err != nil || json.Unmarshal([]byte(out), &old) != nil {
			t.Fatalf("got %q, %v", out, err)
		}
		args := []string{"key", "regenerate", "acme", old.ID, "--address", s.Admin}
		if tc.grace != "" {
			args = append(args, tc.grace)
		}
		if out, err = s.command(args...); err != nil || !strings.Contains(out, tc.says) || !strings.Contains(out, old.ID) {
			t.Errorf("%s: got %q, %v", tc.grace, out, err)
		}
		next.Key = strings.Fields(out)[2]
		if works(old.Key) != tc.works || !works(next.Key) {
			t.Errorf("%s: the old key works: %t, want %t; the new one: %t", tc.grace, works(old.Key), tc.works, works(next.Key))
		}
	}
	for _, tc := range []struct{ args, want string }{
		{"key regenerate acme okey_none", "regenerating key okey_none of account \"acme\": owner's key not found"},
		{"key regenerate acme okey_none --grace -1h", "--grace: want keep, 0 or a duration like 24h"},
		{"key regenerate acme okey_none --grace soon", "--grace: want keep, 0 or a duration like 24h"},
		{"key regenerate acme okey_none --grace 9000h", "at most 31536000"},
	} {
		if _, err := s.command(append(strings.Fields(tc.args), "--address", s.Admin)...); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %s", tc.args, err, tc.want)
		}
	}
}
