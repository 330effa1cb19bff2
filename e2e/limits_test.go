package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// costTokens is the option of a gateway that takes the cost of tokens from a header.
const costTokens = "cost tokens {http.request.header.X-Tokens}"

// 64 clients send requests of one key through the gateway and POST /validate, under a rate, a daily and a monthly limit of requests
// and a monthly limit of tokens. No limit is exceeded, denied requests count nowhere, and all counts agree. When this fails, a
// customer gets more or less than the plan says.
func TestSeveralLimits(t *testing.T) {
	for _, tt := range []struct {
		name  string
		store func(*testing.T) string
		nodes int
	}{
		{"badger", func(*testing.T) string { return "badger data" }, 1},
		{"redis", func(t *testing.T) string { return redisStore(redistest.Start(t).Addr()) }, 1},
		{"two nodes", func(t *testing.T) string { return redisStore(redistest.Start(t).Addr()) }, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			nodes := startNodes(t, tt.nodes, tt.store(t), costTokens)
			if now := time.Now().UTC(); now.Truncate(24*time.Hour) != now.Add(time.Minute).Truncate(24*time.Hour) {
				time.Sleep(time.Until(now.Truncate(24 * time.Hour).Add(24*time.Hour + time.Second))) // not over midnight
			}
			newHammer(t, nodes).run()
		})
	}
}

// hammer makes requests with one key through all nodes until nothing more passes.
type hammer struct {
	t           *testing.T
	nodes       []*site
	key, secret string

	mu      sync.Mutex
	passed  []passed
	tokens  int64
	reasons map[string]int
}

// passed is a request that passed. It was decided between the two times.
type passed struct{ sent, answered time.Time }

func newHammer(t *testing.T, nodes []*site) *hammer {
	h := &hammer{t: t, nodes: nodes, reasons: map[string]int{}}
	var plan, key struct {
		ID     string
		APIKey string `json:"api_key"`
	}
	var user struct {
		ID int64 `json:"user_id"`
	}
	limits := []map[string]any{{"meter": "requests", "max": 1000, "period": "month"}, {"meter": "tokens", "max": 1000, "period": "month"}}
	nodes[0].must("POST", "/functions/v1/plans", map[string]any{"name": "p", "max_requests": 10, "request_period": "day", "limits": limits,
		"rate": map[string]any{"requests": 2, "per": "second", "burst": 3}}, &plan)
	nodes[0].must("POST", "/functions/v1/users", map[string]any{"name": "u", "plan_id": plan.ID}, &user)
	nodes[0].must("POST", "/functions/v1/keys", map[string]any{"name": "k", "user_id": user.ID}, &key)
	h.key, h.secret = key.ID, key.APIKey
	return h
}

func (h *hammer) run() {
	h.t.Helper()
	const callers, lasts = 64, 8 * time.Second
	begun := time.Now()
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for n := i; time.Since(begun) < lasts; n++ {
				tokens := int64(n%2) * 120
				h.request(h.nodes[n%len(h.nodes)], n/2%2 == 0, tokens)
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
	wg.Wait()
	h.check()
}

// request makes one request, through a gateway or with POST /validate.
func (h *hammer) request(s *site, gateway bool, tokens int64) {
	sent := time.Now()
	var status int
	var b []byte
	var err error
	if gateway {
		status, b, err = s.send(http.MethodGet, "/x", nil, map[string]string{"X-API-Key": h.secret, "X-Tokens": fmt.Sprint(tokens)})
	} else {
		status, b, err = s.call(http.MethodPost, "/functions/v1/validate",
			map[string]any{"api_key": h.secret, "endpoint": "/x", "method": "GET", "costs": map[string]any{"tokens": tokens}})
	}
	var answer struct {
		Success bool
		Reason  string
		Details struct {
			RetryAfter float64 `json:"retry_after"`
		}
	}
	switch {
	case err != nil:
		h.t.Error(err)
		return
	case gateway && status == 200:
		answer.Success = true
	case json.Unmarshal(b, &answer) != nil, gateway != (status == 429), !gateway && status != 200:
		h.t.Errorf("gateway %t: got %d %s", gateway, status, b)
	case answer.Reason == "rate" && (answer.Details.RetryAfter <= 0 || answer.Details.RetryAfter > 0.5):
		h.t.Errorf("got retry_after %v, want at most half a second", answer.Details.RetryAfter)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !answer.Success {
		h.reasons[answer.Reason]++
		return
	}
	h.reasons["allowed"]++
	h.tokens += tokens
	h.passed = append(h.passed, passed{sent, time.Now()})
}

// check compares the answers with the usage and the history on every node.
func (h *hammer) check() {
	h.t.Helper()
	n := len(h.passed)
	h.t.Logf("%d requests and %d tokens passed: %v", n, h.tokens, h.reasons)
	if n != 10 || h.tokens > 1000 || h.reasons["rate"] == 0 || h.reasons["quota"] == 0 || len(h.reasons) != 3 {
		h.t.Errorf("%d requests and %d tokens passed, want 10 and at most 1000, and refusals because of the quota and the rate: %v", n, h.tokens, h.reasons)
	}
	for _, first := range h.passed {
		for _, last := range h.passed {
			span, within := last.answered.Sub(first.sent), 0
			for _, p := range h.passed {
				if !p.sent.Before(first.sent) && !p.answered.After(last.answered) {
					within++
				}
			}
			if span > 0 && float64(within) > 3+2*span.Seconds()+0.01 {
				h.t.Errorf("%d requests passed in %v, want at most 3 and 2 a second", within, span)
			}
		}
	}
	for _, s := range h.nodes {
		var usage struct {
			Limits []struct {
				Meter, Period string
				Used          int64
			}
		}
		s.must("GET", "/functions/v1/keys/"+h.key+"/usage", nil, &usage)
		want := fmt.Sprintf("[{requests day %d} {requests month %d} {tokens month %d}]", n, n, h.tokens)
		if got := fmt.Sprint(usage.Limits); got != want {
			h.t.Errorf("got the usage %s, want %s", got, want)
		}
		var history struct {
			Count    int
			Complete bool
		}
		s.must("GET", "/functions/v1/requests?status=allowed&key_id="+h.key, nil, &history)
		if history.Count != n || !history.Complete {
			h.t.Errorf("the history has %d allowed requests, want %d", history.Count, n)
		}
	}
}

// A plan without max_requests lets 100,000 requests pass and counts each. When this fails, unlimited plans are limited.
func TestUnlimitedPlan(t *testing.T) {
	const perClient, clients = 100, 1000
	s := newSiteOn(t, "badger data", "cost {http.request.header.X-Cost}", "respond ok")
	s.start()
	var plan, key struct {
		ID     string
		APIKey string `json:"api_key"`
	}
	s.must("POST", "/functions/v1/plans", map[string]any{"name": "p", "max_requests": nil}, &plan)
	s.must("POST", "/functions/v1/users", map[string]any{"name": "u", "plan_id": plan.ID}, nil)
	s.must("POST", "/functions/v1/users/1/keys", map[string]any{"name": "k"}, &key)
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for range perClient {
				status, b, err := s.send(http.MethodGet, "/x", nil, map[string]string{"X-API-Key": key.APIKey})
				if status != 200 {
					t.Errorf("got %d %s (%v)", status, b, err)
					return
				}
			}
		})
	}
	wg.Wait()
	used, entries := s.used(key.ID)
	if used != perClient*clients || entries != perClient*clients {
		t.Errorf("got the usage %d and %d entries, want %d", used, entries, perClient*clients)
	}
}
