package caddymodule

import (
	"encoding/base64"
	"fmt"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"github.com/limitkeeper/limitkeeper/core"
)

// basicHash returns a hash of the password of the users of basic_auth.
func basicHash(t *testing.T) string {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	return string(hash)
}

// basicField returns the credentials of a user of basic_auth.
func basicField(user string) string {
	return base64.StdEncoding.EncodeToString([]byte(user + ":secret"))
}

// Behind an authentication module of Caddy, the gateway counts on the user with its id as external id, and makes that user with the plan. A disabled
// user is refused, and so are an unknown caller without a plan, a caller without an id, and one whose user has no plan.
func TestIdentify(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	site := func(options string) string {
		return "route {\nbasic_auth {\nann " + basicHash(t) + "\nbob " + basicHash(t) + "\n}\nlimitkeeper {\n" + options + "\n}\n" + up.proxy() +
			" {\nheader_up X-Seen \"{http.limitkeeper.user_id} {http.limitkeeper.user_name} {http.limitkeeper.plan_name} {http.limitkeeper.metadata.tier} {http.limitkeeper.key_id}|{http.auth.user.id}\"\n}\n}"
	}
	s.Start("store memory", site("identify {http.auth.user.id} plan Basic"))
	ten := s.Tenant("default", 10)
	as := func(name string) (int, string, string) {
		t.Helper()
		got := s.Get("/x", "Authorization: Basic "+basicField(name))
		return got.StatusCode, got.Text, got.Header.Get("X-RateLimit-Remaining")
	}
	if status, text, _ := as("ann"); status != 401 || !strings.Contains(text, "unknown") {
		t.Errorf("without the plan in the account: got %d %s, want 401", status, text)
	}
	pl, err := s.Service().CreatePlan(t.Context(), ten.Account, core.PlanPatch{Name: new("Basic"), Limit: core.Some[int64](20), Period: new("day")})
	s.Must(err)
	var wg sync.WaitGroup
	for range 8 { // only one makes the user
		wg.Go(func() {
			if status, text, _ := as("ann"); status != 200 {
				t.Errorf("got %d %s", status, text)
			}
		})
	}
	wg.Wait()
	if _, _, left := as("ann"); left != "11" {
		t.Errorf("after 9 requests %s of 20 are left, want 11", left)
	}
	users, n, err := s.Service().Users(t.Context(), ten.Account, core.UserFilter{ExternalID: "ann"}, core.Page{Number: 1, Size: 9})
	s.Must(err)
	if n != 1 || users[0].PlanID != pl.ID || users[0].Name != "ann" {
		t.Fatalf("got %d users %+v, want one with the plan", n, users)
	}
	if got, want := up.last.Load().Header.Get("X-Seen"), fmt.Sprintf("%d ann Basic  |ann", users[0].ID); got != want {
		t.Errorf("the upstream saw %q, want %q", got, want)
	}
	if _, total, err := s.Service().UserHistory(t.Context(), ten.Account, users[0].ID, core.Page{Number: 1, Size: 1}); err != nil || total != 9 {
		t.Errorf("the history has %d entries, want 9: %v", total, err)
	}
	change := func(p core.UserPatch, want int, says string) {
		t.Helper()
		_, err := s.Service().UpdateUser(t.Context(), ten.Account, users[0].ID, p)
		s.Must(err)
		if status, text, _ := as("ann"); status != want || !strings.Contains(text, says) {
			t.Errorf("after %+v: got %d %s, want %d and %q", p, status, text, want, says)
		}
	}
	change(core.UserPatch{Disabled: new(true)}, 403, "API_KEY_DISABLED")
	change(core.UserPatch{Disabled: new(false)}, 200, "")
	change(core.UserPatch{Overrides: core.Some([]core.Override{{Meter: "requests", Max: 5, Period: core.Day}})}, 429, `"of":"user"`)
	change(core.UserPatch{PlanID: core.Null[string]()}, 403, "has no plan")
	change(core.UserPatch{ExternalID: core.Some("other")}, 200, "") // another ann is made
	s.Must(s.Service().DeleteUser(t.Context(), ten.Account, users[0].ID))
	if got := s.Get("/x"); got.StatusCode != 401 {
		t.Errorf("without a password: got %d, want 401", got.StatusCode)
	}

	s.Must(s.Load(s.Config("store memory", site("identify {http.auth.user.id}"))))
	if status, text, _ := as("bob"); status != 401 || !strings.Contains(text, "The caller is unknown") {
		t.Errorf("an unknown caller: got %d %s, want 401", status, text)
	}
	s.Must(s.Load(s.Config("store memory", site("identify {http.vars.nobody}"))))
	if status, text, _ := as("ann"); status != 401 || !strings.Contains(text, "not authenticated") {
		t.Errorf("without an id: got %d %s, want 401", status, text)
	}
	s.Must(s.Load(s.Config("store memory", site("identify "+ten.Secret+"{http.vars.nobody} plan Basic"))))
	if status, _, _ := as("ann"); status != 401 || strings.Contains(s.Logged(), ten.Secret+`"`) && strings.Contains(s.Logged(), "external") {
		t.Errorf("an id that is a key: got %d, want 401", status)
	}
}
