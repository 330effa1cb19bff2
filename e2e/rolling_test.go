package e2e

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// Two nodes on one Redis serve a load, and are replaced one after the other: one is stopped, and one is killed. Clients send a request that failed to the other node,
// with the same request id: each request is answered and counted once, and a quota lets exactly so many pass. Without request ids, the
// usage is at least the number of answers and at most the number of requests. When this fails, an upgrade without an
// interruption loses or invents usage.
//
// LIMITKEEPER_EARLIER names a binary of an earlier version with the same format of the data, with which the nodes begin.
func TestRollingUpgrade(t *testing.T) {
	const quota = 1500
	earlier := cmp.Or(os.Getenv("LIMITKEEPER_EARLIER"), binary)
	store := "redis " + redistest.Start(t).Addr()
	nodes, running := make([]*site, 2), make([]*process, 2)
	for i := range nodes {
		nodes[i] = newSiteOn(t, store, "request_id header X-Retry-Id", "respond ok")
		running[i] = nodes[i].startBinary(earlier)
	}
	loads := []*rollingLoad{newRollingLoad(nodes, math.MaxInt32, true), newRollingLoad(nodes, quota, true), newRollingLoad(nodes, math.MaxInt32, false)}
	for _, l := range loads {
		l.start(t)
	}
	unlimited := loads[0]
	unlimited.awaitMore(t, 200)
	for i, n := range nodes {
		how := []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[i] // a killed node has counted requests that it did not answer
		if _, err := running[i].end(how); err != nil {
			t.Errorf("node %d: %v", i+1, err)
		}
		unlimited.awaitMore(t, 200) // by the other node alone
		n.start()
		unlimited.awaitMore(t, 200)
	}
	limited := loads[1]
	for deadline := time.Now().Add(patience); limited.denied.Load() == 0 && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
	}
	for _, l := range loads {
		close(l.quit)
		l.workers.Wait()
	}
	for i, n := range nodes {
		for _, l := range loads {
			sent, allowed := l.sent.Load(), l.allowed.Load()
			used, _ := n.used(l.key)
			t.Logf("node %d: request ids %t, quota %d: %d requests, %d allowed, %d denied, %d failures, usage %d",
				i+1, l.retries, l.quota, sent, allowed, l.denied.Load(), l.failed.Load(), used)
			if used < allowed || used > sent || l.retries && used != allowed {
				t.Errorf("got the usage %d, want the %d answers, without request ids at most the %d requests", used, allowed, sent)
			}
			if l == limited && allowed != quota {
				t.Errorf("%d requests passed a quota of %d", allowed, quota)
			}
		}
	}
}

// rollingLoad is a load on the nodes with one key.
type rollingLoad struct {
	nodes       []*site
	quota       int64
	retries     bool // a request has an id, and is sent again when it failed
	key, secret string

	sent, allowed, denied, failed atomic.Int64
	quit                          chan struct{}
	workers                       sync.WaitGroup
}

func newRollingLoad(nodes []*site, quota int64, retries bool) *rollingLoad {
	l := &rollingLoad{nodes: nodes, quota: quota, retries: retries, quit: make(chan struct{})}
	l.key, l.secret = nodes[0].newKey(quota)
	return l
}

// start sends requests until quit is closed.
func (l *rollingLoad) start(t *testing.T) {
	for w := range 4 {
		l.workers.Go(func() {
			for n := w; ; n++ {
				select {
				case <-l.quit:
					return
				default:
				}
				l.sent.Add(1)
				l.send(t, n, fmt.Sprintf("%d-%d", w, n))
			}
		})
	}
}

// send sends a request to the n-th node, and with retries to the next node until it is answered.
func (l *rollingLoad) send(t *testing.T, n int, id string) {
	header := map[string]string{"X-API-Key": l.secret}
	if l.retries {
		header["X-Retry-Id"] = id
	}
	for deadline := time.Now().Add(patience); ; n++ {
		switch status, b, err := l.nodes[n%len(l.nodes)].send(http.MethodPost, "/x", nil, header); {
		case err == nil && status == http.StatusOK:
			l.allowed.Add(1)
			return
		case err == nil && status == http.StatusTooManyRequests:
			l.denied.Add(1)
			return
		case err == nil && status != http.StatusServiceUnavailable:
			t.Errorf("got %d %s", status, b)
			return
		}
		if l.failed.Add(1); !l.retries {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("no node answers")
			return
		}
	}
}

// awaitMore waits until so many more requests are allowed.
func (l *rollingLoad) awaitMore(t *testing.T, n int64) {
	t.Helper()
	before := l.allowed.Load()
	for deadline := time.Now().Add(patience); l.allowed.Load() < before+n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d more requests were allowed", l.allowed.Load()-before, n)
		}
	}
}
