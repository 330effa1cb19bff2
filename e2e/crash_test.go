package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// crashes is how often the server is killed on one data directory.
const crashes = 12

// After SIGKILL under load no answered validation and no answered creation is missing,
// no count is over the limit, and none is more than was sent. A graceful stop loses
// nothing at all. All of it on one data directory, again and again.
func TestCrash(t *testing.T) {
	s := newSite(t, "respond ok")
	p := s.start()
	load := &crashLoad{s: s}
	for range 3 {
		load.add(1_000_000)
	}
	small := load.add(50) // is used up during the first rounds
	for round := range crashes {
		load.begin()
		load.reach(int64(200 + 37*round))
		if _, err := p.end(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		load.stop()
		p = s.start()
		load.check(fmt.Sprintf("crash %d", round+1), false)
	}
	if used, _ := s.used(small.id); used != 50 {
		t.Errorf("the small quota is used to %d, want 50: it was not looked at", used)
	}
	load.begin()
	load.reach(300)
	load.stop()
	load.settle()
	if code, err := p.end(syscall.SIGTERM); code != 0 || err != nil {
		t.Errorf("SIGTERM: ended with %d (%v), want 0:\n%s", code, err, p.output())
	}
	s.start()
	load.check("graceful stop", true)
	t.Logf("%d requests were sent and %d answered as allowed, %d users and keys were made",
		load.sent.Load(), load.allowed.Load(), len(load.created))
}

// crashLoad is a load of validations, requests through the gateway, and creations.
type crashLoad struct {
	s             *site
	keys          []*crashKey
	sent, allowed atomic.Int64

	mu      sync.Mutex
	created []string // paths of resources whose creation was answered

	stopped  atomic.Bool
	answered atomic.Int64 // since begin
	wg       sync.WaitGroup
}

// crashKey is a key with the requests on it.
type crashKey struct {
	id, secret    string
	quota         int64
	sent, allowed atomic.Int64
	settled       int64 // its usage before the graceful stop
}

func (l *crashLoad) add(quota int64) *crashKey {
	k := &crashKey{quota: quota}
	k.id, k.secret = l.s.newKey(quota)
	l.keys = append(l.keys, k)
	return k
}

// begin starts the callers.
func (l *crashLoad) begin() {
	l.stopped.Store(false)
	l.answered.Store(0)
	for i := range 16 {
		l.wg.Go(func() {
			for n := i; !l.stopped.Load(); n++ {
				if n%8 == 7 {
					l.create(n)
				} else {
					l.validate(l.keys[n%len(l.keys)], n%3 == 0)
				}
			}
		})
	}
}

// reach waits until so many requests were answered.
func (l *crashLoad) reach(n int64) {
	for deadline := time.Now().Add(patience); l.answered.Load() < n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			l.s.t.Fatalf("got %d answers, want %d", l.answered.Load(), n)
		}
	}
}

func (l *crashLoad) stop() {
	l.stopped.Store(true)
	l.wg.Wait()
	client.CloseIdleConnections()
}

// validate sends a request with a key, to /validate or through the gateway. It counts the request as sent before the
// request leaves.
func (l *crashLoad) validate(k *crashKey, gateway bool) {
	k.sent.Add(1)
	l.sent.Add(1)
	var ok bool
	if gateway {
		status, _, err := l.s.send(http.MethodPost, "/x", nil, map[string]string{"X-API-Key": k.secret})
		if err != nil {
			return
		}
		if ok = status == 200; !ok && status != 429 {
			l.s.t.Errorf("gateway: got %d, want 200 or 429", status)
		}
	} else {
		status, b, err := l.s.call(http.MethodPost, "/functions/v1/validate",
			map[string]any{"api_key": k.secret, "endpoint": "/x", "method": "GET"})
		if err != nil {
			return
		}
		var v struct{ Success bool }
		if err := json.Unmarshal(b, &v); err != nil || status != 200 {
			l.s.t.Errorf("validate: got %d %s", status, b)
		}
		ok = v.Success
	}
	l.answered.Add(1)
	if ok {
		k.allowed.Add(1)
		l.allowed.Add(1)
	}
}

// create makes a user and a key of it.
func (l *crashLoad) create(n int) {
	status, b, err := l.s.call(http.MethodPost, "/functions/v1/users", map[string]any{"name": fmt.Sprint("user ", n)})
	var user struct {
		Data struct {
			ID int64 `json:"user_id"`
		}
	}
	if err != nil || status != 201 || json.Unmarshal(b, &user) != nil {
		return
	}
	l.remember(fmt.Sprintf("/functions/v1/users/%d", user.Data.ID))
	var of struct {
		Data struct {
			PlanID string `json:"plan_id"`
		}
	}
	status, b, err = l.s.call(http.MethodGet, "/functions/v1/keys/"+l.keys[0].id, nil)
	if err != nil || status != 200 || json.Unmarshal(b, &of) != nil {
		return
	}
	var key struct{ Data struct{ ID string } }
	status, b, err = l.s.call(http.MethodPost, "/functions/v1/keys",
		map[string]any{"name": "k", "user_id": user.Data.ID, "plan_id": of.Data.PlanID})
	if err != nil || status != 201 || json.Unmarshal(b, &key) != nil {
		return
	}
	l.remember("/functions/v1/keys/" + key.Data.ID)
}

func (l *crashLoad) remember(path string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.created = append(l.created, path)
	l.answered.Add(1)
}

// settle notes what every key has used.
func (l *crashLoad) settle() {
	for _, k := range l.keys {
		k.settled, _ = l.s.used(k.id)
	}
}

// check compares keys, usage and history with the answers and the requests.
func (l *crashLoad) check(after string, settled bool) {
	l.s.t.Helper()
	for i, k := range l.keys {
		used, entries := l.s.used(k.id)
		answered, sent := k.allowed.Load(), k.sent.Load()
		if used < answered || used > sent || used > k.quota {
			l.s.t.Errorf("%s, key %d: %d used; want at least the %d answered and at most the %d sent and the quota %d",
				after, i, used, answered, sent, k.quota)
		}
		if entries < used {
			l.s.t.Errorf("%s, key %d: the history has %d entries, want at least the %d used", after, i, entries, used)
		}
		if settled && used != k.settled {
			l.s.t.Errorf("%s, key %d: %d used, want %d as before", after, i, used, k.settled)
		}
	}
	for _, path := range l.created {
		if status, b, err := l.s.call(http.MethodGet, path, nil); err != nil || status != 200 {
			l.s.t.Errorf("%s: %s was answered as created: got %d %s (%v)", after, path, status, b, err)
		}
	}
}
