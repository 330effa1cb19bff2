package webhook_test

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"
)

// The slow receivers of one account get at most 8 requests at once: they leave room for other accounts. Each gets its event.
func TestSlowReceiversOfAnAccount(t *testing.T) {
	e, r := newEnv(t), newReceiver(t)
	var now, most atomic.Int64
	r.answers(func(w http.ResponseWriter, _ *http.Request, _ string) {
		n := now.Add(1)
		defer now.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
			continue
		}
		time.Sleep(50 * time.Millisecond)
		w.WriteHeader(http.StatusNoContent)
	})
	const webhooks = 20
	for range webhooks {
		e.webhook(r)
		r.mu.Lock()
		r.secrets = nil // each webhook has another one
		r.mu.Unlock()
	}
	e.put("key_1", 1, 1)
	e.until("all deliveries", 0, func() bool { _, accepted := r.ids(); return len(accepted) == webhooks })
	if n := most.Load(); n < 2 || n > 8 {
		t.Errorf("got %d requests at once, want 2 to 8", n)
	}
}
