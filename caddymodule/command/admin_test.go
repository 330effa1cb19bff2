package command

import (
	"net/http"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
)

// The admin endpoint refuses unknown paths, methods and bodies. Without limitkeeper in the config it has no accounts.
func TestAdminAPI(t *testing.T) {
	s := newServer(t)
	s.Start("store memory", "limitkeeper_api")
	send := func(method, path, body string) caddytest.Reply {
		t.Helper()
		r, err := http.NewRequest(method, "http://"+s.Admin+path, strings.NewReader(body))
		s.Must(err)
		return s.Do(r)
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
		got := send(tc.method, tc.path, tc.body)
		if got.StatusCode != tc.status {
			t.Errorf("%s %s %.20s: got %d %s, want %d", tc.method, tc.path, tc.body, got.StatusCode, got.Text, tc.status)
		}
		if tc.status == 200 && got.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s %s: may be stored", tc.method, tc.path)
		}
	}
	s.Must(s.Load("{\nadmin " + s.Admin + "\npersist_config off\n}\n"))
	if got := send("GET", "/limitkeeper/accounts", ""); got.StatusCode != 404 || !strings.Contains(got.Text, "does not use limitkeeper") {
		t.Errorf("without limitkeeper: got %d %s", got.StatusCode, got.Text)
	}
}
