package command

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/internal/freeport"
)

// What people type wrong, and the message that they read. No message repeats a key.
func TestMessages(t *testing.T) {
	s := newServer(t)
	s.Start("store memory", "limitkeeper_api")
	ten := s.Tenant("default", 10)
	redirects := httptest.NewServer(http.RedirectHandler("https://api.example.com/functions/v1/health", http.StatusPermanentRedirect))
	t.Cleanup(redirects.Close)
	ownCA := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(ownCA.Close)
	config := filepath.Join(t.TempDir(), "a.yaml")
	if err := os.WriteFile(config, []byte("plans: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(t.TempDir(), "missing", "a.zst")
	for _, tt := range []struct {
		name    string
		command func(*cobra.Command)
		args    []string
		want    string
	}{
		{"import", importCommand, []string{"keys.csv"}, "keys.csv is no archive: keys in CSV are imported with --csv, as in limitkeeper import --csv keys.csv --account NAME"},
		{"usage", usageCommand, []string{"adjust", "default", "1", "--delta", "1"}, `--reason is missing: the history shows it`},
		{"usage", usageCommand, []string{"adjust", "default", ten.Secret, "--delta", "1", "--reason", "x"}, "an argument is the secret value of a key: want the id of a key, such as key_"},
		{"usage", usageCommand, []string{"adjust", "default", "sk_live_4eC39HqLyjWDarjtT1zdp7dc", "--delta", "1", "--reason", "x"}, "want the id of a key, such as key_"},
		{"usage", usageCommand, []string{"adjust", "default", "1", "--delta", "1", "--reason", "x", "--request-id", ten.Owner, "--address", s.Admin}, `adjusting the usage of "1": request ID must not be an API key`},
		{"account", accountCommand, []string{"creat", "acme"}, `unknown command "creat" for "limitkeeper account": did you mean create?; it has create,`},
		{"account", accountCommand, []string{"key", "revoke", "default", ten.Owner}, "an argument is the secret value of a key: want the id of an owner's key, such as okey_"},
		{"account", accountCommand, []string{"key", "revoke", "default", "acme-secret-1"}, "want the id of an owner's key, such as okey_"},
		{"account", accountCommand, []string{"key", "regenerate", "default", ten.Owner}, "an argument is the secret value of a key: want the id of an owner's key, such as okey_"},
		{"account", accountCommand, []string{"key", "list", ten.Owner}, "an argument is the secret value of a key: want the name of an account"},
		{"import", importCommand, []string{"--csv", "keys.csv", "--account", ten.Owner, "--address", s.Admin}, "an argument is the secret value of a key: want the name of an account"},
		{"export", exportCommand, []string{"--account", ten.Owner, "--address", s.Admin}, "an argument is the secret value of a key: want the name of an account"},
		{"apply", applyCommand, []string{config, "--account", ten.Owner, "--address", s.Admin}, "an argument is the secret value of a key: want the name of an account"},
		{"backup", backupCommand, nil, "name the file to write: limitkeeper backup /backup/limitkeeper-"},
		{"restore", restoreCommand, nil, "name the backup to restore: limitkeeper restore "},
		{"backup", backupCommand, []string{missing, "--address", s.Admin}, "there is no directory " + filepath.Dir(missing) + ": create it first"},
		{"restore", restoreCommand, []string{missing, "--store", "badger:x"}, missing + ": no such file or directory"},
		{"health", healthCommand, nil, "give one URL that begins with http:// or https://"},
		{"health", healthCommand, []string{"localhost:8081/functions/v1/health"}, "give one URL that begins with http:// or https://"},
		{"health", healthCommand, []string{"http://127.0.0.1:" + freeport.Take(t)}, "connection refused: no server listens on this port"},
		{"health", healthCommand, []string{ownCA.URL}, "ask a port with plain HTTP, or name the file of your CA in SSL_CERT_FILE"},
		{"health", healthCommand, []string{redirects.URL}, redirects.URL + " redirects to https://api.example.com/functions/v1/health: ask a port that answers itself"},
	} {
		_, _, err := runCommand(tt.name, tt.command, tt.args...)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %v: got %v, want %q", tt.name, tt.args, err, tt.want)
			continue
		}
		for _, arg := range tt.args {
			if (secrets.HoldsSecret(arg) || strings.HasPrefix(arg, "sk_")) && strings.Contains(err.Error(), arg) {
				t.Errorf("%s %v: the message repeats the key: %v", tt.name, tt.args, err)
			}
		}
	}
	if log := s.Logged(); strings.Contains(log, ten.Owner) || strings.Contains(log, ten.Secret) || strings.Contains(log, "sk_live_") {
		t.Error("the log of the server has a key")
	}
}
