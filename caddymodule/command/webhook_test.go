package command

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// The commands create, test, rotate, disable and delete a webhook on the running server. A receiver verifies the test with the printed secrets.
func TestWebhookCommands(t *testing.T) {
	s := newServer(t)
	s.Start("store memory\nwebhook_allow_private", "limitkeeper_api")
	run := func(args ...string) (string, error) {
		return s.command(append(append([]string{"webhook"}, args...), "--address", s.Admin)...)
	}
	must := func(args ...string) string {
		t.Helper()
		out, err := run(args...)
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return out
	}
	type request struct {
		header http.Header
		body   []byte
	}
	got, status := make(chan request, 10), http.StatusOK
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got <- request{r.Header, body}
		w.WriteHeader(status)
	}))
	defer receiver.Close()
	if _, err := s.command("create", "acme", "--address", s.Admin); err != nil {
		t.Fatal(err)
	}
	var made struct{ ID, Secret string }
	out := must("create", "acme", receiver.URL, "--events", "forecast", "--description", "Billing", "--json")
	if err := json.Unmarshal([]byte(out), &made); err != nil || made.ID == "" {
		t.Fatalf("got %q, %v", out, err)
	}
	verified := func(secrets ...string) {
		t.Helper()
		r := <-got
		for _, secret := range secrets {
			wh, err := standardwebhooks.NewWebhook(secret)
			if err == nil {
				err = wh.Verify(r.body, r.header)
			}
			if err != nil {
				t.Errorf("the test: %v", err)
			}
		}
		if r.header.Get("User-Agent") != "Limitkeeper" || !strings.Contains(string(r.body), `"limitkeeper.test"`) {
			t.Errorf("the test: got %v %s", r.header, r.body)
		}
	}
	if out := must("test", "acme", made.ID); !strings.Contains(out, "answered 200") {
		t.Errorf("got %q", out)
	}
	verified(made.Secret)
	_, rotated, _ := strings.Cut(must("rotate", "acme", made.ID), "Secret ")
	rotated, _, _ = strings.Cut(rotated, "\n")
	must("test", "acme", made.ID)
	verified(made.Secret, rotated)
	status = http.StatusTeapot
	if _, err := run("test", "acme", made.ID); err == nil || !strings.Contains(err.Error(), "the receiver has answered 418") {
		t.Errorf("a test that fails: got %v", err)
	}
	if out := must("list", "acme"); !strings.Contains(out, made.ID) || !strings.Contains(out, "forecast") || !strings.Contains(out, "active") || strings.Contains(out, "whsec_") {
		t.Errorf("got %q", out)
	}
	must("disable", "acme", made.ID)
	if out := must("list", "acme"); !strings.Contains(out, "disabled") {
		t.Errorf("got %q", out)
	}
	must("enable", "acme", made.ID)
	must("delete", "acme", made.ID)
	for _, args := range [][]string{{"delete", "acme", made.ID}, {"test", "acme", made.ID}, {"rotate", "acme", "acme"}, {"create", "acme", rotated}, {"create", "acme", "ftp://example.com/"}} {
		if _, err := run(args...); err == nil || strings.Contains(err.Error(), "whsec_") {
			t.Errorf("%s: got %v, want an error", args[0], err)
		}
	}
}
