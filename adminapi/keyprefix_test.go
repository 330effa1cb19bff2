package adminapi_test

import (
	"context"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// Keys with a prefix of the account have the form of the contract, and are validated. A key with the prefix of another
// account is malformed for both kinds of callers, also when it exists.
func TestKeyPrefix(t *testing.T) {
	a := newAPI(t)
	user, plan := a.user("Ann"), a.plan(5)
	_, early := a.key(user, plan)
	acme, err := a.svc.AccountByName(t.Context(), "acme")
	if err == nil {
		_, err = a.svc.UpdateAccount(context.Background(), acme.ID, core.AccountPatch{KeyPrefix: new("wire_live_")})
	}
	if err != nil {
		t.Fatal(err)
	}
	id, secret := a.key(user, plan)
	if !strings.HasPrefix(secret, "wire_live_") {
		t.Errorf("got the key %q, want the prefix wire_live_", secret)
	}
	got := a.do("GET", prefix+"/keys/"+id, nil).want(200).str("hint")
	if want := "wire_live_…" + secret[len(secret)-4:]; got != want {
		t.Errorf("got the hint %q, want %q", got, want)
	}
	other := a.as(a.account("other"))
	for _, c := range []struct {
		name   string
		of     *api
		secret string
		want   core.Code // "" for success
	}{
		{"new key", a, secret, ""},
		{"earlier key", a, early, ""},
		{"unknown key with the prefix", a, secrets.NewUserSecret("wire_live_"), core.CodeAPIKeyNotFound},
		{"unknown key without a checksum", a, "wire_live_x", core.CodeAPIKeyNotFound},
		{"nothing after the prefix", a, "wire_live_", core.CodeInvalidAPIKey},
		{"another prefix", a, secrets.NewUserSecret("wire_test_"), core.CodeInvalidAPIKey},
		{"key of another account", other, secret, core.CodeInvalidAPIKey},
	} {
		body := c.of.in(t).validate(c.secret).at()
		if code, _ := body["code"].(string); body["success"] != (c.want == "") || code != string(c.want) {
			t.Errorf("%s: got %v, want the code %q", c.name, body, c.want)
		}
	}
}
