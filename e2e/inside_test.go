package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// 64 clients send requests with five keys of one customer through the gateway and POST /validate. An override raises the limit of the plan to 30
// a day, and one key may use 7 of them. Exactly 30 pass, at most 7 with that key, and all counts agree. When this fails, a customer gets
// more or less than its override or its key says.
func TestLimitsInside(t *testing.T) {
	const quota, own, callers, times = 30, 7, 64, 8
	for _, tt := range []struct {
		name  string
		store func(*testing.T) string
		nodes int
	}{
		{"badger", func(*testing.T) string { return "badger data" }, 1},
		{"cluster", func(t *testing.T) string { return redisStore(redistest.StartCluster(t).Addrs()...) }, 1},
		{"two nodes", func(t *testing.T) string { return redisStore(redistest.Start(t).Addr()) }, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			nodes := startNodes(t, tt.nodes, tt.store(t), "")
			if now := time.Now().UTC(); now.Truncate(24*time.Hour) != now.Add(time.Minute).Truncate(24*time.Hour) {
				time.Sleep(time.Until(now.Truncate(24 * time.Hour).Add(24*time.Hour + time.Second))) // not over midnight
			}
			s := nodes[0]
			var plan struct{ ID string }
			var user struct {
				ID int64 `json:"user_id"`
			}
			s.must("POST", "/functions/v1/plans", map[string]any{"name": "p", "max_requests": 10, "request_period": "day"}, &plan)
			s.must("POST", "/functions/v1/users", map[string]any{"name": "u", "plan_id": plan.ID,
				"overrides": []map[string]any{{"meter": "requests", "max": quota, "period": "day", "until": time.Now().Add(time.Hour)}}}, &user)
			var keys [5]struct {
				ID     string
				APIKey string `json:"api_key"`
			}
			for i := range keys {
				body := map[string]any{"name": fmt.Sprint("k", i), "user_id": user.ID}
				if i == 0 {
					body["limits"] = []map[string]any{{"meter": "requests", "max": own, "period": "day"}}
				}
				s.must("POST", "/functions/v1/keys", body, &keys[i])
			}
			var passed [5]atomic.Int64
			var wg sync.WaitGroup
			for i := range callers {
				wg.Go(func() {
					for n := range times {
						of := (i + n) % len(keys)
						if allowed, err := asks(nodes[n%len(nodes)], n/2%2 == 0, keys[of].APIKey); err != nil {
							t.Error(err)
						} else if allowed {
							passed[of].Add(1)
						}
					}
				})
			}
			wg.Wait()
			sum := int64(0)
			for i := range passed {
				sum += passed[i].Load()
			}
			if first := passed[0].Load(); sum != quota || first > own {
				t.Errorf("%d requests passed, %d of them with the limited key, want %d and at most %d", sum, first, quota, own)
			}
			for _, s := range nodes {
				var usage struct {
					Limits []struct {
						Of        string
						Max, Used int64
					}
				}
				s.must("GET", "/functions/v1/keys/"+keys[0].ID+"/usage", nil, &usage)
				if got, want := fmt.Sprint(usage.Limits), fmt.Sprintf("[{user %d %d} {key %d %d}]", quota, quota, own, passed[0].Load()); got != want {
					t.Errorf("got the usage %s, want %s", got, want)
				}
			}
		})
	}
}

// asks makes one request, through a gateway or with POST /validate, and reports whether it passed.
func asks(s *site, gateway bool, secret string) (bool, error) {
	if gateway {
		status, b, err := s.send(http.MethodGet, "/x", nil, map[string]string{"X-API-Key": secret})
		if err == nil && status != 200 && status != 429 {
			err = fmt.Errorf("gateway: got %d %s", status, b)
		}
		return status == 200, err
	}
	_, b, err := s.call(http.MethodPost, "/functions/v1/validate", map[string]any{"api_key": secret, "endpoint": "/x", "method": "GET"})
	var answer struct {
		Success bool
		Reason  string
	}
	if err == nil {
		err = json.Unmarshal(b, &answer)
	}
	if err == nil && !answer.Success && answer.Reason != "quota" {
		err = fmt.Errorf("POST /validate: got %s", b)
	}
	return answer.Success, err
}
