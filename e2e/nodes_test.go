package e2e

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// redisStore returns the store of a test without faults. On a busy machine a call may take longer than the default timeout, and a
// request then gets 503, as it should.
func redisStore(addresses ...string) string {
	return "redis " + strings.Join(addresses, " ") + " {\ntimeout 20s\n}"
}

// startNodes runs so many servers with the same configuration on one store.
func startNodes(t *testing.T, n int, store, options string) []*site {
	t.Helper()
	nodes := make([]*site, n)
	for i := range nodes {
		nodes[i] = newSiteOn(t, store, options, "respond ok")
		nodes[i].start()
	}
	return nodes
}

// Of any number of requests through any number of nodes that share a Redis, exactly as
// many pass as the quota has. When this fails, customers of a company with two machines
// get more than they pay for, or less.
func TestNodesAreExact(t *testing.T) {
	stores := map[string]func(*testing.T) string{
		"one server": func(t *testing.T) string { return redisStore(redistest.Start(t).Addr()) },
		"Cluster":    func(t *testing.T) string { return redisStore(redistest.StartCluster(t).Addrs()...) },
	}
	for _, name := range []string{"one server", "Cluster"} {
		t.Run(name, func(t *testing.T) {
			nodes := startNodes(t, 4, stores[name](t), "")
			for _, n := range []int{2, 4} {
				wantExact(t, nodes[:n])
			}
		})
	}
}

// wantExact makes 10,000 requests at once on a quota of 1,000 through all gateways.
func wantExact(t *testing.T, nodes []*site) {
	t.Helper()
	const requests, quota = 10_000, 1000
	key, secret := nodes[0].newKey(quota)
	var mu sync.Mutex
	statuses := map[int]int{}
	var wg sync.WaitGroup
	for i := range requests {
		wg.Go(func() {
			status, _, err := nodes[i%len(nodes)].send(http.MethodGet, "/x", nil, map[string]string{"X-API-Key": secret})
			if err != nil {
				t.Errorf("request %d: %v", i, err)
			}
			mu.Lock()
			defer mu.Unlock()
			statuses[status]++
		})
	}
	wg.Wait()
	if statuses[200] != quota || statuses[429] != requests-quota {
		t.Errorf("%d nodes: got %v, want %d times 200 and %d times 429", len(nodes), statuses, quota, requests-quota)
	}
	for i, n := range nodes {
		if used, _ := n.used(key); used != quota {
			t.Errorf("node %d of %d: got the usage %d, want %d", i+1, len(nodes), used, quota)
		}
	}
}

// A key that is disabled on one node is refused on the others within a second. When
// this fails, a key that leaked goes on working.
func TestNodesRefuseAtOnce(t *testing.T) {
	const rounds = 200
	nodes := startNodes(t, 2, redisStore(redistest.Start(t).Addr()), "")
	a, b := nodes[0], nodes[1]
	key, secret := a.newKey(1_000_000)
	lags := map[string][]time.Duration{}
	for range rounds {
		for _, status := range []string{"inactive", "active"} {
			a.must(http.MethodPut, "/functions/v1/keys/"+key, map[string]any{"status": status}, nil)
			changed := time.Now()
			want := map[string]int{"inactive": 403, "active": 200}[status]
			stale := awaitStatus(t, b, secret, want)
			lags[status] = append(lags[status], max(0, stale.Sub(changed)))
		}
	}
	for status, all := range lags {
		slices.Sort(all)
		median, worst := all[len(all)/2], all[len(all)-1]
		t.Logf("%s on one node, unseen by a request to the other after %v, at worst %v, of %d times", status, median, worst, len(all))
		if worst > time.Second {
			t.Errorf("%s: unseen by a request after %v, want a second at most", status, worst)
		}
	}
}

// awaitStatus asks through the gateway until it answers with a status. It returns when it sent the last request that had
// another answer, the zero time for none.
func awaitStatus(t *testing.T, s *site, secret string, want int) (stale time.Time) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		sent := time.Now()
		status, b, err := s.send(http.MethodGet, "/x", nil, map[string]string{"X-API-Key": secret})
		switch {
		case err != nil:
			t.Fatal(err)
		case status == want:
			return stale
		case time.Now().After(deadline):
			t.Fatalf("got %d %s, want %d", status, b, want)
		}
		stale = sent
	}
}

// awaitLog waits until the log of a server has a text, and returns the log. It returns without the text after patience.
func awaitLog(s *site, text string) (log string) {
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if log = s.serverLog(); strings.Contains(log, text) || time.Now().After(deadline) {
			return log
		}
	}
}

// While Redis does not answer, gateways answer according to on_store_error, and no request hangs. When Redis is back, they
// count again, and no answered request is missing.
func TestRedisAway(t *testing.T) {
	server := redistest.Start(t)
	store := "redis " + server.Addr()
	deny, allow := startNodes(t, 1, store, "")[0], startNodes(t, 1, store, "on_store_error allow")[0]
	key, secret := deny.newKey(1_000_000)
	for _, s := range []*site{deny, allow} {
		awaitStatus(t, s, secret, 200)
	}
	for _, fault := range []struct {
		name       string
		begin, end func()
	}{
		{"stopped", server.Pause, server.Resume},
		{"killed", server.Kill, nil},
	} {
		before, _ := deny.used(key)
		fault.begin()
		for i := range 20 {
			begun := time.Now()
			for s, want := range map[*site]int{deny: 503, allow: 200} {
				status, b, err := s.send(http.MethodGet, "/x", nil, map[string]string{"X-API-Key": secret})
				if err != nil || status != want {
					t.Fatalf("%s: got %d %s (%v), want %d", fault.name, status, b, err, want)
				}
			}
			if took := time.Since(begun); took > 10*time.Second {
				t.Errorf("%s: request %d took %v", fault.name, i, took)
			}
		}
		if fault.end == nil {
			return
		}
		for _, s := range []*site{deny, allow} { // each node notices the fault
			awaitLog(s, "redis is away")
		}
		fault.end()
		begun := time.Now()
		awaitStatus(t, deny, secret, 200)
		t.Logf("%s: decisions again %v after it went on", fault.name, time.Since(begun))
		if used, _ := deny.used(key); used <= before {
			t.Errorf("%s: got the usage %d, want more than %d", fault.name, used, before)
		}
		for _, s := range []*site{deny, allow} {
			log := awaitLog(s, "redis is back")
			for _, line := range []string{"redis is away", "redis is back"} {
				if n := strings.Count(log, line); n != 1 {
					t.Errorf("%s: the log says %q %d times, want once:\n%s", fault.name, line, n, log)
				}
			}
		}
	}
}

// serverLog returns what the server has logged.
func (s *site) serverLog() string {
	s.t.Helper()
	b, err := os.ReadFile(s.log)
	if err != nil {
		s.t.Fatal(fmt.Errorf("the log of the server: %w", err))
	}
	return string(b)
}
