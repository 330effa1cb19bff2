package command

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// answered runs a subcommand of account with an answer on its standard input. It returns both outputs.
func (s *server) answered(answer string, args ...string) (out, asked string, err error) {
	s.T.Helper()
	root := &cobra.Command{Use: "limitkeeper", SilenceUsage: true, SilenceErrors: true}
	cmd := &cobra.Command{Use: "account"}
	accountCommand(cmd)
	root.AddCommand(cmd)
	var stdout, stderr bytes.Buffer
	root.SetIn(strings.NewReader(answer))
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	root.SetArgs(append(append([]string{"account"}, args...), "--address", s.Admin))
	err = root.Execute()
	return stdout.String(), stderr.String(), err
}

// listed returns the line of account list with a text, "" for none.
func (s *server) listed(text string) string {
	s.T.Helper()
	out, err := s.command("list", "--address", s.Admin)
	s.Must(err)
	for line := range strings.Lines(out) {
		if strings.Contains(line, text) {
			return line
		}
	}
	return ""
}

// An account is renamed, disabled and enabled from the command line. The commands say what the configuration needs.
func TestAccountStateCommands(t *testing.T) {
	s := newServer(t)
	s.Start("store memory", "limitkeeper {\naccount acme\n}\nrespond ok")
	ten := s.Tenant("acme", 1000)
	s.Tenant("other", 1000)
	run := func(want string, args ...string) {
		t.Helper()
		out, err := s.command(append(args, "--address", s.Admin)...)
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%v: got %q, %v, want %q", args, out, err, want)
		}
	}
	refused := func(want string, args ...string) {
		t.Helper()
		out, err := s.command(append(args, "--address", s.Admin)...)
		if err == nil || !strings.Contains(err.Error(), want) || out != "" {
			t.Errorf("%v: got %q, %v, want the error %q", args, out, err, want)
		}
	}
	run("Account acme is disabled: ", "disable", "acme")
	run("these refuse its keys:\n  account \"acme\" of the directive limitkeeper\n", "disable", "acme")
	if line := s.listed("acme"); !strings.Contains(line, " disabled ") {
		t.Errorf("list: got %q, want disabled", line)
	}
	refused(`account not found: the account "acme" is disabled: limitkeeper account enable brings it back`, "key", "create", "acme")
	run("Account acme is enabled.\n", "enable", "acme")
	if got := s.Get("/", "X-API-Key: "+ten.Secret); got.StatusCode != 200 {
		t.Errorf("an enabled account: got %d", got.StatusCode)
	}
	run("Account acme is now acme 2 (", "rename", "acme", " acme 2 ")
	refused(`renaming account "acme": account not found: the account "acme" has been renamed to "acme 2"`, "rename", "acme", "new")
	refused(`an account with this name exists already`, "rename", "acme 2", "other")
	refused(`name is required`, "rename", "acme 2", " ")
	refused(`account not found`, "disable", "nobody")
	refused("wrong number of arguments; usage: limitkeeper account rename NAME NEW-NAME", "rename", "acme 2")
}

// An account is deleted after its name was typed, or with --yes. The list shows it until everything is removed.
func TestAccountDelete(t *testing.T) {
	s := newServer(t)
	s.Start("store memory", "limitkeeper {\naccount acme\n}\nrespond ok")
	s.Tenant("acme", 1000)
	s.Tenant("Beta / Söhne", 1000)
	for _, answer := range []string{"", "\n", "beta / söhne\n", "y\n", strings.Repeat("x", 1<<20)} {
		out, asked, err := s.answered(answer, "delete", "Beta / Söhne")
		if err == nil || !strings.Contains(err.Error(), "nothing was deleted") || out != "" || !strings.Contains(asked, "Type its name: ") {
			t.Errorf("the answer %.20q: got %q, %q, %v, want a refusal", answer, out, asked, err)
		}
	}
	if !s.Exists("Beta / Söhne") {
		t.Fatal("the account was deleted without its name")
	}
	out, _, err := s.answered("Beta / Söhne\n", "delete", "Beta / Söhne")
	if err != nil || !strings.HasPrefix(out, "Account Beta / Söhne (acct_") || !strings.Contains(out, "is being deleted") {
		t.Errorf("got %q, %v", out, err)
	}
	if s.Exists("Beta / Söhne") {
		t.Error("the account exists")
	}
	if line := s.listed("Beta"); line != "" && !strings.Contains(line, "deleting, 2 keys and users left") {
		t.Errorf("list: got %q, want how much is left", line)
	}
	s.Must(s.Service().PurgeAccounts(t.Context(), func(service.Purge) {}))
	if line := s.listed("Beta"); line != "" {
		t.Errorf("list after everything was removed: got %q", line)
	}

	out, asked, err := s.answered("", "delete", "acme", "--yes")
	if want := `the running configuration names the account: remove account "acme" of the directive limitkeeper and reload`; err == nil || !strings.Contains(err.Error(), want) || asked != "" || out != "" {
		t.Errorf("an account that the configuration names: got %q, %q, %v, want the error %q", out, asked, err, want)
	}
	_, err = s.command("rename", "acme", "gone", "--address", s.Admin)
	s.Must(err)
	if _, _, err = s.answered("", "delete", "gone", "--yes"); err == nil || !strings.Contains(err.Error(), `account "acme" of the directive`) {
		t.Errorf("the gateway still serves a renamed account: got %v, want a refusal", err)
	}
	s.Must(s.Load(s.Config("store memory", caddytest.Both("respond ok"))))
	out, _, err = s.answered("", "delete", "gone", "--yes", "--json")
	var view accountStateView
	if err != nil || json.Unmarshal([]byte(out), &view) != nil || view.Status != "deleting" {
		t.Errorf("with --json: got %q, %v", out, err)
	}
	if _, _, err = s.answered("", "delete", "gone", "--yes"); err == nil || !strings.Contains(err.Error(), `deleting account "gone": account not found`) {
		t.Errorf("again: got %v", err)
	}
}
