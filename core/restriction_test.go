package core_test

import (
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// allows reports whether a key with restrictions allows a request.
func allows(t *testing.T, r core.Restrictions, n core.Need) bool {
	t.Helper()
	k := core.Key{Name: "key", Status: core.KeyActive, Hint: "lk_user_…wxyz", Restrictions: &r}
	if err := k.Check(); err != nil {
		t.Fatalf("restrictions %+v: %v", r, err)
	}
	e := r.Compiled().Refusal(&n, nil)
	if e != nil && (e.Code != core.CodeKeyRestricted || e.Reason != core.ReasonRestricted || e.Message == "" || e.Field == "") {
		t.Errorf("refusal: got %+v, want a code, a reason, a sentence and a field", e)
	}
	return e == nil
}

// TestAllowedEndpoints: a key reaches the endpoints of its patterns, and no other by another spelling of the path.
func TestAllowedEndpoints(t *testing.T) {
	for _, test := range []struct {
		patterns, method, path string
		want                   bool
	}{
		{"GET /v1/items*", "GET", "/v1/items", true},
		{"GET /v1/items*", "GET", "/v1/items/7?admin=1", true},
		{"GET /v1/items*", "HEAD", "/v1/items/7", false},
		{"GET /v1/items*", "get", "/v1/items/7", false},
		{"GET /v1/items*", "GET,HEAD", "/v1/items/7", false},
		{"GET,HEAD /v1/items*", "HEAD", "/v1/items/7", true},
		{"/v1/items", "DELETE", "/v1/items", true},
		{"/v1/items", "GET", "/v1/items/", false},
		{"/v1/items/", "GET", "/v1/items", false},
		{"/v1/items", "GET", "/v1///items", true},
		{"/v1/items", "GET", "//v1/items", false},
		{"/v1/a*b/*c", "GET", "/v1/axbxb/c", true},
		{"/v1/a*b/*c", "GET", "/v1/axbx/c", false},
		{"/V1/Items", "GET", "/v1/iTEMS", true},
		{"/v1/items", "GET", "/v1/%69tem%53", true},
		{"/v1/*/name", "GET", "/v1/7/name", true},
		{"/v1/*/name", "GET", "/v1/7/8/name", false},
		{"*.json", "GET", "/v1/7/8.json", true},
		{"*items*", "GET", "/v1/items/8", true},
		{"*", "GET", "/anything", true},
		{"*", "POST", "chat.completions", true},
		{"/v1/items* | /v2/*", "GET", "/v2/x", true},

		// Paths that another program could read as /v1/admin.
		{"/v1/items/*", "GET", "/v1/items/../admin", false},
		{"/v1/items/*", "GET", "/v1/items/%2e%2e/admin", false},
		{"/v1/items/*", "GET", "/v1/items/%2E./admin", false},
		{"/v1/items/*", "GET", "/v1/items/%252e%252e/admin", false},
		{"/v1/items/*", "GET", "/v1/items/..%2fadmin", false},
		{"/v1/items/*", "GET", "/v1/items%2F..%2Fadmin", false},
		{"/v1/items/*", "GET", "/v1/admin/../items/7", false},
		{"/v1/items/*", "GET", "/v1/admin%2f..%2fitems/7", false},
		{"/v1/items/*", "GET", `/v1/items/..\admin`, false},
		{"/v1/items/*", "GET", "/v1/items/..%5cadmin", false},
		{"/v1/items/*", "GET", "/v1/items/..;/admin", false},
		{"/v1/items/*", "GET", "/v1/items/..;a=b/admin", false},
		{"/v1/items/*", "GET", "/v1/items/7%3ba", false},
		{"/v1/items/*", "GET", "/v1/items/.", false},
		{"/v1/items/*", "GET", "/v1/items/7%00", false},
		{"/v1/items/*", "GET", "/v1/items/7%0d%0a", false},
		{"/v1/items/*", "GET", "/v1/items/%ff", false},
		{"/v1/items/*", "GET", "/v1/items/%zz", false},
		{"/v1/items/*", "GET", "/v1/items/" + strings.Repeat("a", 2048), false},
		{"*items*", "GET", "/v1/admin?items", false},
		{"*.json", "GET", "/v1/admin%3F.json", false},
		{"*.json", "GET", "/v1/admin%23.json", false},
		{"*items*", "GET", "/v1/admin#items", false},
		{"/v1/items/*", "GET", "", false},
	} {
		r := core.Restrictions{Endpoints: strings.Split(test.patterns, " | ")}
		if got := allows(t, r, core.Need{Method: test.method, Path: test.path}); got != test.want {
			t.Errorf("patterns %q, request %s %.80q: got allowed %v, want %v", test.patterns, test.method, test.path, got, test.want)
		}
	}
}

// TestAllowedIPs: a key is used from its addresses only, in whatever form they are written.
func TestAllowedIPs(t *testing.T) {
	for _, test := range []struct {
		allowed, ip string
		want        bool
	}{
		{"192.0.2.7", "192.0.2.7", true},
		{"192.0.2.7", "::ffff:192.0.2.7", true},
		{"192.0.2.7", "192.0.2.70", false},
		{"192.0.2.0/24 2001:db8::/32", "192.0.2.255", true},
		{"192.0.2.0/24 2001:db8::/32", "2001:db8:1::1", true},
		{"192.0.2.0/24 2001:db8::/32", "2001:DB8:0001:0:0:0:0:1", true},
		{"192.0.2.0/24", "192.0.3.1", false},
		{"192.0.2.0/24", "192.000.002.001", false},
		{"192.0.2.0/24", "192.0.2.1:443", false},
		{"192.0.2.0/24", "192.0.2.1, 203.0.113.5", false},
		{"192.0.2.0/24", "3221225985", false},
		{"0.0.0.0/0", "::1", false},
		{"fe80::/10", "fe80::1%eth0", false},
		{"fe80::/10", "fe80::1", true},
		{"::/0", "", false},
		{"::/0", "localhost", false},
	} {
		if got := allows(t, core.Restrictions{IPs: strings.Fields(test.allowed)}, core.Need{IP: test.ip}); got != test.want {
			t.Errorf("allowed %q, address %q: got %v, want %v", test.allowed, test.ip, got, test.want)
		}
	}
}

// TestScopes: a key with scopes has no other scope, and a key without scopes has every scope. The features are those of the plan.
func TestScopes(t *testing.T) {
	for _, test := range []struct {
		scopes, needs []string
		want          bool
	}{
		{nil, []string{"write"}, true},
		{[]string{}, nil, true},
		{[]string{}, []string{"read"}, false},
		{[]string{"read", "write"}, []string{"write"}, true},
		{[]string{"read"}, []string{"read", "write"}, false},
		{[]string{"read:all"}, []string{"read"}, false},
	} {
		if got := allows(t, core.Restrictions{Scopes: test.scopes}, core.Need{Scopes: test.needs}); got != test.want {
			t.Errorf("scopes %q, request needs %q: got %v, want %v", test.scopes, test.needs, got, test.want)
		}
	}
	var none *core.Restrictions
	if e := none.Refusal(&core.Need{Features: []string{"reports"}}, []string{"search", "reports"}); e != nil {
		t.Errorf("a plan with the feature: got %v", e)
	}
	if e := none.Refusal(&core.Need{Features: []string{"reports"}}, []string{"search"}); e == nil || e.Field != "features" {
		t.Errorf("a plan without the feature: got %v, want a refusal by features", e)
	}
}

// TestInvalidRestrictions: each invalid restriction is refused by a text that names the member and the fault.
func TestInvalidRestrictions(t *testing.T) {
	texts := func(n int, text string) []string { return strings.Split(strings.Repeat(text+" ", n-1)+text, " ") }
	for _, test := range []struct {
		member string
		values []string
		want   string
	}{
		{"scopes", []string{"Write"}, "1 to 64 of a-z"},
		{"scopes", []string{"a", ""}, "1 to 64 of a-z"},
		{"scopes", []string{strings.Repeat("a", 65)}, "1 to 64 of a-z"},
		{"scopes", texts(33, "a"), "at most 32"},
		{"allowed_endpoints", []string{}, "null to allow all"},
		{"allowed_endpoints", texts(65, "/a"), "1 to 64"},
		{"allowed_endpoints", []string{"/a", "v1/items"}, "[1] must have a path that begins with / or *"},
		{"allowed_endpoints", []string{"get /v1"}, "methods in upper case"},
		{"allowed_endpoints", []string{"GET, /v1"}, "methods in upper case"},
		{"allowed_endpoints", []string{"GET  /v1"}, "path that begins with / or *"},
		{"allowed_endpoints", []string{"/v1/../v2"}, "plain path"},
		{"allowed_endpoints", []string{"/v1/%2e"}, "plain path"},
		{"allowed_endpoints", []string{"/v1//a"}, "plain path"},
		{"allowed_endpoints", []string{"/v1?a=b"}, "plain path"},
		{"allowed_endpoints", []string{"/v1/{id}"}, "plain path"},
		{"allowed_endpoints", []string{"/v1/[ab]"}, "plain path"},
		{"allowed_endpoints", []string{"/v1/a b"}, "methods in upper case"},
		{"allowed_endpoints", texts(64, "/"+strings.Repeat("a", 80)), "at most 4 KiB"},
		{"allowed_ips", []string{}, "null to allow all"},
		{"allowed_ips", []string{"localhost"}, "such as 192.0.2.7"},
		{"allowed_ips", []string{"192.0.2.7/24"}, "write 192.0.2.0/24"},
		{"allowed_ips", []string{"::ffff:192.0.2.7"}, "such as 192.0.2.7"},
		{"allowed_ips", []string{"fe80::1%eth0"}, "such as 192.0.2.7"},
		{"allowed_ips", []string{"192.0.2.7:80"}, "such as 192.0.2.7"},
	} {
		var p core.KeyPatch
		for i := range core.KeyMembers.List {
			if m := &core.KeyMembers.List[i]; m.Name == test.member {
				m.Set(&p, test.values)
			}
		}
		err := p.Check(time.Now())
		if e, ok := err.(*core.Error); !ok || e.Field != test.member || !strings.Contains(e.Detail, test.want) {
			t.Errorf("%s %.60q: got %v, want an error of the member with %q", test.member, test.values, err, test.want)
		}
	}
}

// TestRestrictionsAreNotShared: a change of one copy of a key leaves the others alone, and null for all lists restricts nothing.
func TestRestrictionsAreNotShared(t *testing.T) {
	k := core.Key{Name: "key", Status: core.KeyActive}
	if err := (core.KeyPatch{Scopes: core.Some([]string{"read"}), AllowedIPs: core.Some([]string{"192.0.2.7"})}).Apply(&k, time.Now()); err != nil {
		t.Fatal(err)
	}
	other := k
	if err := (core.KeyPatch{Scopes: core.Null[[]string](), AllowedIPs: core.Null[[]string]()}).Apply(&other, time.Now()); err != nil {
		t.Fatal(err)
	}
	if other.Restrictions != nil {
		t.Errorf("restrictions after null: got %+v, want none", other.Restrictions)
	}
	if got := k.Restrictions; got == nil || len(got.Scopes) != 1 || len(got.IPs) != 1 {
		t.Errorf("restrictions of the first copy: got %+v, want both lists", got)
	}
}
