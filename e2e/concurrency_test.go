package e2e

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// With a concurrency of 5 and two nodes on one Redis, the upstream never has six requests of a key at once: also after a node was killed with
// requests in flight. The holds of that node end within a minute, and then five fit again.
func TestConcurrencyOfNodes(t *testing.T) {
	t.Parallel()
	var flying, most, served atomic.Int64
	up := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		n := flying.Add(1)
		defer flying.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		wait := 20 * time.Millisecond
		switch r.URL.Path {
		case "/slow":
			wait = time.Second
		case "/long":
			wait = time.Minute
		}
		select {
		case <-time.After(wait):
			served.Add(1)
		case <-r.Context().Done():
		}
	}))
	defer up.Close()
	proxy, store := "reverse_proxy "+up.Listener.Addr().String(), redisStore(redistest.Start(t).Addr())
	nodes := []*site{newSiteOn(t, store, "", proxy), newSiteOn(t, store, "", proxy)}
	nodes[0].start()
	p := nodes[1].start()
	var plan, key struct {
		ID     string
		APIKey string `json:"api_key"`
	}
	var user struct {
		ID int64 `json:"user_id"`
	}
	nodes[0].must("POST", "/functions/v1/plans", map[string]any{"name": "p", "max_requests": nil, "concurrency": 5}, &plan)
	nodes[0].must("POST", "/functions/v1/users", map[string]any{"name": "u", "plan_id": plan.ID}, &user)
	nodes[0].must("POST", "/functions/v1/keys", map[string]any{"name": "k", "user_id": user.ID}, &key)
	send := func(n *site, path string) int {
		status, _, _ := n.send(http.MethodGet, path, nil, map[string]string{"X-API-Key": key.APIKey})
		return status
	}
	var stopped atomic.Bool
	var clients sync.WaitGroup
	for i := range 24 {
		clients.Go(func() {
			for !stopped.Load() {
				if status := send(nodes[i%2], "/"); status != 200 && status != 429 && i%2 == 0 {
					t.Errorf("got %d, want 200 or 429", status)
				}
			}
		})
	}
	time.Sleep(2 * time.Second)
	stopped.Store(true)
	clients.Wait()
	if most.Load() != 5 || served.Load() < 50 {
		t.Errorf("got at most %d at once, %d served; want 5, and many", most.Load(), served.Load())
	}
	for range 3 {
		go send(nodes[1], "/long")
	}
	for deadline := time.Now().Add(patience); flying.Load() < 3 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
	}
	if _, err := p.end(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	five := func() (passed int64) { // of twelve at once
		var all sync.WaitGroup
		var n atomic.Int64
		for range 12 {
			all.Go(func() {
				if send(nodes[0], "/slow") == 200 {
					n.Add(1)
				}
			})
		}
		all.Wait()
		return n.Load()
	}
	if n := five(); n > 2 {
		t.Errorf("after the kill: got %d of twelve at once, want at most 2 beside the three of the killed node", n)
	}
	for five() < 5 {
		if time.Since(killed) > 90*time.Second {
			t.Fatal("the holds of the killed node have not ended after 90 s")
		}
		time.Sleep(time.Second)
	}
	t.Logf("five fit again %v after the kill", time.Since(killed).Round(time.Second))
	if most.Load() != 5 {
		t.Errorf("got at most %d at once, want 5", most.Load())
	}
}
