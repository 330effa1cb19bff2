package caddymodule

import (
	"cmp"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/adminapi/dashboard"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// allocated returns the bytes that f allocates.
func allocated(f func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}

// One client cannot exhaust the CPU for the others: removing dashboard cookies costs a
// few copies of the header, however many are in it. A copy for each session would
// allocate 2.4 GB for this header of 420 KB.
func TestDropDashboardCookiesIsLinear(t *testing.T) {
	line := strings.Repeat(dashboard.CookieName+"=lk_session_a-1; a=b; ", 5000)
	h := http.Header{"Cookie": {line, line}}
	if n, most := allocated(func() { dropDashboardCookies(h) }), 10*len(line); n > most {
		t.Errorf("allocated %d bytes for a header of %d, want at most %d", n, 2*len(line), most)
	}
	if want := strings.TrimPrefix(strings.Repeat(" a=b;", 5000)+" ", " "); !slices.Equal(h["Cookie"], []string{want, want}) {
		t.Errorf("got %.40q…, want the other cookies as they came", h["Cookie"])
	}
}

// FuzzStripQuery checks the property of stripping: the pairs without a key stay, byte for byte
// and in their order.
func FuzzStripQuery(f *testing.F) {
	f.Add("a=1&api_key=s&b", "k=v; key=s")
	f.Add("api_key=s", "key=s")
	f.Add("&&=&api%5fkey=%73;", `;; key="s";`)
	f.Fuzz(func(t *testing.T, query, cookies string) {
		for _, s := range []KeySource{{In: inQuery, Name: "api_key"}, {In: inCookie, Name: "key"}} {
			r := request("/?"+query, "Cookie: "+cookies)
			r.Header["Cookie"] = []string{cookies}
			secret := s.find(r)
			if secret == "" {
				continue
			}
			(&stripper{secret: secret, sources: []KeySource{s}}).strip(r)
			came, left, sep := query, r.URL.RawQuery, "&"
			if s.In == inCookie {
				came, left, sep = cookies, strings.Join(r.Header["Cookie"], ""), ";"
			}
			rest := strings.Join(slices.DeleteFunc(strings.Split(came, sep), func(pair string) bool {
				only := request("/?"+pair, "Cookie: ")
				only.Header["Cookie"] = []string{pair}
				found := s.find(only)
				return found == secret || secrets.WellFormedUserSecret(found)
			}), sep)
			if strings.TrimSpace(rest) != strings.TrimSpace(left) {
				t.Errorf("%s: %q became %q, want %q", s.In, came, left, rest)
			}
		}
	})
}

// FuzzDropDashboardCookies checks the property of dropping: the cookies of other names
// stay, byte for byte and in their order.
func FuzzDropDashboardCookies(f *testing.F) {
	f.Add("a=1; __Secure-limitkeeper=x; b=2; __Secure-limitkeeper-browser=y; __Secure-limitkeeper-other=z")
	f.Add("__Secure-limitkeeper;;__Secure-limitkeeper=;  c = \"__Secure-limitkeeper\"")
	f.Fuzz(func(t *testing.T, line string) {
		h := http.Header{"Cookie": {line, "a=b"}}
		dropDashboardCookies(h)
		others := slices.DeleteFunc(strings.Split(line, ";"), func(pair string) bool {
			name, _, _ := strings.Cut(strings.TrimSpace(pair), "=")
			return dashboard.OwnsCookie(name)
		})
		want := []string{strings.TrimLeft(strings.Join(others, ";"), " "), "a=b"}
		if len(others) == strings.Count(line, ";")+1 {
			want[0] = line
		} else if strings.TrimSpace(want[0]) == "" {
			want = want[1:]
		}
		if !slices.Equal(h["Cookie"], want) {
			t.Errorf("%q became %q, want %q", line, h["Cookie"], want)
		}
	})
}

// A cookie of the dashboard is not forwarded. Other cookies are.
func TestDashboardCookiesAreNotForwarded(t *testing.T) {
	s := newServer(t)
	s.Start("store memory", "limitkeeper {\n observe\n keep_key\n}\nrespond `{http.request.header.Cookie}`")
	for cookies, want := range map[string]string{
		"a=1; __Secure-limitkeeper=lk_session_acct_x-1; b=2":                                "a=1; b=2",
		"a=1; __Secure-limitkeeper-browser=lk_browser_acct_x-1; b=2":                        "a=1; b=2",
		"__Secure-limitkeeper=lk_session_acct_x-1":                                          "",
		"__Secure-limitkeeper=lk_session_a-1; c=3; __Secure-limitkeeper=\"lk_session_b-2\"": "c=3",
		"a=__Secure-limitkeeper":                                                            "a=__Secure-limitkeeper",
	} {
		if got := s.Get("/", "Cookie: "+cookies).Text; got != want {
			t.Errorf("%s: got %q forwarded, want %q", cookies, got, want)
		}
	}
}

// TestFindAndStrip covers the key itself. This test covers its copies: the gateway forwards no copy of the
// used key, and no other key in a key source.
func TestStripCopies(t *testing.T) {
	const used, other = "lk_user_0123456789abcdefghijABCDEFGHIJ01", "lk_user_another"
	encoded := strings.ReplaceAll(used, "_", "%5F")
	sources := []KeySource{{In: inHeader, Name: "X-Api-Key"}, {In: inBearer}, {In: inQuery, Name: "api_key"}, {In: inCookie, Name: "key"}}
	for _, tc := range []struct {
		name        string
		target      string
		headers     []string
		wantTarget  string
		wantHeaders []string
	}{
		{name: "the same field twice", headers: []string{"X-Api-Key: " + used}},
		{name: "fields of its own", headers: []string{"Api-Key: " + used, "Api-Key: b", "Proxy-Authorization: Bearer " + used, "Authorization: bearer " + used},
			wantHeaders: []string{"Api-Key: b"}},
		{name: "query parameters", target: "/p?a=%20&api_key=" + used + "&k=" + encoded + "&" + used + "&b=c", wantTarget: "/p?a=%20&b=c"},
		{name: "cookies", headers: []string{"Cookie: a=b; k=" + used + `; key="` + used + `"; c=d`}, wantHeaders: []string{"Cookie: a=b; c=d"}},
		{name: "inside other values", target: "/p?next=/q%3Fk=" + encoded + "&x",
			headers:     []string{"Referer: http://x/?k=" + encoded, "X-Forwarded-Uri: /?k=" + used + "&l", "Authorization: ApiKey " + used, "Cookie: a=k:" + used},
			wantTarget:  "/p?next=/q%3Fk=REDACTED&x",
			wantHeaders: []string{"Referer: http://x/?k=REDACTED", "X-Forwarded-Uri: /?k=REDACTED&l", "Authorization: ApiKey REDACTED", "Cookie: a=k:REDACTED"}},
		{name: "another key where keys are looked for", target: "/p?api_key=" + other, headers: []string{"X-Api-Key: " + other, "Authorization: Bearer " + other, "Cookie: key=" + other},
			wantTarget: "/p"},
		{name: "what resembles a key elsewhere", target: "/p?lk_user_id=5&k=" + other, headers: []string{"X-Other: " + other, "Cookie: lk_user_id=5"},
			wantTarget: "/p?lk_user_id=5&k=" + other, wantHeaders: []string{"X-Other: " + other, "Cookie: lk_user_id=5"}},
		{name: "another credential where keys are looked for", target: "/p?api_key=x", headers: []string{"X-Api-Key: jwt", "Authorization: Bearer jwt"},
			wantTarget: "/p?api_key=x", wantHeaders: []string{"X-Api-Key: jwt", "Authorization: Bearer jwt"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			target := cmp.Or(tc.target, "/p")
			r := request(target, append([]string{"X-Api-Key: " + used}, tc.headers...)...)
			(&stripper{secret: findKey(r, sources), ours: true, masks: true, sources: sources}).strip(r)
			want := request(cmp.Or(tc.wantTarget, target), tc.wantHeaders...)
			if diff := gocmp.Diff(want.Header, r.Header); diff != "" {
				t.Errorf("header (-want +got):\n%s", diff)
			}
			if r.RequestURI != want.RequestURI || r.URL.RawQuery != want.URL.RawQuery {
				t.Errorf("got %q with the query %q, want %q", r.RequestURI, r.URL.RawQuery, want.RequestURI)
			}
		})
	}
}
