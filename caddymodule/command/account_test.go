package command

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/internal/freeport"
)

// command runs a subcommand of account against the server.
func (s *server) command(args ...string) (string, error) {
	s.T.Helper()
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
	s.Start("store memory", "limitkeeper_api")
	at := []string{"--address", s.Admin}
	run := func(args ...string) string {
		t.Helper()
		out, err := s.command(append(args, at...)...)
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return out
	}
	status := func(key string) int {
		return s.Get("/functions/v1/keys", "Authorization: Bearer "+key, "X-Forwarded-Proto: https").StatusCode
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
	if err := json.Unmarshal([]byte(out), &key); err != nil || !secrets.WellFormedOwnerSecret(key.Key) || key.Name != "laptop" {
		t.Fatalf("got %q (%v)", out, err)
	}
	if got := status(key.Key); got != 200 {
		t.Errorf("got %d with the second key, want 200", got)
	}
	out = run("key", "create", "Acme / Söhne", "--role", "validator", "--expires", "36h", "--json")
	var checks ownerKeyView
	if err := json.Unmarshal([]byte(out), &checks); err != nil || checks.Role != core.RoleValidator || checks.ExpiresAt == nil {
		t.Fatalf("got %q (%v), want a validator's key with an expiry", out, err)
	}
	if got := status(checks.Key); got != 403 {
		t.Errorf("got %d with the validator's key, want 403", got)
	}
	if out := run("key", "list", "Acme / Söhne"); !strings.Contains(out, "validator") || !strings.Contains(out, checks.ExpiresAt.Format("2006-01-02")) {
		t.Errorf("got %q, want the role and the expiry in it", out)
	}
	for _, wrong := range [][]string{{"--expires", "soon"}, {"--expires", "-1h"}, {"--expires", "2020-01-01T00:00:00Z"}, {"--role", "admin"}} {
		if out, err := s.command(append(append([]string{"key", "create", "Acme / Söhne"}, wrong...), at...)...); err == nil {
			t.Errorf("%v: got %q, want an error", wrong, out)
		}
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
	if lines := strings.Split(strings.TrimSpace(out), "\n"); len(lines) != 4 || !strings.Contains(lines[1], "default") || !strings.Contains(lines[2], "laptop") {
		t.Errorf("got %q, want three keys", out)
	}
	var keys []ownerKeyView
	if err := json.Unmarshal([]byte(run("key", "list", "Acme / Söhne", "--json")), &keys); err != nil || len(keys) != 3 || keys[0].RevokedAt != nil || keys[1].RevokedAt == nil {
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
	s.Start("store memory", "limitkeeper_api")
	s.Tenant("acme", 1)
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
		{"no server", []string{"list", "--address", "localhost:" + freeport.Take(t)}, "no server answers at the admin endpoint localhost:"},
		{"no such config", []string{"list", "--config", "/does/not/exist"}, "finding the admin endpoint"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			args := tc.args
			if !strings.Contains(strings.Join(args, " "), "--") && len(args) > 0 && !strings.Contains(tc.want, "unknown command") {
				args = append(args, "--address", s.Admin)
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
	s := &server{&caddytest.Server{T: t}}
	for _, args := range [][]string{{}, {"key"}} {
		out, err := s.command(args...)
		if err != nil || !strings.Contains(out, "create") || !strings.Contains(out, "list") {
			t.Errorf("%v: got %q (%v)", args, out, err)
		}
	}
}

// The command account set changes the prefix of new keys, and account list shows it.
func TestAccountSet(t *testing.T) {
	s := newServer(t)
	s.Start("store memory", "limitkeeper\nrespond ok")
	ten := s.Tenant("Acme / Söhne", 1000)
	out, err := s.command("set", "Acme / Söhne", "--key-prefix", "cli_live_", "--address", s.Admin)
	if want := "New keys of account Acme / Söhne begin with cli_live_. Earlier keys keep working.\n"; err != nil || out != want {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
	if secret := s.NewKey(ten); !strings.HasPrefix(secret, "cli_live_") {
		t.Errorf("got the key %q, want the prefix cli_live_", secret)
	}
	out, err = s.command("list", "--address", s.Admin)
	if err != nil || !strings.Contains(out, "KEY PREFIX") || !strings.Contains(out, "cli_live_") {
		t.Errorf("list: got %q, %v, want the prefix", out, err)
	}
	out, err = s.command("set", "Acme / Söhne", "--key-prefix", "lk_user_", "--json", "--address", s.Admin)
	if err != nil || !strings.Contains(out, `"key_prefix":"lk_user_"`) {
		t.Errorf("with --json: got %q, %v", out, err)
	}
	for want, args := range map[string][]string{
		`changing account "nope": account not found`:                             {"nope", "--key-prefix", "cli_"},
		`changing account "Acme / Söhne": a key prefix ends with _`:              {"Acme / Söhne", "--key-prefix", "cli"},
		`nothing to set: name a prefix of new keys with --key-prefix`:            {"Acme / Söhne"},
		`wrong number of arguments; usage: limitkeeper account set NAME [flags]`: {"--key-prefix", "cli_"},
	} {
		out, err := s.command(append([]string{"set", "--address", s.Admin}, args...)...)
		if err == nil || !strings.HasPrefix(err.Error(), want) || out != "" {
			t.Errorf("set %v: got %q, %v, want the error %s", args, out, err, want)
		}
	}
}
