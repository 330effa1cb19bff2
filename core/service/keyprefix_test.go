package service_test

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// tenant is an account with a user on a plan, over a store in memory.
type tenant struct {
	*testing.T
	svc *service.Service
	id  string
}

func newTenant(t *testing.T, svc *service.Service, name string) *tenant {
	t.Helper()
	a, _, _, err := svc.CreateAccount(t.Context(), name)
	c := &tenant{t, svc, ""}
	c.ok(err)
	c.id = a.ID
	pl, err := svc.CreatePlan(t.Context(), c.id, core.PlanPatch{Name: new("p"), Limit: core.Some(int64(1000)), Period: new("day")})
	c.ok(err)
	_, err = svc.CreateUser(t.Context(), c.id, core.UserPatch{Name: new("u"), PlanID: core.Some(pl.ID)})
	c.ok(err)
	return c
}

func (c *tenant) ok(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

// setPrefix sets the key prefix of the account.
func (c *tenant) setPrefix(prefix string) *core.Account {
	c.Helper()
	a, err := c.svc.UpdateAccount(c.Context(), c.id, core.AccountPatch{KeyPrefix: &prefix})
	c.ok(err)
	return a
}

// newKey creates a key and returns it with its value.
func (c *tenant) newKey(name string) (*core.Key, string) {
	c.Helper()
	k, secret, err := c.svc.CreateKey(c.Context(), c.id, core.KeyPatch{Name: &name, UserID: new(int64(1))})
	c.ok(err)
	return k, secret
}

// outcome returns the outcome of a request.
func (c *tenant) outcome(secret string) service.Outcome {
	c.Helper()
	d, err := c.svc.Validate(c.Context(), c.id, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 1})
	c.ok(err)
	return d.Outcome
}

// Each bad prefix is refused with a reason.
func TestCheckKeyPrefix(t *testing.T) {
	for _, good := range []string{"lk_user_", "acme_", "acme_live_", "ac2me_", "a_b_c_d_", strings.Repeat("a", 31) + "_", "my_key_", "lkxy_"} {
		if err := core.CheckKeyPrefix(good); err != nil {
			t.Errorf("CheckKeyPrefix(%q): %v", good, err)
		}
	}
	for bad, want := range map[string]string{
		"":                            "1 to 32 characters, and not 0",
		"_":                           "begins with a letter, and not with '_'",
		strings.Repeat("a", 32) + "_": "1 to 32 characters, and not 33",
		"er_":                         "at least 4 letters, as in acme_, and not 2",
		"a1234_b_":                    "at least 4 letters, as in acme_, and not 2",
		"Acme_":                       "and not 'A'",
		"acme-live_":                  "and not '-'",
		"acme é_":                     "and not ' '",
		"é_":                          "and not 'é'",
		"9acme_":                      "begins with a letter, and not with '9'",
		"_acme_":                      "begins with a letter, and not with '_'",
		"acme":                        "ends with _",
		"lk_user":                     "ends with _",
		"lk_users_":                   "does not begin with lk_",
		"lk_user_live_":               "does not begin with lk_",
		"okey_":                       "the end of the id prefix okey_",
		"plan_":                       "the end of the id prefix plan_",
	} {
		err := core.CheckKeyPrefix(bad)
		e, ok := errors.AsType[*core.Error](err)
		if !ok || e.Code != core.CodeValidation || e.Field != "key_prefix" || !strings.Contains(e.Detail, want) {
			t.Errorf("CheckKeyPrefix(%q) = %v, want a validation error with %q", bad, err, want)
		}
	}
}

// The checksum of a key is the same in every version: scanners know it.
func TestKeyChecksum(t *testing.T) {
	for body, want := range map[string]string{ // computed with zlib.crc32 of Python
		"lk_user_abcdefghijklmnopqrstuvwxyz":   "2XI5rD",
		"acme_live_ABCDEFGHIJKLMNOPQRSTUVWXYZ": "1z53z4",
		"acme_live_00000000000000000000000000": "0KQ7oM",
	} {
		if got := secrets.Checksum(body); got != want {
			t.Errorf("checksum of %q: got %s, want %s", body, got, want)
		}
	}
	for _, prefix := range []string{secrets.DefaultKeyPrefix, "acme_live_"} {
		secret := secrets.NewUserSecret(prefix)
		body := secret[:len(secret)-6]
		if !regexp.MustCompile(`^` + prefix + `[0-9A-Za-z]{32}$`).MatchString(secret) {
			t.Errorf("new key %q, want the prefix and 32 letters or digits", secret)
		}
		if want := body + secrets.Checksum(body); secret != want {
			t.Errorf("new key %q, want the checksum of the rest at its end: %q", secret, want)
		}
	}
}

// The documented example and regular expression agree with the code. A failure means that the scanners of others are wrong.
func TestDocumentedKeyForm(t *testing.T) {
	text, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	find := func(pattern string) []string {
		m := regexp.MustCompile(pattern).FindStringSubmatch(string(text))
		if m == nil {
			t.Fatalf("docs/api.md has no text that matches %s", pattern)
		}
		return m[1:]
	}
	example := find("(acme_live_[0-9A-Za-z]{26})([0-9A-Za-z]{6})")
	if want := secrets.Checksum(example[0]); example[1] != want {
		t.Errorf("the checksum of the documented key %s: got %s, want %s", example[0], example[1], want)
	}
	scanner := regexp.MustCompile(find("(?s)```regex\n(.*?)\n```")[0])
	if key := example[0] + example[1]; scanner.FindString(key) != key {
		t.Errorf("the documented expression %s does not match the key %s", scanner, key)
	}
	if s := secrets.NewUserSecret("acme_live_"); scanner.FindString("key="+s+"&") != s {
		t.Errorf("the documented expression %s does not match the new key %s", scanner, s)
	}
}

// New keys have the prefix of the account. All keys with its earlier prefixes go on working, and keys with the prefix of
// another account are malformed.
func TestKeyPrefixOfAccount(t *testing.T) {
	svc := service.New(memstore.New(), service.Config{})
	c, other := newTenant(t, svc, "acme"), newTenant(t, svc, "other")
	other.setPrefix("other_test_")
	values := map[string]string{}
	for _, prefix := range []string{secrets.DefaultKeyPrefix, "acme_test_", "acme_live_", "acme_", secrets.DefaultKeyPrefix} {
		a := c.setPrefix(prefix)
		if got := a.PrefixOfNewKeys(); got != prefix {
			t.Errorf("the account after the change has the prefix %q, want %q", got, prefix)
		}
		k, secret := c.newKey("of " + prefix)
		if !strings.HasPrefix(secret, prefix) || len(secret) != len(prefix)+32 {
			t.Errorf("got the key %q, want the prefix %s and 32 characters", secret, prefix)
		}
		if want := prefix + "…" + secret[len(secret)-4:]; k.Hint != want {
			t.Errorf("got the hint %q, want %q", k.Hint, want)
		}
		values[prefix] = secret
	}
	for prefix, secret := range values {
		if got := c.outcome(secret); got != service.Allowed {
			t.Errorf("a key of the prefix %s: got %s, want %s", prefix, got, service.Allowed)
		}
		want := service.Malformed
		if prefix == secrets.DefaultKeyPrefix {
			want = service.Unknown
		}
		if got := other.outcome(secret); got != want {
			t.Errorf("a key of the prefix %s at another account: got %s, want %s", prefix, got, want)
		}
	}
	k, _ := c.newKey("regenerated")
	c.setPrefix("acme_live_")
	k, secret, err := svc.RegenerateKey(t.Context(), c.id, k.ID, time.Minute)
	c.ok(err)
	if !strings.HasPrefix(secret, "acme_live_") || !strings.HasPrefix(k.Hint, "acme_live_…") {
		t.Errorf("regenerated: got %q with the hint %q, want the prefix acme_live_", secret, k.Hint)
	}
	found, _, err := svc.SearchKeys(t.Context(), c.id, secret, core.KeyFilter{}, core.Page{Number: 1, Size: 10})
	c.ok(err)
	if len(found) != 1 || found[0].ID != k.ID {
		t.Errorf("a search for the value found %d keys, want the key", len(found))
	}
	c.newKey("acme_live_production")
	if found, _, err = svc.SearchKeys(t.Context(), c.id, "acme_live_prod", core.KeyFilter{}, core.Page{Number: 1, Size: 10}); err != nil || len(found) != 1 {
		t.Errorf("a search for a name that begins with the prefix: got %d keys, %v, want 1", len(found), err)
	}
}

// A value with none of the account's prefixes, or without the form of a key, is refused before any look-up. A value without
// a checksum is not.
func TestMalformedBeforeLookup(t *testing.T) {
	store := &shared{Store: memstore.New()}
	c := newTenant(t, service.New(store, service.Config{}), "acme")
	c.setPrefix("acme_live_")
	for secret, want := range map[string]service.Outcome{
		"acme_live_":                               service.Malformed,
		"acme_live":                                service.Malformed,
		"ACME_LIVE_abcdefgh":                       service.Malformed,
		"acme_live_é":                              service.Malformed,
		"acme_live_a.b":                            service.Malformed,
		"acme_live_" + strings.Repeat("a", 247):    service.Malformed,
		"acme_test_abcdefgh":                       service.Malformed,
		"lk_live_abcdefgh":                         service.Malformed,
		"abcdefgh":                                 service.Malformed,
		"acme_live_a":                              service.Unknown,
		"acme_live_aZ09_-=":                        service.Unknown,
		"acme_live_" + strings.Repeat("a", 246):    service.Unknown,
		"lk_user_abcdefghijklmnopqrstuvwxyz000000": service.Unknown,
	} {
		before := store.looks.Load()
		got := c.outcome(secret)
		if looks := store.looks.Load() - before; got != want || (looks != 0) != (want == service.Unknown) {
			t.Errorf("%q: got %s after %d look-ups of a key, want %s", secret, got, looks, want)
		}
	}
}

// A seventeenth prefix is refused, and an earlier one is not.
func TestMaxKeyPrefixes(t *testing.T) {
	c := newTenant(t, service.New(memstore.New(), service.Config{}), "acme")
	for i := range 16 {
		c.setPrefix("many_" + string(rune('a'+i)) + "_")
	}
	patch := core.AccountPatch{KeyPrefix: new("many_q_")}
	_, err := c.svc.UpdateAccount(t.Context(), c.id, patch)
	checked := c.svc.CheckAccountPatch(t.Context(), "acme", patch)
	for _, err := range []error{err, checked} {
		if e, ok := errors.AsType[*core.Error](err); !ok || e.Field != "key_prefix" || !strings.Contains(e.Detail, "at most 16 key prefixes") {
			t.Errorf("a 17th prefix: got %v, want a validation error of key_prefix", err)
		}
	}
	for _, prefix := range []string{"many_a_", secrets.DefaultKeyPrefix} {
		if a := c.setPrefix(prefix); a.PrefixOfNewKeys() != prefix || len(a.KeyPrefixes) != 16 {
			t.Errorf("back to %s: got %q and %d prefixes", prefix, a.KeyPrefix, len(a.KeyPrefixes))
		}
	}
}

// Promise 4: a key with a prefix of an account is masked by its checksum, percent-encoded too, and in the middle of a text. No
// account changes how texts of another are masked: an ordinary word that begins like a prefix stays.
func TestMaskKeyPrefixes(t *testing.T) {
	const body = "mask_live_0123456789abcdefABCDEF0123"
	secret := body + secrets.Checksum(body)
	for text, want := range map[string]string{
		"/x?api_key=" + secret + "&y=1":          "/x?api_key=mask_live_***&y=1",
		secret + secret:                          "mask_live_***mask_live_***",
		"x/1" + secret + "Zz":                    "x/1mask_live_***Zz",
		strings.ReplaceAll(secret, "_", "%5F"):   "mask_live_***",
		strings.ReplaceAll(secret, "m", "%256d"): "mask_live_***",
		"%" + secret + "%":                       "%mask_live_***%",
		"mask_" + secret:                         "mask_mask_live_***",
		"lk_0123456789 " + secret:                "lk_*** mask_live_***",
		secret[:len(secret)-1]:                   secret[:len(secret)-1],
		body + "000000":                          body + "000000",
		"/v1/items_by_customer":                  "/v1/items_by_customer",
		"mask_live_0123456789":                   "mask_live_0123456789",
	} {
		if got := secrets.MaskSecrets(text); got != want {
			t.Errorf("MaskSecrets(%q) = %q, want %q", text, got, want)
		}
		if got := secrets.Sanitize(text, 256); got != want {
			t.Errorf("in the history: got %q, want %q", got, want)
		}
	}
}

// Promise 4: the history never has the key of the request, whatever its form, and the words of an account's prefix stay.
func TestHistoryMasksOwnKey(t *testing.T) {
	svc := service.New(memstore.New(), service.Config{})
	other, c := newTenant(t, svc, "other"), newTenant(t, svc, "acme")
	other.setPrefix("items_by_")
	_, err := svc.UpdateAccount(t.Context(), c.id, core.AccountPatch{AnyKeyForm: new(true)})
	c.ok(err)
	const value = "8f14e45f-ceea-467f"
	d := secrets.DigestOf(value)
	c.ok(svc.Transact(t.Context(), c.id, []secrets.Digest{d}, func(b *service.Transaction) error {
		_, _, err := b.CreateKey(core.KeyPatch{Name: new("imported"), UserID: new(int64(1)), Digest: &d})
		return err
	}))
	r := service.Request{Secret: value, Endpoint: "/v1/items_by_customer?k=" + value + "&l=8f14e45f%2Dceea-467f", Method: "GET", Cost: 1}
	got, err := svc.Validate(t.Context(), c.id, r)
	c.ok(err)
	entries, _, err := svc.UserHistory(t.Context(), c.id, 1, core.Page{Number: 1, Size: 1})
	c.ok(err)
	if want := "/v1/items_by_customer?k=***&l=***"; got.Outcome != service.Allowed || len(entries) != 1 || entries[0].Endpoint != want {
		t.Errorf("got %v and the entries %v, want the endpoint %s", got.Outcome, entries, want)
	}
}

// A text is refused as a request id if it is a key, and not because it begins like one.
func TestHoldsSecret(t *testing.T) {
	key := secrets.NewUserSecret("order_")
	for text, want := range map[string]bool{
		"order_123456": false, "order_" + strings.Repeat("1", 32): false, "order_ 100%": false,
		key: true, "id-" + key + "-1": true, strings.Replace(key, "_", "%5F", 1): true, "lk_user_abcdef": true, "%6ck_user_abcdef": true,
	} {
		if got := secrets.HoldsSecret(text); got != want {
			t.Errorf("HoldsSecret(%q) = %v, want %v", text, got, want)
		}
		if _, err := service.ParseRequestID(text); (err != nil) != want {
			t.Errorf("ParseRequestID(%q): got %v", text, err)
		}
	}
}
