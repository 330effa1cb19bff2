package caddymodule

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The option headers selects the rate limit headers of allowed and refused answers. A refusal
// over the quota has Retry-After, and no cache shares an answer, with every value. A header of
// the upstream that the gateway does not set stays as it is.
func TestGatewayHeaderFamilies(t *testing.T) {
	xRateLimit := []string{"X-Ratelimit-Limit", "X-Ratelimit-Plan", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"}
	ietf := []string{"Ratelimit", "Ratelimit-Policy"}
	for _, tc := range []struct {
		option        string
		want          []string
		limit, policy string // what the client gets in X-RateLimit-Limit and RateLimit-Policy
	}{
		{"", append(slices.Clone(ietf), xRateLimit...), "1", `"burst";q=5;w=60, "year";q=1;w=`},
		{"headers all", append(slices.Clone(ietf), xRateLimit...), "1", `"burst";q=5;w=60, "year";q=1;w=`},
		{"headers x-ratelimit", xRateLimit, "1", `"burst";q=5;w=60`},
		{"headers ietf", ietf, "5", `"burst";q=5;w=60, "year";q=1;w=`},
		{"headers none", nil, "5", `"burst";q=5;w=60`},
	} {
		for _, errors := range []string{"", "errors"} {
			t.Run(tc.option+" "+errors, func(t *testing.T) {
				s := newServer(t)
				up := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/limited" {
						w.Header().Set("X-RateLimit-Limit", "5")
						w.Header().Set("RateLimit-Policy", `"burst";q=5;w=60`)
					}
				})
				s.Start("store memory", "limitkeeper {\n"+tc.option+"\n"+errors+"\ncost {query.cost}\n}\n"+up.proxy())
				key := "X-API-Key: " + s.Tenant("default", 1).Secret
				limited := s.Get("/limited?cost=0", key)
				if got := limited.Header.Values("X-RateLimit-Limit"); len(got) != 1 || got[0] != tc.limit {
					t.Errorf("upstream with a limit: got X-RateLimit-Limit %q, want %q", got, tc.limit)
				}
				got := limited.Header.Get("RateLimit-Policy")
				if rest, ok := strings.CutPrefix(got, tc.policy); !ok || strings.HasSuffix(tc.policy, "60") && rest != "" {
					t.Errorf("upstream with a limit: got RateLimit-Policy %q, want %q", got, tc.policy)
				}
				for _, status := range []int{http.StatusOK, http.StatusTooManyRequests} {
					got := s.Get("/", key)
					if got.StatusCode != status {
						t.Fatalf("got %d, want %d", got.StatusCode, status)
					}
					if diff := cmp.Diff(tc.want, rateLimitHeaders(got.Header)); diff != "" {
						t.Errorf("%d (-want +got):\n%s", status, diff)
					}
					if refused := status != http.StatusOK; refused != (got.Header.Get("Retry-After") != "") {
						t.Errorf("%d: got Retry-After %q", status, got.Header.Get("Retry-After"))
					}
					if got.Header.Get("Cache-Control") == "" {
						t.Errorf("%d: got no Cache-Control", status)
					}
				}
			})
		}
	}
}

// rateLimitHeaders returns the names of the rate limit headers of an answer, sorted.
func rateLimitHeaders(h http.Header) (names []string) {
	for name := range h {
		if strings.Contains(name, "Ratelimit") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// A config in JSON with an unknown value of headers is refused.
func TestGatewayUnknownHeaders(t *testing.T) {
	g := &Gateway{Keys: defaultKeySources(), OnStoreError: onStoreErrorDeny, Headers: "some"}
	if err := g.check(); err == nil || err.Error() != `headers: want all or x-ratelimit or ietf or none, got "some"` {
		t.Errorf("got %v", err)
	}
}

// No cache serves the answer for one key to another caller: Vary lists each header field that may hold
// a key, and answers are private unless the upstream sets Cache-Control.
func TestGatewayCaching(t *testing.T) {
	for _, tc := range []struct {
		name, options string
		upstream      http.Header
		vary, caching []string
	}{
		{"by default", "", nil, []string{"X-Api-Key, Authorization"}, []string{"private"}},
		{"cookies", "key cookie a\nkey cookie b\nkey header x-api-key", nil, []string{"Cookie, X-Api-Key"}, []string{"private"}},
		{"a query parameter is in the URL", "key query k", nil, nil, []string{"private"}},
		{"the upstream's Vary is joined", "", http.Header{"Vary": {"Origin", "Accept"}}, []string{"Origin", "Accept", "X-Api-Key, Authorization"}, []string{"private"}},
		{"the upstream's Cache-Control stays", "", http.Header{"Cache-Control": {"max-age=60"}}, []string{"X-Api-Key, Authorization"}, []string{"max-age=60"}},
		{"observing", "observe", nil, []string{"X-Api-Key, Authorization"}, []string{"private"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newServer(t)
			up := newRecorder(t, func(w http.ResponseWriter, _ *http.Request) {
				for name, values := range tc.upstream {
					w.Header()[name] = values
				}
			})
			s.Start("store memory", "limitkeeper {\n"+tc.options+"\n}\n"+up.proxy())
			ten := s.Tenant("default", 1)
			got := s.Get("/?k="+ten.Secret, "X-API-Key: "+ten.Secret)
			if got.StatusCode != http.StatusOK {
				t.Fatalf("got %d, want 200", got.StatusCode)
			}
			if diff := cmp.Diff(tc.vary, got.Header["Vary"]); diff != "" {
				t.Errorf("Vary (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.caching, got.Header["Cache-Control"]); diff != "" {
				t.Errorf("Cache-Control (-want +got):\n%s", diff)
			}
		})
	}
}

// With observe, an answer to a request without a key may be cached, for requests without a key. A
// request over the quota is forwarded, and its answer is private.
func TestGatewayCachingObserved(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	s.Start("store memory", "limitkeeper {\nobserve\n}\n"+up.proxy())
	ten := s.Tenant("default", 1)
	s.Get("/", "X-API-Key: "+ten.Secret)
	for _, tc := range []struct{ key, caching string }{{"", ""}, {ten.Secret, "private"}, {"lk_user_unknown", "private"}} {
		got := s.Get("/", "X-API-Key: "+tc.key)
		if vary := got.Header.Get("Vary"); vary != "X-Api-Key, Authorization" || got.Header.Get("Cache-Control") != tc.caching {
			t.Errorf("key %q: got Vary %q and Cache-Control %q, want %q", tc.key, vary, got.Header.Get("Cache-Control"), tc.caching)
		}
	}
}
