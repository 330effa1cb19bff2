package adminapi_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// Of concurrent requests on a quota of L exactly L are allowed, also if several keys share the quota of their
// user.
func TestValidateIsExact(t *testing.T) {
	const limit, callers, each = 200, 16, 20
	for name, shared := range map[string]bool{"own plan": false, "user's plan": true} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			plan, user := a.plan(limit), a.user("Example Customer")
			secrets := make([]string, 4)
			if shared {
				a.do("PUT", prefix+"/users/"+user, object{"plan_id": plan}).want(200)
				for i := range secrets {
					_, secrets[i] = a.key(user, "")
				}
			} else {
				_, secret := a.key(user, plan)
				for i := range secrets {
					secrets[i] = secret
				}
			}
			var allowed atomic.Int64
			var wg sync.WaitGroup
			for i := range callers {
				wg.Go(func() {
					for range each {
						if a.validate(secrets[i%len(secrets)]).at()["success"] == true {
							allowed.Add(1)
						}
					}
				})
			}
			wg.Wait()
			if got := allowed.Load(); got != limit {
				t.Errorf("allowed: got %d, want %d", got, limit)
			}
			usage := a.do("GET", prefix+"/users/"+user+"/usage", nil).want(200).data()
			if got := intOf(usage["current_usage"]); got != limit {
				t.Errorf("usage: got %d, want %d", got, limit)
			}
		})
	}
}

// The history has endpoint, method and client address, and masks secrets in an endpoint.
func TestHistoryIsClean(t *testing.T) {
	a := newAPI(t)
	id, secret := a.key(a.user("Example Customer"), a.plan(5))
	a.do("POST", prefix+"/validate", object{"api_key": secret, "endpoint": "/v1?api_key=" + secret, "method": "GET"}).want(200)
	r := a.do("GET", prefix+"/keys/"+id+"/requests", nil).want(200)
	entry := r.data()["requests"].([]any)[0].(map[string]any)
	if got := entry["endpoint"].(string); strings.Contains(got, secret) || !strings.HasPrefix(got, "/v1?api_key=") {
		t.Errorf("endpoint: got %q, want it with the secret masked", got)
	}
	if got := entry["ip_address"]; got != "127.0.0.1" {
		t.Errorf("ip_address: got %v, want that of the caller", got)
	}
}
