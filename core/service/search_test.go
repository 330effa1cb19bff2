package service_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// describeMatches returns the matches of a search as text: "user 2 by email", joined by ", ".
func describeMatches(list []service.Match) string {
	var all []string
	for _, m := range list {
		switch {
		case m.Plan != nil:
			all = append(all, fmt.Sprintf("plan %s by %s", m.Plan.Name, m.By))
		case m.Key != nil:
			all = append(all, fmt.Sprintf("key %s of user %d by %s", m.Key.Name, m.User.ID, m.By))
		default:
			all = append(all, fmt.Sprintf("user %d by %s", m.User.ID, m.By))
		}
	}
	return strings.Join(all, ", ")
}

// A search finds a text as people paste it, and nothing of another account.
func TestSearchFindsWhatIsPasted(t *testing.T) {
	c := newThresholds(t, memstore.New())
	pl := c.plan(100)
	u, err := c.svc.CreateUser(t.Context(), c.id, core.UserPatch{Name: new("Ann Example"), PlanID: core.Some(pl.ID), Email: core.Some("Ann@customer.example"), ExternalID: core.Some("cus_4711")})
	c.ok(err)
	k, secret, err := c.svc.CreateKey(t.Context(), c.id, core.KeyPatch{Name: new("Production"), UserID: &u.ID})
	c.ok(err)
	d, err := c.svc.Validate(t.Context(), c.id, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 1, IP: "203.0.113.7", HoldFor: 60e9})
	c.ok(err)
	_, err = c.svc.CreateUser(t.Context(), c.id, core.UserPatch{Name: new("Bob"), ExternalID: core.Some("ann@customer.example")})
	c.ok(err)

	other := newTenant(t, c.svc, "other")
	tail := secret[len(secret)-4:]
	const key = "key Production of user 2 by "
	for text, want := range map[string]string{
		secret:                             key + "value",
		" \"Bearer " + secret + "\"\n":     key + "value",
		"authorization: bearer " + secret:  key + "value",
		"curl -H 'X-Key:" + secret + "' …": key + "value",
		"/?a=b&api_key=" + secret + ".":    key + "value",
		"lk_user_…" + tail:                 key + "hint",
		"lk_user_..." + tail:               key + "hint",
		tail:                               key + "hint",
		"acme_…" + tail:                    "",
		k.ID:                               key + "id",
		pl.ID:                              "plan plan by id",
		"2":                                "user 2 by id",
		"02":                               "",
		d.HoldID:                           key + "id",
		"<ann@CUSTOMER.example>":           "user 2 by email",
		"ann@customer.example":             "user 2 by email, user 3 by external_id",
		"cus_4711":                         "user 2 by external_id",
		"203.0.113.7":                      key + "ip_address",
		"[::ffff:203.0.113.7]:443":         key + "ip_address",
		"exam":                             "user 2 by name",
		"PRODUCT":                          key + "name",
		"lan":                              "plan plan by name",
		"CUS_4711":                         "",
		"203.0.113.8":                      "",
		secret[:len(secret)-1] + "x":       "",
		strings.Repeat("0", 64):            "",
		"99999999999999999999999999999999": "",
	} {
		r, err := c.svc.Search(t.Context(), c.id, text, 10)
		c.ok(err)
		address := strings.Contains(text, "203.0.113.") // the service remembers some of them
		if got := describeMatches(r.Matches); got != want || r.Complete == address {
			t.Errorf("%q: got %q, complete %v, want %q", text, got, r.Complete, want)
		}
		r, err = c.svc.Search(t.Context(), other.id, text, 10)
		c.ok(err)
		if len(r.Matches) > 0 || r.Complete == address {
			t.Errorf("%q in another account: got %s, want nothing", text, describeMatches(r.Matches))
		}
	}
	for _, text := range []string{"", " \n", "\"\"", strings.Repeat("x", service.MaxSearchText+1)} {
		if _, err := c.svc.Search(t.Context(), c.id, text, 10); core.ErrorCode(err) != core.CodeValidation {
			t.Errorf("a text of %d bytes: got %v, want a validation error", len(text), err)
		}
	}
}

// A search reports the number of names that it has compared, 500 of users and of keys. It returns at most limit matches.
func TestSearchIsBounded(t *testing.T) {
	c := newThresholds(t, memstore.New())
	pl := c.plan(100)
	for i := range 501 {
		_, err := c.svc.CreateUser(t.Context(), c.id, core.UserPatch{Name: new(fmt.Sprintf("customer %03d", i)), PlanID: core.Some(pl.ID), ExternalID: core.Some(fmt.Sprint("cus_", i))})
		c.ok(err)
	}
	for text, want := range map[string]string{
		"customer 498": "user 500 by name; false, 502 names",
		"customer 499": "; false, 502 names",
		"cus_500":      "user 502 by external_id; true, 0 names",
		"customer 00":  "user 2 by name, user 3 by name, user 4 by name; false, 502 names",
	} {
		r, err := c.svc.Search(t.Context(), c.id, text, 3)
		c.ok(err)
		if got := fmt.Sprintf("%s; %v, %d names", describeMatches(r.Matches), r.Complete, r.NamesRead); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// SearchHoldsSecret detects the value of a key, also in a longer text, with a prefix of the account, and in the form of an imported key.
func TestSearchHoldsSecret(t *testing.T) {
	c := newThresholds(t, memstore.New())
	_, _, secret := c.customer("ann", c.plan(100), core.KeyPatch{})
	_, err := c.svc.UpdateAccount(t.Context(), c.id, core.AccountPatch{KeyPrefix: new("acme_live_"), AnyKeyForm: new(true)})
	c.ok(err)
	const imported = "8f14e45f-ceea-467f"
	d := secrets.DigestOf(imported)
	c.ok(c.svc.Transact(t.Context(), c.id, []secrets.Digest{d}, func(b *service.Transaction) error {
		_, _, err := b.CreateKey(core.KeyPatch{Name: new("imported"), UserID: new(int64(2)), Digest: &d})
		return err
	}))
	for text, want := range map[string]bool{
		secret: true, "Bearer " + secret: true, "lk_user_guessed": true, "X-API-Key: " + secret: true, "'" + secret + "'": true,
		imported: true, "Token " + imported: true, "https://api.example/?key=" + imported: true, "acme_live_guessed": true, "k=acme_live_guessed": true,
		"lk_user_…wxyz": false, "ann@customer.example": false, "1": false, "cus_4711": false, "key_8hw3nQ5vd2tcX6mbK4rJ": false, "": false, "acme_live_…wxyz": false,
		"8f14e45f-ceea-467e": false,
	} {
		got, err := c.svc.SearchHoldsSecret(t.Context(), c.id, text)
		c.ok(err)
		if got != want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
}
