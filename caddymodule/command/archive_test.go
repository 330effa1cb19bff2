package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/internal/freeport"
	"github.com/limitkeeper/limitkeeper/storage/archive"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
	"github.com/limitkeeper/limitkeeper/storage/storetest"
)

// runMigrate runs the command as the binary would.
func runMigrate(args ...string) (stdout, stderr string, err error) {
	return runCommand("migrate", migrateCommand, args...)
}

// runCommand runs a command as the binary would.
func runCommand(name string, command func(*cobra.Command), args ...string) (stdout, stderr string, err error) {
	root := &cobra.Command{Use: "limitkeeper", SilenceUsage: true, SilenceErrors: true}
	cmd := &cobra.Command{Use: name}
	command(cmd)
	root.AddCommand(cmd)
	var out, errs bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&errs)
	root.SetArgs(append([]string{name}, args...))
	err = root.Execute()
	return out.String(), errs.String(), err
}

// openBadger opens a store that the test closes.
func openBadger(t *testing.T, dir string) *badgerstore.Store {
	t.Helper()
	s, err := badgerstore.Open(dir, badgerstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// usedStore makes a store with users and keys, some of which were used, and closes it.
func usedStore(t *testing.T, users int) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "store")
	s := openBadger(t, dir)
	account := &core.Account{ID: "acct_1", Name: "acme", CreatedAt: time.Now()}
	if err := s.CreateAccount(t.Context(), account, &core.OwnerKey{ID: "okey_1", AccountID: "acct_1", Name: "default", Hint: "lk_…wxyz", Digest: secrets.DigestOf("owner"), CreatedAt: time.Now()}); err != nil {
		t.Fatal(err)
	}
	_, keys := storetest.Fill(t, s, "acct_1", users)
	for i, k := range keys {
		for range i % 4 {
			use(t, s, k)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// use makes a request with a key.
func use(t *testing.T, s core.Store, k *core.Key) {
	t.Helper()
	now := time.Now()
	v, err := s.Consume(context.Background(), &core.Consumption{Account: k.AccountID, KeyID: k.ID, UserID: k.UserID, Cost: 1,
		Terms: core.Terms{Limit: 1000}, Retention: core.DefaultRetention, Entry: core.Entry{At: now, KeyID: k.ID, UserID: k.UserID, Cost: 1}})
	if err != nil || !v.Allowed {
		t.Fatalf("Consume: got %t, %v", v.Allowed, err)
	}
}

// The command copies all data to another directory and prints a summary. A second run changes nothing. Standard output
// has the summary only.
func TestMigrateCommand(t *testing.T) {
	from, to := usedStore(t, 21), filepath.Join(t.TempDir(), "new")
	out, errs, err := runMigrate("--from", "badger:"+from, "--to", "badger:"+to)
	if err != nil {
		t.Fatalf("migrate: %v\n%s", err, errs)
	}
	for _, want := range []string{"Copied and compared:\n", "accounts     1\n", "owner's keys 1\n", "users        21\n", "keys         21\n", "events       60\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("summary: got %q, want it to have %q", out, want)
		}
	}
	out, _, err = runMigrate("--from", "badger:"+from, "--to", "badger:"+to)
	if want := "Nothing to do: an earlier run copied everything, and the stores are still equal. Their accounts:\nacme\n"; err != nil || out != want {
		t.Errorf("a second run: got %q, %v, want %q", out, err, want)
	}
	out, errs, err = runMigrate("--from", "badger:"+from, "--to", "badger:"+to, "--json")
	var r archive.Report
	if err != nil || json.Unmarshal([]byte(out), &r) != nil || strings.Count(out, "\n") != 1 {
		t.Fatalf("--json: got %q, %v, want one line of JSON\n%s", out, err, errs)
	}
	if r.Records[archive.KindUser] != 21 || !slices.Equal(r.Accounts, []string{"acme"}) {
		t.Errorf("report: got %+v, want the account acme with 21 users", r)
	}

	a, b := openBadger(t, from), openBadger(t, to)
	defer a.Close()
	defer b.Close()
	for n := range 3 {
		p := core.Page{Number: n + 1, Size: 10}
		want, _, _ := a.Keys(t.Context(), "acct_1", core.KeyFilter{}, p)
		got, _, err := b.Keys(t.Context(), "acct_1", core.KeyFilter{}, p)
		if err != nil || !slices.EqualFunc(want, got, func(x, y *core.Key) bool { return x.ID == y.ID && x.Digest == y.Digest }) {
			t.Errorf("keys on page %d: got %v, %v, want those of the other store", n+1, got, err)
		}
	}
}

// The store of a config is copied, with the history of its history_retention.
func TestMigrateConfig(t *testing.T) {
	from, to := usedStore(t, 9), filepath.Join(t.TempDir(), "new")
	t.Setenv("MIGRATE_TEST_DIR", from)
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return "config:" + file
	}
	caddyfile := write("Caddyfile", "{\n limitkeeper {\n store badger {env.MIGRATE_TEST_DIR}\n history_retention 90d\n }\n}\n")
	config := write("new.json", `{"apps": {"limitkeeper": {"store": {"module": "badger", "dir": "`+to+`"}}}}`)
	if out, errs, err := runMigrate("--from", caddyfile, "--to", config); err != nil || !strings.Contains(out, "users        9\n") {
		t.Errorf("migrate: got %q, %v, want 9 users\n%s", out, err, errs)
	}
	app, err := namedApp(caddyfile, "")
	if err != nil || time.Duration(app.HistoryRetention) != 90*24*time.Hour {
		t.Errorf("retention: got %+v, %v, want that of the config", app, err)
	}
	unknown := write("unknown.json", `{"apps": {"limitkeeper": {"store": {"module": "etcd"}}}}`)
	if _, _, err := runMigrate("--from", unknown, "--to", config); err == nil || !strings.Contains(err.Error(), `--from: there is no store "etcd" in this build`) {
		t.Errorf("a store that is not in this build: got %v, want that it is not", err)
	}
	none := write("none.json", `{"apps": {}}`)
	if _, _, err := runMigrate("--from", none, "--to", config); err == nil || !strings.Contains(err.Error(), "configures no store") {
		t.Errorf("a config without the app: got %v, want that it configures no store", err)
	}
}

// An error is one line that names its cause. The command never creates a store that it should read.
func TestMigrateErrors(t *testing.T) {
	from := usedStore(t, 4)
	empty, missing, to := t.TempDir(), filepath.Join(t.TempDir(), "missing"), filepath.Join(t.TempDir(), "to")
	held := usedStore(t, 2)
	running := openBadger(t, held)
	defer running.Close()
	above, nobody := t.TempDir(), filepath.Join(t.TempDir(), "nobody")
	if err := openBadger(t, filepath.Join(above, "limitkeeper")).Close(); err != nil {
		t.Fatal(err)
	}
	if err := openBadger(t, nobody).Close(); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, from, to string
		more           []string
		want           string
	}{
		{"no source", "", "badger:" + to, nil, "--from: name a store"},
		{"no target", "badger:" + from, "", nil, "--to: name a store"},
		{"an unknown kind", "bolt:" + from, "badger:" + to, nil, `--from: want badger:<dir>, redis:<address> or config:<file>, got "bolt:`},
		{"no directory", "badger:", "badger:" + to, nil, "--from: want badger:<dir>"},
		{"a directory that is not there", "badger:" + missing, "badger:" + to, nil, "--from: there is no store in " + missing},
		{"the directory above a store", "badger:" + above, "badger:" + to, nil, "--from: there is no store in " + above + ": it is in " + filepath.Join(above, "limitkeeper")},
		{"a directory without a store", "badger:" + empty, "badger:" + to, nil, "--from: there is no store in " + empty},
		{"a directory in use", "badger:" + held, "badger:" + to, nil, "--from: open the store in " + held + ": another process is using it"},
		{"a target in use", "badger:" + from, "badger:" + held, nil, "--to: open the store in " + held + ": another process is using it"},
		{"the same store", "badger:" + from, "badger:" + from + "/.", nil, "--from and --to are the same store"},
		{"a store without accounts", "badger:" + nobody, "badger:" + to, nil, "--from: the store has no accounts"},
		{"a store with an account", "badger:" + usedStore(t, 3), "badger:" + from, nil, "the store is not empty: it has the account \"acme\""},
		{"an address without a port", "badger:" + from, "redis:localhost", nil, "--to: "},
		{"no server", "badger:" + from, "redis:127.0.0.1:" + freeport.Take(t), nil, "--to: redis at 127.0.0.1:"},
		{"no config", "config:/does/not/exist.json", "badger:" + to, nil, "--from: "},
		{"a wrong duration", "badger:" + from, "badger:" + to, []string{"--history-retention", "long"}, `--history-retention: want a duration like 30d, got "long"`},
		{"an argument", "badger:" + from, "badger:" + to, []string{"more"}, `unknown command "more"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, _, err := runMigrate(append([]string{"--from", tc.from, "--to", tc.to}, tc.more...)...)
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(strings.TrimSpace(err.Error()), "\n") {
				t.Errorf("got %v, want one line with %q", err, tc.want)
			}
			if out != "" {
				t.Errorf("printed %q beside the error", out)
			}
		})
	}
	if _, err := os.Stat(missing); !os.IsNotExist(err) {
		t.Errorf("the directory that is not there: got %v, want that it is not made", err)
	}
	if files, err := os.ReadDir(empty); err != nil || len(files) > 0 {
		t.Errorf("the directory without a store: got %v, %v, want nothing in it", files, err)
	}
}

// A device is not replaced by a file: as root, that would break the device for all programs.
func TestBackupToDevice(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := runCommand("backup", backupCommand, pipe, "--store", "badger:"+usedStore(t, 1))
	if err == nil || !strings.Contains(err.Error(), "is not a file") {
		t.Errorf("got %v, want an error: it is not a file", err)
	}
	if i, err := os.Lstat(pipe); err != nil || i.Mode().IsRegular() {
		t.Errorf("got %v, %v, want the pipe", i, err)
	}
}

// A command ends with its context while the server works on the answer.
func TestRequestIsInterrupted(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		interrupt()
		<-r.Context().Done()
		close(stopped)
	}))
	defer s.Close()
	c := &adminClient{ctx: ctx, address: s.Listener.Addr().String()}
	if _, err := c.request(http.MethodGet, "/limitkeeper/export", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	s.CloseClientConnections() // as the end of the process does
	<-stopped
}
