package webhook_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/clocktest"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
	"github.com/limitkeeper/limitkeeper/webhook"
)

// env is an account with a running deliverer.
type env struct {
	t         testing.TB
	clock     *clocktest.Clock
	store     core.Store
	svc       *service.Service
	account   string
	deliverer *webhook.Deliverer
}

func newEnv(t testing.TB, configure ...func(*webhook.Options)) *env {
	t.Helper()
	e := &env{t: t, clock: clocktest.New(time.Date(2026, time.November, 28, 12, 0, 0, 0, time.UTC)), store: memstore.New()}
	e.svc = service.New(e.store, service.Config{Clock: e.clock.Wall})
	e.svc.Tune(service.Tunables{WebhookAllowPrivate: true})
	a, _, _, err := e.svc.CreateAccount(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	e.account = a.ID
	e.deliverer = startDeliverer(t, e.svc, e.store, configure...)
	return e
}

// startDeliverer starts a deliverer that may connect to loopback addresses. The end of the test stops it.
func startDeliverer(t testing.TB, svc *service.Service, store core.Store, configure ...func(*webhook.Options)) *webhook.Deliverer {
	o := webhook.Options{Service: svc, Store: store, Sender: webhook.NewSender("Limitkeeper/test", time.Second), Logger: slog.New(slog.DiscardHandler)}
	o.Sender.SetAllowPrivate(true)
	for _, f := range configure {
		f(&o)
	}
	d := webhook.New(o)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { d.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return d
}

// receiver is a server that records its requests. It verifies each request with the published library.
type receiver struct {
	*httptest.Server
	t testing.TB

	mu       sync.Mutex
	secrets  []string
	answer   func(w http.ResponseWriter, r *http.Request, id string)
	got      []string // the ids of the requests, in order
	accepted []string // those answered with 200
	bodies   map[string]string
}

func newReceiver(t testing.TB) *receiver {
	r := &receiver{t: t, bodies: map[string]string{}, answer: func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(http.StatusNoContent) }}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

// answers sets how the receiver answers.
func (r *receiver) answers(fn func(w http.ResponseWriter, req *http.Request, id string)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = fn
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	text, err := io.ReadAll(req.Body)
	if err != nil {
		r.t.Errorf("the body of a delivery: %v", err)
	}
	id := req.Header.Get("webhook-id")
	r.mu.Lock()
	for _, secret := range r.secrets {
		wh, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			r.t.Errorf("NewWebhook: %v", err)
		} else if err := wh.VerifyIgnoringTimestamp(text, req.Header); err != nil {
			r.t.Errorf("the delivery of %s: %v", id, err)
		}
	}
	if before, known := r.bodies[id]; known && before != string(text) {
		r.t.Errorf("the delivery of %s was repeated with another body:\n%s\n%s", id, before, text)
	}
	r.bodies[id] = string(text)
	r.got = append(r.got, id)
	answer := r.answer
	r.mu.Unlock()
	answer(&acceptRecorder{w, r, id}, req, id)
}

// acceptRecorder records an accepted request before its answer is sent: the next request may come at once.
type acceptRecorder struct {
	http.ResponseWriter
	r  *receiver
	id string
}

func (a *acceptRecorder) WriteHeader(status int) {
	if status >= 200 && status < 300 {
		a.r.mu.Lock()
		a.r.accepted = append(a.r.accepted, a.id)
		a.r.mu.Unlock()
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *acceptRecorder) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// ids returns the event ids of all requests, and of the accepted ones.
func (r *receiver) ids() (got, accepted []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got), slices.Clone(r.accepted)
}

// webhook creates a webhook with the URL of a receiver.
func (e *env) webhook(r *receiver, types ...string) *core.Webhook {
	e.t.Helper()
	p := core.WebhookPatch{URL: &r.URL}
	if types != nil {
		p.Events = core.Some(types)
	}
	w, err := e.svc.CreateWebhook(e.t.Context(), e.account, p)
	if err != nil {
		e.t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.secrets = append(r.secrets, string(w.Secrets[0].Value))
	return w
}

// event returns the i-th event of a subject. Its id is the subject and i.
func (e *env) event(subject string, i int) *core.Event {
	now := e.clock.Wall()
	return &core.Event{ID: fmt.Sprintf("%s-%d", subject, i), Type: core.EventThreshold, Subject: subject, At: now, Until: now.AddDate(0, 1, 0),
		Data: fmt.Appendf(nil, `{"threshold":%d}`, i)}
}

// put puts events of a subject, and returns their ids: the subject and a number from first to last.
func (e *env) put(subject string, first, last int) (ids []string) {
	e.t.Helper()
	var events []*core.Event
	for i := first; i <= last; i++ {
		events = append(events, e.event(subject, i))
		ids = append(ids, events[len(events)-1].ID)
	}
	if err := e.svc.PutEvents(e.t.Context(), e.account, events...); err != nil {
		e.t.Fatal(err)
	}
	return ids
}

// until waits until fn returns true. After each false, it advances the clock by step.
func (e *env) until(what string, step time.Duration, fn func() bool) {
	e.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !fn(); {
		if time.Now().After(deadline) {
			e.t.Fatalf("%s: not within 20 s", what)
		}
		if step > 0 {
			e.clock.Pass(step)
			e.deliverer.Wake()
		}
		time.Sleep(time.Millisecond)
	}
}

func (e *env) pending(w *core.Webhook) int {
	e.t.Helper()
	_, n, err := e.svc.PendingEvents(e.t.Context(), e.account, w.ID, 0, 1)
	if err != nil {
		e.t.Fatal(err)
	}
	return n
}

// stored returns the present state of the webhook.
func (e *env) stored(w *core.Webhook) *core.Webhook {
	e.t.Helper()
	now, err := e.svc.Webhook(e.t.Context(), e.account, w.ID)
	if err != nil {
		e.t.Fatal(err)
	}
	return now
}

// bySubject groups ids by their subject, and keeps their order.
func bySubject(ids []string) map[string][]string {
	by := map[string][]string{}
	for _, id := range ids {
		subject, _, _ := strings.Cut(id, "-")
		by[subject] = append(by[subject], id)
	}
	return by
}

// A receiver that was down for an hour gets every event once, in the order of its subject.
func TestDeliver(t *testing.T) {
	e := newEnv(t)
	r := newReceiver(t)
	w := e.webhook(r)
	down := true
	var mu sync.Mutex
	r.answers(func(w http.ResponseWriter, _ *http.Request, _ string) {
		mu.Lock()
		defer mu.Unlock()
		if down {
			panic(http.ErrAbortHandler) // as a receiver that crashes
		}
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, strings.Repeat("thanks ", 10_000))
	})
	want := map[string][]string{}
	for i := range 10 {
		subject := fmt.Sprintf("key_%d", i)
		want[subject] = e.put(subject, 1, 5)
	}
	began := e.clock.Wall()
	e.until("an hour has passed", time.Minute, func() bool { return e.clock.Wall().Sub(began) >= time.Hour })
	e.until("some attempts have failed", time.Second, func() bool { return e.deliverer.Stats().Failed > 10 })
	if _, accepted := r.ids(); len(accepted) > 0 || e.stored(w).FailingSince == nil {
		t.Fatalf("got %v accepted and failing since %v, want none, and a time", accepted, e.stored(w).FailingSince)
	}
	mu.Lock()
	down = false
	mu.Unlock()
	e.until("no event waits", time.Second, func() bool { return e.pending(w) == 0 })
	_, accepted := r.ids()
	got := bySubject(unique(accepted)) // an answer that comes too late repeats the request
	for subject, ids := range want {
		if !slices.Equal(got[subject], ids) {
			t.Errorf("events of %s: got %v, want %v", subject, got[subject], ids)
		}
	}
	if e.stored(w).FailingSince != nil {
		t.Error("the webhook still fails")
	}
	var body struct {
		Type      string
		Timestamp time.Time
		Data      map[string]int
	}
	if err := json.Unmarshal([]byte(r.bodies["key_3-2"]), &body); err != nil || body.Type != core.EventThreshold || !body.Timestamp.Equal(began) || body.Data["threshold"] != 2 {
		t.Errorf("body: got %s, %v", r.bodies["key_3-2"], err)
	}
}

// A redirect of any status is a failure, and is not followed. An answer that is not HTTP is a failure, too.
func TestRedirectAndGarbage(t *testing.T) {
	e := newEnv(t)
	other := newReceiver(t)
	r := newReceiver(t)
	w := e.webhook(r)
	statuses := []int{301, 302, 303, 307, 308, 404, 500, 0}
	r.answers(func(w http.ResponseWriter, _ *http.Request, _ string) {
		got, _ := r.ids()
		n := len(got) - 1
		if n >= len(statuses) {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		if statuses[n] != 0 {
			w.Header().Set("Location", other.URL)
			w.WriteHeader(statuses[n])
			return
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_, _ = io.WriteString(conn, "\x00 this is no HTTP\r\n\r\n"+strings.Repeat("x", 100))
			_ = conn.Close()
		}
	})
	e.put("key_1", 1, 1)
	e.until("the event is delivered", 10*time.Minute, func() bool { return e.pending(w) == 0 })
	if got, _ := other.ids(); len(got) > 0 {
		t.Errorf("the target of the redirects got %v", got)
	}
	log, n, err := e.svc.Attempts(t.Context(), e.account, w.ID, core.Page{Number: 1, Size: 100})
	if err != nil || n != len(statuses)+1 || len(log) != n {
		t.Fatalf("the log: got %d attempts, %v, want %d", n, err, len(statuses)+1)
	}
	for i, a := range log {
		status, attempt := append(slices.Clone(statuses), 202)[n-1-i], n-i
		if a.Status != status || a.Attempt != attempt || (a.Problem == "") != (i == 0) || a.EventID != "key_1-1" || a.GivenUp || a.NextTime.IsZero() != (i == 0) {
			t.Errorf("attempt %d: got %+v, want the status %d", attempt, a, status)
		}
	}
}

// A receiver that does not answer in time delays no other webhook, and gets the event again.
func TestSlowReceiver(t *testing.T) {
	e := newEnv(t)
	slow, quick := newReceiver(t), newReceiver(t)
	release := make(chan struct{})
	slow.answers(func(w http.ResponseWriter, r *http.Request, _ string) {
		select {
		case <-release:
			w.WriteHeader(http.StatusOK)
		case <-r.Context().Done():
		}
	})
	slowHook, quickHook := e.webhook(slow), e.webhook(quick)
	e.put("key_1", 1, 200)
	e.until("the quick receiver has all", 0, func() bool { return e.pending(quickHook) == 0 })
	if _, accepted := slow.ids(); len(accepted) > 0 {
		t.Errorf("the slow receiver has accepted %v", accepted)
	}
	close(release)
	e.until("the slow receiver has all", time.Second, func() bool { return e.pending(slowHook) == 0 })
	if _, accepted := slow.ids(); !slices.Equal(unique(accepted), e.put("key_1", 1, 200)) {
		t.Errorf("the slow receiver got %v", accepted)
	}
}

// An event whose delivery fails delays only the later events of its subject. After about 24 hours, the event is given up, and the later ones follow.
func TestOrder(t *testing.T) {
	e := newEnv(t)
	r := newReceiver(t)
	w := e.webhook(r)
	r.answers(func(w http.ResponseWriter, _ *http.Request, id string) {
		if id == "a-1" {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusOK)
	})
	e.put("a", 1, 2)
	e.put("b", 1, 3)
	e.until("the other subject is delivered", 100*time.Millisecond, func() bool { return e.pending(w) == 2 })
	_, accepted := r.ids()
	if want := []string{"b-1", "b-2", "b-3"}; !slices.Equal(unique(accepted), want) {
		t.Fatalf("got %v, want %v", accepted, want)
	}
	began, n := e.clock.Wall(), 3
	e.until("the first event is given up", 10*time.Minute, func() bool {
		if failed := int(e.deliverer.Stats().Failed); failed > n-3 { // a success of another subject keeps the webhook enabled
			n = failed + 3
			e.put("b", n, n)
		}
		return e.pending(w) == 0
	})
	if took := e.clock.Wall().Sub(began); took < 20*time.Hour {
		t.Errorf("the event was given up after %v, want about 24 hours", took)
	}
	_, accepted = r.ids()
	if slices.Contains(accepted, "a-1") || !slices.Contains(accepted, "a-2") || e.deliverer.Stats().GivenUp != 1 || e.stored(w).Inactive {
		t.Errorf("got %v, %+v, %+v", accepted, e.deliverer.Stats(), e.stored(w))
	}
}

// An answer of 410 disables the webhook at once. So do failures for a day. The webhook has the reason. After it is enabled, it gets only later events.
func TestDisable(t *testing.T) {
	for status, reason := range map[int]string{http.StatusGone: "410", http.StatusBadGateway: "24 hours"} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			e := newEnv(t)
			r := newReceiver(t)
			w := e.webhook(r)
			r.answers(func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(status) })
			e.put("a", 1, 3)
			began := e.clock.Wall()
			e.until("the webhook is disabled", 10*time.Minute, func() bool { return e.stored(w).Inactive })
			e.until("no event waits", 0, func() bool { return e.pending(w) == 0 })
			got := e.stored(w)
			if !strings.Contains(got.DisabledReason, reason) || got.DisabledAt == nil {
				t.Errorf("got the reason %q at %v, want one with %q", got.DisabledReason, got.DisabledAt, reason)
			}
			if took := got.DisabledAt.Sub(began); status == http.StatusGone && took > time.Hour || status != http.StatusGone && took < 24*time.Hour {
				t.Errorf("disabled after %v", took)
			}
			log, _, err := e.svc.Attempts(t.Context(), e.account, w.ID, core.Page{Number: 1, Size: 1})
			if err != nil || len(log) != 1 || !log[0].GivenUp || !log[0].NextTime.IsZero() {
				t.Errorf("the last attempt: got %+v, %v, want it given up", log, err)
			}
			e.put("a", 4, 4)
			r.answers(func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(http.StatusOK) })
			if _, err := e.svc.UpdateWebhook(t.Context(), e.account, w.ID, core.WebhookPatch{Active: new(true)}); err != nil {
				t.Fatal(err)
			}
			e.put("a", 5, 5)
			e.until("the next event is delivered", time.Second, func() bool { _, accepted := r.ids(); return len(accepted) > 0 })
			if _, accepted := r.ids(); !slices.Equal(accepted, []string{"a-5"}) || e.stored(w).DisabledReason != "" {
				t.Errorf("got %v, %q, want the event after enabling only, and no reason", accepted, e.stored(w).DisabledReason)
			}
		})
	}
}

// After a rotation, the old and the new secret both verify each delivery for 24 hours, then only the new one.
func TestRotate(t *testing.T) {
	e := newEnv(t)
	r := newReceiver(t)
	w := e.webhook(r)
	rotated, err := e.svc.RotateWebhook(t.Context(), e.account, w.ID)
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	r.secrets = append(r.secrets, string(rotated.Secrets[0].Value)) // each delivery must verify with both
	r.mu.Unlock()
	e.put("a", 1, 1)
	e.until("the event is delivered", 0, func() bool { return e.pending(w) == 0 })
	e.clock.Pass(core.WebhookRotation)
	r.mu.Lock()
	old := r.secrets[0]
	r.secrets = r.secrets[1:]
	r.mu.Unlock()
	r.answers(func(w http.ResponseWriter, req *http.Request, id string) {
		wh, err := standardwebhooks.NewWebhook(old)
		if err != nil || wh.VerifyIgnoringTimestamp([]byte(r.bodies[id]), req.Header) == nil {
			t.Errorf("the old secret verifies a delivery a day after the rotation (%v)", err)
		}
		w.WriteHeader(http.StatusOK)
	})
	e.put("a", 2, 2)
	e.until("the event is delivered", 0, func() bool { return e.pending(w) == 0 })
}

// A test is sent at once, and its result is in the log. It changes no failure, and a webhook that wants other events gets it, too.
func TestTest(t *testing.T) {
	e := newEnv(t)
	r := newReceiver(t)
	w := e.webhook(r, core.EventForecast)
	for _, status := range []int{200, 410, 500} {
		r.answers(func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(status) })
		a, err := e.deliverer.Test(t.Context(), e.account, w.ID)
		if err != nil || a.Status != status || (a.Problem == "") != (status == 200) || a.Type != core.EventTest {
			t.Errorf("got %+v, %v, want the status %d", a, err, status)
		}
	}
	if w := e.stored(w); w.Inactive || w.FailingSince != nil {
		t.Errorf("got %+v, want an active webhook without failures", w)
	}
	if log, n, err := e.svc.Attempts(t.Context(), e.account, w.ID, core.Page{Number: 1, Size: 2}); err != nil || n != 3 || log[0].Status != 500 || log[1].Status != 410 {
		t.Errorf("the log: got %+v of %d, %v", log, n, err)
	}
	if _, err := e.deliverer.Test(t.Context(), e.account, "wh_missing"); err == nil {
		t.Error("a missing webhook: got no error")
	}
}

// When too many events wait, the oldest are dropped and counted, and the log keeps the last 100 attempts.
func TestBounds(t *testing.T) {
	e := newEnv(t, func(o *webhook.Options) { o.MaxPending = 120 })
	r := newReceiver(t)
	w := e.webhook(r)
	r.answers(func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(http.StatusInternalServerError) })
	e.put("a", 1, 300)
	e.until("events are dropped", 0, func() bool { return e.stored(w).Dropped == 180 })
	r.answers(func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(http.StatusOK) })
	e.until("no event waits", time.Second, func() bool { return e.pending(w) == 0 })
	_, accepted := r.ids()
	if len(unique(accepted)) != 120 || accepted[0] != "a-181" {
		t.Errorf("got %d events from %s on, want 120 from a-181 on", len(accepted), accepted[0])
	}
	if _, n, err := e.svc.Attempts(t.Context(), e.account, w.ID, core.Page{Number: 1, Size: 100}); err != nil || n != core.MaxAttempts {
		t.Errorf("the log has %d attempts, %v, want %d", n, err, core.MaxAttempts)
	}
}

// An account forgets an event after its Until, and not before, and never while the event waits.
func TestSweep(t *testing.T) {
	e := newEnv(t)
	r := newReceiver(t)
	w := e.webhook(r)
	e.put("a", 1, 3) // remembered for a month
	e.until("no event waits", 0, func() bool { return e.pending(w) == 0 })
	r.answers(func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(http.StatusInternalServerError) })
	e.put("b", 1, 1)
	sweep := func() int {
		if _, err := e.svc.SweepEvents(t.Context(), e.account, 0, core.MaxEvents); err != nil {
			t.Fatal(err)
		}
		_, n, err := e.store.Events(t.Context(), e.account, core.EventFilter{}, 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := sweep(); n != 4 {
		t.Errorf("got %d events, want all 4", n)
	}
	e.clock.Pass(32 * 24 * time.Hour)
	if n := sweep(); n != 1 {
		t.Errorf("after a month: got %d events, want the one that waits", n)
	}
	if err := e.svc.DeleteWebhook(t.Context(), e.account, w.ID); err != nil {
		t.Fatal(err)
	}
	if n := sweep(); n != 0 {
		t.Errorf("after the webhook is deleted: got %d events, want none", n)
	}
}

// The sender connects only to public addresses, whether the URL has an address or a name. All failed connections have the same problem.
func TestPrivateAddresses(t *testing.T) {
	s := webhook.NewSender("Limitkeeper/test", time.Second)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	connected := make(chan struct{}, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
			connected <- struct{}{}
		}
	}()
	t.Setenv("HTTP_PROXY", "http://"+l.Addr().String())
	problems := map[string]bool{}
	for _, host := range []string{"127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "[::]", "127.1", "2130706433", "10.255.255.1", "169.254.169.254", "[64:ff9b::7f00:1]",
		"[2002:7f00:1::]", "[fd00::1]", "[fe80::1%25lo]", "224.0.0.1", "no-such-name.invalid"} {
		w := &core.Webhook{ID: "wh_1", URL: fmt.Sprintf("http://%s:%d/", host, port), Secrets: []core.WebhookSecret{{Value: "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"}}}
		r := s.Send(t.Context(), w, &core.Event{ID: "evt_1", Type: "x"}, time.Now())
		if r.Status != 0 || r.Problem == "" {
			t.Errorf("%s: got %+v, want a failure", host, r)
		}
		problems[r.Problem] = true
	}
	if len(problems) != 1 {
		t.Errorf("got the problems %v, want one text for all", problems)
	}
	select {
	case <-connected:
		t.Error("the sender has connected to a loopback address")
	default:
	}
}
