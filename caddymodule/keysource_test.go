package caddymodule

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// request makes a request with header lines like "Name: value".
func request(target string, headers ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "http://example.com/", nil)
	r.RequestURI = target
	path, query, _ := strings.Cut(target, "?")
	r.URL.Path, r.URL.RawQuery = path, query
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	return r
}

// The gateway removes the used key from header, bearer, cookie or query, and changes nothing else.
func TestFindAndStrip(t *testing.T) {
	header, bearer := KeySource{In: inHeader, Name: "X-API-Key"}.normal(), KeySource{In: inBearer}
	query, cookie := KeySource{In: inQuery, Name: "api_key"}, KeySource{In: inCookie, Name: "key"}
	for _, tc := range []struct {
		name    string
		sources []KeySource
		target  string
		headers []string

		secret      string
		wantTarget  string
		wantHeaders []string
	}{
		{name: "no credential at all", sources: []KeySource{header, bearer, query, cookie},
			target: "/a?b=c", headers: []string{"Accept: x", "Cookie: a=b"}, wantTarget: "/a?b=c", wantHeaders: []string{"Accept: x", "Cookie: a=b"}},
		{name: "header", sources: []KeySource{header}, target: "/",
			headers: []string{"X-Api-Key: s", "Accept: x"}, secret: "s", wantHeaders: []string{"Accept: x"}},
		{name: "header with space around", sources: []KeySource{header}, target: "/",
			headers: []string{"X-Api-Key:   s  "}, secret: "s"},
		{name: "the first header line that is not empty, and only that", sources: []KeySource{header}, target: "/",
			headers: []string{"X-Api-Key: ", "X-Api-Key: s", "X-Api-Key: other"}, secret: "s",
			wantHeaders: []string{"X-Api-Key: ", "X-Api-Key: other"}},
		{name: "an empty header is no credential", sources: []KeySource{header, bearer}, target: "/",
			headers: []string{"X-Api-Key: ", "Authorization: Bearer s"}, secret: "s", wantHeaders: []string{"X-Api-Key: "}},
		{name: "bearer in any case", sources: []KeySource{bearer}, target: "/",
			headers: []string{"Authorization: bEARER  s"}, secret: "s"},
		{name: "another scheme is left alone", sources: []KeySource{bearer}, target: "/",
			headers: []string{"Authorization: Basic Og=="}, wantHeaders: []string{"Authorization: Basic Og=="}},
		{name: "bearer beside another scheme", sources: []KeySource{bearer}, target: "/",
			headers: []string{"Authorization: Basic Og==", "Authorization: Bearer s"}, secret: "s",
			wantHeaders: []string{"Authorization: Basic Og=="}},
		{name: "bearer without a token", sources: []KeySource{bearer}, target: "/",
			headers: []string{"Authorization: Bearer"}, wantHeaders: []string{"Authorization: Bearer"}},
		{name: "the first source wins, the other stays", sources: []KeySource{header, bearer}, target: "/",
			headers: []string{"Authorization: Bearer jwt", "X-Api-Key: s"}, secret: "s",
			wantHeaders: []string{"Authorization: Bearer jwt"}},
		{name: "the order is the configured one", sources: []KeySource{bearer, header}, target: "/",
			headers: []string{"Authorization: Bearer s", "X-Api-Key: other"}, secret: "s",
			wantHeaders: []string{"X-Api-Key: other"}},
		{name: "query alone", sources: []KeySource{query}, target: "/p?api_key=s", secret: "s", wantTarget: "/p"},
		{name: "query between others, kept byte for byte", sources: []KeySource{query},
			target: "/%7Ea?z=%7e+1&api_key=s&a=1;b=2&&x", secret: "s", wantTarget: "/%7Ea?z=%7e+1&a=1;b=2&&x"},
		{name: "query encoded", sources: []KeySource{query}, target: "/?b&api%5Fkey=a%2Db", secret: "a-b", wantTarget: "/?b"},
		{name: "the first query value that is not empty, and only that", sources: []KeySource{query},
			target: "/?api_key=&api_key=s&api_key=t", secret: "s", wantTarget: "/?api_key=&api_key=t"},
		{name: "query with a broken escape beside", sources: []KeySource{query}, target: "/?x=%zz&api_key=s", secret: "s", wantTarget: "/?x=%zz"},
		{name: "query with a broken escape is none", sources: []KeySource{query}, target: "/?api_key=%zz", wantTarget: "/?api_key=%zz"},
		{name: "another case is another parameter", sources: []KeySource{query}, target: "/?API_KEY=s", wantTarget: "/?API_KEY=s"},
		{name: "cookie alone", sources: []KeySource{cookie}, target: "/", headers: []string{"Cookie: key=s"}, secret: "s"},
		{name: "cookie in front", sources: []KeySource{cookie}, target: "/",
			headers: []string{"Cookie: key=s; a=b; c=d"}, secret: "s", wantHeaders: []string{"Cookie: a=b; c=d"}},
		{name: "cookie in the middle", sources: []KeySource{cookie}, target: "/",
			headers: []string{"Cookie: a=b;  key=s; c=d"}, secret: "s", wantHeaders: []string{"Cookie: a=b; c=d"}},
		{name: "cookie at the end", sources: []KeySource{cookie}, target: "/",
			headers: []string{`Cookie: a="b; key="s"`}, secret: "s", wantHeaders: []string{`Cookie: a="b`}},
		{name: "cookie in the second line", sources: []KeySource{cookie}, target: "/",
			headers: []string{"Cookie: a=b", "Cookie: key=s"}, secret: "s", wantHeaders: []string{"Cookie: a=b"}},
		{name: "a cookie whose name ends so", sources: []KeySource{cookie}, target: "/",
			headers: []string{"Cookie: xkey=s"}, wantHeaders: []string{"Cookie: xkey=s"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := request(tc.target, tc.headers...)
			secret := findKey(r, tc.sources)
			if secret != tc.secret {
				t.Fatalf("found %q, want %q", secret, tc.secret)
			}
			if secret != "" {
				s := &stripper{secret: secret, sources: tc.sources}
				s.strip(r)
			}
			if tc.wantTarget == "" {
				tc.wantTarget = tc.target
			}
			want := request(tc.wantTarget, tc.wantHeaders...)
			if diff := cmp.Diff(want.Header, r.Header); diff != "" {
				t.Errorf("header (-want +got):\n%s", diff)
			}
			if r.RequestURI != tc.wantTarget || r.URL.RawQuery != want.URL.RawQuery {
				t.Errorf("got URI %q and query %q, want %q", r.RequestURI, r.URL.RawQuery, tc.wantTarget)
			}
		})
	}
}

// An invalid key source is refused.
func TestKeySourceCheck(t *testing.T) {
	for s, ok := range map[KeySource]bool{
		{In: "header", Name: "X-API-Key"}: true,
		{In: "header"}:                    false,
		{In: "header", Name: "a b"}:       false,
		{In: "header", Name: "host"}:      false,
		{In: "bearer"}:                    true,
		{In: "bearer", Name: "x"}:         false,
		{In: "query", Name: "api_key"}:    true,
		{In: "query"}:                     false,
		{In: "cookie", Name: "key"}:       true,
		{In: "cookie", Name: "a;b"}:       false,
		{In: "body", Name: "key"}:         false,
		{}:                                false,
	} {
		if err := s.check(); (err == nil) != ok {
			t.Errorf("%+v: got %v, want ok %v", s, err, ok)
		}
	}
}
