package webhook_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/webhook"
)

// requestCounter counts the concurrent requests of a receiver.
type requestCounter struct {
	mu        sync.Mutex // guards the members below
	now, peak int
}

// enter adds a request, and returns the present number of requests.
func (c *requestCounter) enter() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now++
	c.peak = max(c.peak, c.now)
	return c.now
}

func (c *requestCounter) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now--
}

// peakSoFar returns the largest number of concurrent requests so far.
func (c *requestCounter) peakSoFar() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peak
}

// longTimeout gives a deliverer a timeout that no request of a test reaches.
func longTimeout(o *webhook.Options) {
	o.Sender = webhook.NewSender("Limitkeeper/test", 10*time.Minute)
	o.Sender.SetAllowPrivate(true)
}

// newHangingReceiver starts a receiver that does not answer before the test ends.
func newHangingReceiver(t *testing.T) (url string, requests *requestCounter) {
	end := make(chan struct{})
	requests = &requestCounter{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.enter()
		defer requests.leave()
		select {
		case <-end:
		case <-r.Context().Done():
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(end) })
	return s.URL, requests
}

// webhookTo creates a webhook with a URL in an account.
func (e *env) webhookTo(account, url string) {
	e.t.Helper()
	if _, err := e.svc.CreateWebhook(e.t.Context(), account, core.WebhookPatch{URL: &url}); err != nil {
		e.t.Fatal(err)
	}
}

// An account has the maximum number of webhooks, and only one receiver answers. This receiver gets all its events, and each of the others one request.
func TestSlowReceiversOfAnAccount(t *testing.T) {
	e, quick := newEnv(t, longTimeout), newReceiver(t)
	url, requests := newHangingReceiver(t)
	for range core.MaxWebhooks - 1 {
		e.webhookTo(e.account, url)
	}
	w := e.webhook(quick)
	for i := range 10 {
		e.put(fmt.Sprint("key_", i), 1, 10)
	}
	e.until("the quick receiver has all", 0, func() bool { return e.pending(w) == 0 })
	e.until("each of the others has a request", 0, func() bool { return requests.peakSoFar() >= core.MaxWebhooks-1 })
	if n := requests.peakSoFar(); n > core.MaxWebhooks+2 { // the first webhook may start up to 4 before the others start theirs
		t.Errorf("got %d requests at once to slow receivers, want about one for each", n)
	}
}

// Webhooks whose receivers do not answer leave room for another webhook of the account, however many subjects their events have.
func TestSlowReceiverOfManySubjects(t *testing.T) {
	e, quick := newEnv(t, longTimeout), newReceiver(t)
	url, requests := newHangingReceiver(t)
	for range 3 {
		e.webhookTo(e.account, url)
	}
	for i := range 10 {
		e.put(fmt.Sprint("key_", i), 1, 10)
	}
	e.until("one webhook has 2 requests", 0, func() bool { return requests.peakSoFar() > 3 })
	w := e.webhook(quick)
	for i := range 10 {
		e.put(fmt.Sprint("user_", i), 1, 10)
	}
	e.until("the quick receiver has all", 0, func() bool { return e.pending(w) == 0 })
	if n := requests.peakSoFar(); n > 7 {
		t.Errorf("got %d requests at once to slow receivers, want at most 7", n)
	}
}

// Accounts whose receivers do not answer leave room for another account, however many events they have.
func TestManySlowAccounts(t *testing.T) {
	e, quick := newEnv(t, longTimeout), newReceiver(t)
	url, requests := newHangingReceiver(t)
	own := e.account
	for i := range 150 {
		a, _, _, err := e.svc.CreateAccount(t.Context(), fmt.Sprint("slow_", i))
		if err != nil {
			t.Fatal(err)
		}
		e.account = a.ID
		e.webhookTo(a.ID, url)
		for j := range 5 {
			e.put(fmt.Sprint("key_", j), 1, 1)
		}
	}
	e.until("the slow accounts have many requests", 0, func() bool { return requests.peakSoFar() >= 256 })
	e.account = own
	w := e.webhook(quick)
	for i := range 10 {
		e.put(fmt.Sprint("user_", i), 1, 10)
	}
	e.until("the quick receiver has all", 0, func() bool { return e.pending(w) == 0 })
}
