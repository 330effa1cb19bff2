package caddymodule

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// No cache on the way serves the answer to one key to another caller: allowed answers vary
// with every field in which a key is looked for, and are private unless the upstream says
// otherwise.
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
			s.start("store memory", "limitkeeper {\n"+tc.options+"\n}\n"+up.proxy())
			ten := s.tenant("default", 1)
			got := s.get("/?k="+ten.secret, "X-API-Key: "+ten.secret)
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

// While a gateway observes, an answer without a key may be cached, for callers without one. A
// key over its quota passes, and its answer is private.
func TestGatewayCachingObserved(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	s.start("store memory", "limitkeeper {\nobserve\n}\n"+up.proxy())
	ten := s.tenant("default", 1)
	s.get("/", "X-API-Key: "+ten.secret)
	for _, tc := range []struct{ key, caching string }{{"", ""}, {ten.secret, "private"}, {"lk_user_unknown", "private"}} {
		got := s.get("/", "X-API-Key: "+tc.key)
		if vary := got.Header.Get("Vary"); vary != "X-Api-Key, Authorization" || got.Header.Get("Cache-Control") != tc.caching {
			t.Errorf("key %q: got Vary %q and Cache-Control %q, want %q", tc.key, vary, got.Header.Get("Cache-Control"), tc.caching)
		}
	}
}
