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

// atOnce counts the requests that a receiver has at once.
type atOnce struct {
	mu        sync.Mutex // guards the members below
	now, most int
}

// enter counts a request, and returns how many requests there are now.
func (a *atOnce) enter() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now++
	a.most = max(a.most, a.now)
	return a.now
}

func (a *atOnce) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now--
}

// max returns the largest number of requests at once so far.
func (a *atOnce) max() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.most
}

// patient is an option of a deliverer that waits for each answer.
func patient(o *webhook.Options) {
	o.Sender = webhook.NewSender("Limitkeeper/test", 10*time.Minute)
	o.Sender.SetAllowPrivate(true)
}

// hanging starts a receiver that does not answer before the test ends.
func hanging(t *testing.T) (url string, requests *atOnce) {
	end := make(chan struct{})
	requests = &atOnce{}
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

// webhookTo makes a webhook to a URL in an account.
func (e *env) webhookTo(account, url string) {
	e.t.Helper()
	if _, err := e.svc.CreateWebhook(e.t.Context(), account, core.WebhookPatch{URL: &url}); err != nil {
		e.t.Fatal(err)
	}
}

// An account with as many webhooks as it may have, of which one receiver answers: it gets all its events, and each of the others one request.
func TestSlowReceiversOfAnAccount(t *testing.T) {
	e, quick := newEnv(t, patient), newReceiver(t)
	url, requests := hanging(t)
	for range core.MaxWebhooks - 1 {
		e.webhookTo(e.account, url)
	}
	w := e.webhook(quick)
	for i := range 10 {
		e.put(fmt.Sprint("key_", i), 1, 10)
	}
	e.until("the quick receiver has all", 0, func() bool { return e.pending(w) == 0 })
	e.until("each of the others has a request", 0, func() bool { return requests.max() >= core.MaxWebhooks-1 })
	if n := requests.max(); n > core.MaxWebhooks+2 { // a webhook may begin 4 before the others begin theirs
		t.Errorf("got %d requests at once to slow receivers, want about one for each", n)
	}
}

// Webhooks with many events of different subjects, whose receivers do not answer, leave room for another webhook of the account.
func TestSlowReceiverOfManySubjects(t *testing.T) {
	e, quick := newEnv(t, patient), newReceiver(t)
	url, requests := hanging(t)
	for range 3 {
		e.webhookTo(e.account, url)
	}
	for i := range 10 {
		e.put(fmt.Sprint("key_", i), 1, 10)
	}
	e.until("one webhook has 2 requests", 0, func() bool { return requests.max() > 3 })
	w := e.webhook(quick)
	for i := range 10 {
		e.put(fmt.Sprint("user_", i), 1, 10)
	}
	e.until("the quick receiver has all", 0, func() bool { return e.pending(w) == 0 })
	if n := requests.max(); n > 7 {
		t.Errorf("got %d requests at once to slow receivers, want at most 7", n)
	}
}

// Accounts with many events of different subjects, whose receivers do not answer, leave room for another account.
func TestManySlowAccounts(t *testing.T) {
	e, quick := newEnv(t, patient), newReceiver(t)
	url, requests := hanging(t)
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
	e.until("the slow accounts have many requests", 0, func() bool { return requests.max() >= 256 })
	e.account = own
	w := e.webhook(quick)
	for i := range 10 {
		e.put(fmt.Sprint("user_", i), 1, 10)
	}
	e.until("the quick receiver has all", 0, func() bool { return e.pending(w) == 0 })
}
