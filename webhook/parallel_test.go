package webhook_test

import (
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// A webhook gets two to four concurrent requests for different subjects. The events of one subject come in order. The delivery log has each attempt.
func TestParallel(t *testing.T) {
	e, r := newEnv(t, longTimeout), newReceiver(t)
	w := e.webhook(r)
	var requests requestCounter
	partner, end := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(end) })
	r.answers(func(w http.ResponseWriter, _ *http.Request, _ string) {
		requests.enter()
		defer requests.leave()
		select { // a request waits for a second one, for at most 100 ms: the last request may be alone
		case partner <- struct{}{}:
		case <-partner:
		case <-end:
		case <-time.After(100 * time.Millisecond):
		}
		w.WriteHeader(http.StatusNoContent)
	})
	want := map[string][]string{}
	for i := range core.MaxAttempts / 2 {
		subject := fmt.Sprint("key_", i)
		want[subject] = e.put(subject, 1, 2)
	}
	e.until("all is delivered", 0, func() bool { return e.pending(w) == 0 })
	_, accepted := r.ids()
	got := bySubject(accepted)
	for subject, ids := range want {
		if !slices.Equal(got[subject], ids) {
			t.Errorf("events of %s: got %v, want %v", subject, got[subject], ids)
		}
	}
	if n := requests.peakSoFar(); n < 2 || n > 4 {
		t.Errorf("got %d requests at once, want 2 to 4", n)
	}
	log, n, err := e.svc.Attempts(t.Context(), e.account, w.ID, core.Page{Number: 1, Size: core.MaxAttempts})
	if err != nil {
		t.Fatal(err)
	}
	logged := map[string]bool{}
	for _, a := range log {
		logged[a.EventID] = true
	}
	if n != core.MaxAttempts || len(logged) != n {
		t.Errorf("the log has %d attempts of %d events, want %d of as many", n, len(logged), core.MaxAttempts)
	}
}

// A receiver that is down gets one request at a time, whatever the number of subjects. 4 concurrent failures count as one. After a success, the receiver
// gets several requests at once.
func TestOneAtATimeWhileDown(t *testing.T) {
	e, r := newEnv(t, longTimeout), newReceiver(t)
	w := e.webhook(r)
	var requests, after requestCounter
	var n atomic.Int64
	var up atomic.Bool
	four, end := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(end) })
	r.answers(func(w http.ResponseWriter, _ *http.Request, _ string) {
		now := requests.enter()
		defer requests.leave()
		switch i := n.Add(1); {
		case up.Load():
			after.enter()
			defer after.leave()
			time.Sleep(5 * time.Millisecond)
			w.WriteHeader(http.StatusNoContent)
			return
		case i == 4:
			close(four)
		case i < 4:
			select {
			case <-four:
			case <-end:
			}
		case now > 1:
			t.Errorf("request %d: got %d at once", i, now)
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	for i := range 30 {
		e.put(fmt.Sprint("key_", i), 1, 5)
	}
	e.until("4 attempts have failed", 0, func() bool { return e.deliverer.Stats().Failed == 4 })
	e.clock.Pass(time.Second)
	e.deliverer.Wake()
	e.until("the next attempt fails", 0, func() bool { return e.deliverer.Stats().Failed == 5 })
	e.until("many attempts have failed", 10*time.Second, func() bool { return e.deliverer.Stats().Failed > 20 })
	up.Store(true)
	e.until("all is delivered", time.Second, func() bool { return e.pending(w) == 0 })
	if after.peakSoFar() < 2 {
		t.Errorf("got %d requests at once afterwards, want several", after.peakSoFar())
	}
}
