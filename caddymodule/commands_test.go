package caddymodule

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/core"
)

// command runs a subcommand of account against the server.
func (s *server) command(args ...string) (string, error) {
	s.t.Helper()
	return execute("account", accountCommand, args...)
}

// execute runs a command of the binary, and returns its output.
func execute(name string, build func(*cobra.Command), args ...string) (string, error) {
	root := &cobra.Command{Use: "limitkeeper", SilenceUsage: true, SilenceErrors: true}
	cmd := &cobra.Command{Use: name}
	build(cmd)
	root.AddCommand(cmd)
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetArgs(append([]string{name}, args...))
	err := root.Execute()
	return out.String(), err
}

// The commands create accounts and owner's keys on the running server. A printed key opens the API, and a revoked key
// does not.
func TestAccountCommands(t *testing.T) {
	s := newServer(t)
	s.start("store memory", "limitkeeper_api")
	at := []string{"--address", s.admin}
	run := func(args ...string) string {
		t.Helper()
		out, err := s.command(append(args, at...)...)
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return out
	}
	status := func(key string) int {
		return s.get("/functions/v1/keys", "Authorization: Bearer "+key, "X-Forwarded-Proto: https").StatusCode
	}

	out := run("create", " Acme / Söhne ", "--json")
	var made map[string]string
	if err := json.Unmarshal([]byte(out), &made); err != nil || len(made) != 3 || made["name"] != "Acme / Söhne" || made["id"] == "" {
		t.Fatalf("got %q (%v), want id, name and key and nothing else", out, err)
	}
	if got := status(made["key"]); got != 200 {
		t.Errorf("got %d with the key, want 200", got)
	}
	if out := run("create", "two"); !strings.Contains(out, "lk_") || !strings.Contains(out, "acct_") {
		t.Errorf("got %q, want id and key", out)
	}

	out = run("key", "create", "Acme / Söhne", "--name", "laptop", "--json")
	var key ownerKeyView
	if err := json.Unmarshal([]byte(out), &key); err != nil || !core.WellFormedOwnerSecret(key.Key) || key.Name != "laptop" {
		t.Fatalf("got %q (%v)", out, err)
	}
	if got := status(key.Key); got != 200 {
		t.Errorf("got %d with the second key, want 200", got)
	}
	run("key", "revoke", "Acme / Söhne", key.ID)
	if got := status(key.Key); got != 401 {
		t.Errorf("got %d with the revoked key, want 401", got)
	}
	if got := status(made["key"]); got != 200 {
		t.Errorf("got %d with the key that was not revoked, want 200", got)
	}

	out = run("list")
	if lines := strings.Split(strings.TrimSpace(out), "\n"); len(lines) != 3 || !strings.Contains(lines[1], "Acme / Söhne") || !strings.Contains(lines[2], "two") {
		t.Errorf("got %q, want two accounts in the order of their creation", out)
	}
	out = run("key", "list", "Acme / Söhne")
	if lines := strings.Split(strings.TrimSpace(out), "\n"); len(lines) != 3 || !strings.Contains(lines[1], "default") || !strings.Contains(lines[2], "laptop") {
		t.Errorf("got %q, want two keys", out)
	}
	var keys []ownerKeyView
	if err := json.Unmarshal([]byte(run("key", "list", "Acme / Söhne", "--json")), &keys); err != nil || len(keys) != 2 || keys[0].RevokedAt != nil || keys[1].RevokedAt == nil {
		t.Errorf("got %+v (%v), want the second revoked", keys, err)
	}
	for _, k := range keys {
		if k.Key != "" {
			t.Errorf("a list shows a key")
		}
	}
}

// An error of a command is one line that names the account, key or argument.
func TestAccountCommandErrors(t *testing.T) {
	s := newServer(t)
	s.start("store memory", "limitkeeper_api")
	s.tenant("acme", 1)
	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"the name is taken", []string{"create", "acme"}, `creating account "acme": an account with this name exists already`},
		{"the name is empty", []string{"create", " "}, `name is required`},
		{"the name is too long", []string{"create", strings.Repeat("x", 256)}, `at most 255 characters`},
		{"no such account", []string{"key", "list", "nope"}, `listing the keys of account "nope": account not found`},
		{"no such account to make a key", []string{"key", "create", "nope"}, `account not found`},
		{"no such key", []string{"key", "revoke", "acme", "okey_nope"}, `revoking key okey_nope of account "acme": owner's key not found`},
		{"too few arguments", []string{"create"}, "wrong number of arguments; usage: limitkeeper account create NAME"},
		{"too many arguments", []string{"list", "x"}, "wrong number of arguments; usage: limitkeeper account list"},
		{"no such command", []string{"frob"}, `unknown command "frob"`},
		{"no such key command", []string{"key", "frob"}, `unknown command "frob"`},
		{"no server", []string{"list", "--address", "localhost:" + freePort(t)}, "no server answers at the admin endpoint localhost:"},
		{"no such config", []string{"list", "--config", "/does/not/exist"}, "finding the admin endpoint"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			args := tc.args
			if !strings.Contains(strings.Join(args, " "), "--") && len(args) > 0 && !strings.Contains(tc.want, "unknown command") {
				args = append(args, "--address", s.admin)
			}
			out, err := s.command(args...)
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(strings.TrimSpace(err.Error()), "\n") {
				t.Errorf("got %v, want one line with %q", err, tc.want)
			}
			if out != "" {
				t.Errorf("printed %q beside the error", out)
			}
		})
	}
}

// A command without a subcommand prints its subcommands.
func TestAccountCommandHelp(t *testing.T) {
	s := &server{t: t}
	for _, args := range [][]string{{}, {"key"}} {
		out, err := s.command(args...)
		if err != nil || !strings.Contains(out, "create") || !strings.Contains(out, "list") {
			t.Errorf("%v: got %q (%v)", args, out, err)
		}
	}
}

// The admin endpoint refuses unknown paths, methods and bodies. Without limitkeeper in the config it has no accounts.
func TestAdminAPI(t *testing.T) {
	s := newServer(t)
	s.start("store memory", "limitkeeper_api")
	ask := func(method, path, body string) reply {
		t.Helper()
		r, err := http.NewRequest(method, "http://"+s.admin+path, strings.NewReader(body))
		s.must(err)
		return s.do(r)
	}
	for _, tc := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", "/limitkeeper/", "", 404},
		{"GET", "/limitkeeper/frob", "", 404},
		{"PUT", "/limitkeeper/accounts", "", 405},
		{"POST", "/limitkeeper/accounts", "", 400},
		{"POST", "/limitkeeper/accounts", "{", 400},
		{"POST", "/limitkeeper/accounts", `{"name": 7}`, 400},
		{"POST", "/limitkeeper/accounts", `{"name": "` + strings.Repeat("x", 100_000) + `"}`, 400},
		{"POST", "/limitkeeper/accounts", `{"name": "a"}`, 200},
		{"POST", "/limitkeeper/accounts", `{"name": "a"}`, 409},
		{"GET", "/limitkeeper/keys", "", 404},
		{"GET", "/limitkeeper/keys?account=a", "", 200},
		{"DELETE", "/limitkeeper/keys?account=a", "", 404},
	} {
		got := ask(tc.method, tc.path, tc.body)
		if got.StatusCode != tc.status {
			t.Errorf("%s %s %.20s: got %d %s, want %d", tc.method, tc.path, tc.body, got.StatusCode, got.body, tc.status)
		}
		if tc.status == 200 && got.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s %s: may be stored", tc.method, tc.path)
		}
	}
	s.must(s.load("{\nadmin " + s.admin + "\npersist_config off\n}\n"))
	if got := ask("GET", "/limitkeeper/accounts", ""); got.StatusCode != 404 || !strings.Contains(got.body, "does not use limitkeeper") {
		t.Errorf("without limitkeeper: got %d %s", got.StatusCode, got.body)
	}
}

// protect accepts the usual forms of addresses and upstreams, and refuses other forms.
func TestProtectAddresses(t *testing.T) {
	for in, want := range map[string]string{
		"localhost:9000": "localhost:9000", ":9000": "localhost:9000", "http://a": "a:80", "https://a/": "a:443",
		"https://a:8": "a:8", "[::1]:9": "[::1]:9",
		"": "", "a": "", "ftp://a:1": "", "http://a/b": "", "a:1?x": "", "u@a:1": "", "http://": "",
	} {
		up, err := parseUpstream(in)
		if (err == nil) != (want != "") || err == nil && up.dial != want {
			t.Errorf("upstream %q: got %+v (%v), want %q", in, up, err, want)
		}
	}
	for in, want := range map[string][2]string{
		":8443":           {":8443", "https://localhost:8443"},
		"localhost:8443":  {"localhost:8443", "https://localhost:8443"},
		"127.0.0.1:8443":  {"127.0.0.1:8443", "https://127.0.0.1:8443"},
		"0.0.0.0:8443":    {"0.0.0.0:8443", "https://localhost:8443"},
		"[::1]:443":       {"[::1]:443", "https://[::1]"},
		"api.example:443": {":443", "https://api.example"},
	} {
		a, err := parseEndpoint("--from", in)
		if err != nil || a.listen() != want[0] || a.url() != want[1] {
			t.Errorf("endpoint %q: got %q, %q (%v), want %q", in, a.listen(), a.url(), err, want)
		}
	}
	for _, in := range []string{"", "8443", ":0", ":x", "a/b:1", "*:1", "{env.X}:1", ":99999"} {
		if a, err := parseEndpoint("--from", in); err == nil || !strings.HasPrefix(err.Error(), "--from: ") {
			t.Errorf("endpoint %q: got %+v (%v), want an error", in, a, err)
		}
	}
	if got, want := shellQuote("a'b c"), `'a'\''b c'`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
