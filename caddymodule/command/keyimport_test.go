package command

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// keysExample returns the first CSV example of docs/migration.md.
func keysExample(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/migration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, found := strings.Cut(string(text), "```csv\n")
	example, _, closed := strings.Cut(example, "```")
	if !found || !closed {
		t.Fatal("docs/migration.md has no example")
	}
	return example
}

// newImport starts a server with an account acme that has a plan Pro. file is the name of a file to import.
func newImport(t *testing.T) (s *server, a *core.Account, file string) {
	s = newServer(t)
	s.Start("store badger %dir/store", "limitkeeper_api")
	a, _, _, err := s.Service().CreateAccount(context.Background(), "acme")
	s.Must(err)
	_, err = s.Service().CreatePlan(context.Background(), a.ID, core.PlanPatch{Name: new("Pro"), Limit: core.Some(int64(1000)), Period: new("month")})
	s.Must(err)
	return s, a, filepath.Join(s.Dir, "keys.csv")
}

// The example of docs/migration.md is imported by a running server, and its keys work. Without a server, the same file
// into the same store changes nothing. Bad lines are named, and are not in the log.
func TestImportKeys(t *testing.T) {
	s, a, file := newImport(t)
	write := func(text string) { s.Must(os.WriteFile(file, []byte(text), 0o600)) }
	run := func(args ...string) (string, error) {
		return execute("import", importCommand, append([]string{"--csv", file, "--account", "acme"}, args...)...)
	}

	write("key,plan\n")
	if out, err := run("--address", s.Admin); err != nil || out != "Nothing to do: the file has no keys.\n" {
		t.Errorf("a file without keys: %q, %v", out, err)
	}
	write(keysExample(t))
	for _, c := range []struct{ flag, want string }{{"--dry-run", "Nothing was written"}, {"--json=false", "Imported:\nkeys           3\nusers          2\n"}} {
		if out, err := run("--address", s.Admin, c.flag); err != nil || !strings.HasPrefix(out, c.want) {
			t.Fatalf("%s: %q, %v", c.flag, out, err)
		}
	}
	d, err := s.Service().Validate(context.Background(), a.ID, service.Request{Secret: "acme_live_T1yYQpDk3VbV7s", Endpoint: "/", Method: "GET", Cost: 1})
	if err != nil || d.Outcome != service.Allowed || d.Usage.Used != 413 {
		t.Errorf("a key of the example: %v with %d requests, %v", d.Outcome, d.Usage.Used, err)
	}

	write("key,user_name,plan\nacme_live_abcdefgh,a,Gold\n")
	if _, err := run("--address", s.Admin); err == nil || !strings.Contains(err.Error(), `line 2: plan: the account has no plan "Gold"`) {
		t.Errorf("a bad line: %v", err)
	}
	if strings.Contains(s.Logged(), "Gold") {
		t.Error("the log has a bad line")
	}

	write(keysExample(t))
	store := "badger:" + filepath.Join(s.Dir, "store")
	if _, err := run("--store", store); err == nil {
		t.Error("a store that a server uses was opened")
	}
}
