package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/limitkeeper/limitkeeper/apply"
	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

func init() { caddy.RegisterModule(new(subscriber)) }

// subscriber is the module events.handlers.limitkeeper_test: it notes events, and waits while its name is held.
type subscriber struct {
	Name string `json:"name"`
}

// subscribed is what all subscribers have got.
var subscribed struct {
	sync.Mutex
	events []string                 // the name of the subscriber, the event and its data
	hold   map[string]chan struct{} // subscribers that wait until the channel is closed
	panics string                   // the next event panics with it, unless it is empty
}

func (*subscriber) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "events.handlers.limitkeeper_test", New: func() caddy.Module { return new(subscriber) }}
}

func (u *subscriber) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	d.Args(&u.Name)
	return nil
}

func (u *subscriber) Handle(_ context.Context, e caddy.Event) error {
	origin := e.Origin().CaddyModule().ID
	if _, took := e.Data["unavailable_seconds"]; took {
		e.Data["unavailable_seconds"] = "n"
	}
	subscribed.Lock()
	subscribed.events = append(subscribed.events, fmt.Sprint(u.Name, " ", origin, " ", e.Name(), " ", e.Data))
	hold, panics := subscribed.hold[u.Name], subscribed.panics
	subscribed.panics = ""
	subscribed.Unlock()
	if panics != "" {
		panic(panics)
	}
	if hold != nil {
		<-hold
	}
	return nil
}

// subscribe returns the option that subscribes a name to all events of the app. It ends the options of the app.
func subscribe(t *testing.T, name string) string {
	subscribed.Lock()
	defer subscribed.Unlock()
	subscribed.events, subscribed.hold = nil, map[string]chan struct{}{}
	text := "\n}\nevents {\n"
	for _, event := range []string{eventStoreUnavailable, eventStoreRecovered, core.EventKeyDisabled, core.EventThreshold, core.EventExhausted} {
		text += "on " + event + " limitkeeper_test " + name + "\n"
	}
	return text
}

// wantEvents waits until subscribers have got the events, and fails if they get others.
func wantEvents(t *testing.T, want ...string) {
	t.Helper()
	got := func() string {
		subscribed.Lock()
		defer subscribed.Unlock()
		return strings.Join(subscribed.events, "\n")
	}
	all := strings.Join(want, "\n")
	caddytest.Eventually(t, "events:\n"+all, func() bool { return len(got()) >= len(all) })
	if got := got(); got != all {
		t.Fatalf("got the events\n%s\nwant\n%s", got, all)
	}
}

// keyEvent is a key_disabled as a subscriber notes it. key is nil for a user.
func keyEvent(name string, ten *caddytest.Tenant, key any, how core.DisabledHow) string {
	return fmt.Sprint(name, " limitkeeper ", core.EventKeyDisabled, " ",
		map[string]any{"account": "acme", "key_id": key, "user_id": ten.User.ID, "how": string(how)})
}

func storeEvent(name, reason string) string {
	if reason == "" {
		return name + " limitkeeper " + eventStoreRecovered + " map[unavailable_seconds:n]"
	}
	return name + " limitkeeper " + eventStoreUnavailable + " map[reason:" + reason + "]"
}

// The changes of a key by the REST API, by a file that is applied and by the service, which is what the dashboard and the
// commands use, and the loss of the data directory: a subscriber of Caddy's gets each once.
func TestEvents(t *testing.T) {
	s := newServer(t)
	s.Start("store badger %dir/data"+subscribe(t, "on"), caddytest.Both("respond ok"))
	ten := s.Tenant("acme", 100)
	auth := []string{"Authorization: Bearer " + ten.Owner, "X-Forwarded-Proto: https", "Content-Type: application/json"}
	put := func(path, body string) {
		if got := s.Send("PUT", APIBase+path, body, auth...); got.StatusCode != 200 {
			t.Fatalf("%s: got %d %s", path, got.StatusCode, got.Text)
		}
	}
	put("/keys/"+ten.Key.ID, `{"status":"inactive"}`)
	put("/keys/"+ten.Key.ID, `{"status":"inactive"}`)
	put("/keys/"+ten.Key.ID, `{"status":"active"}`)
	want := []string{keyEvent("on", ten, ten.Key.ID, core.HowInactive)}
	wantEvents(t, want...)

	_, err := s.Service().UpdateUser(t.Context(), ten.Account, ten.User.ID, core.UserPatch{Disabled: new(true)})
	s.Must(err)
	want = append(want, keyEvent("on", ten, nil, core.HowUserDisabled))
	wantEvents(t, want...)
	_, err = s.Service().UpdateUser(t.Context(), ten.Account, ten.User.ID, core.UserPatch{Disabled: new(false)})
	s.Must(err)
	s.Must(s.Service().DeleteKey(t.Context(), ten.Account, ten.Key.ID))
	want = append(want, keyEvent("on", ten, ten.Key.ID, core.HowDeleted))
	wantEvents(t, want...)

	file, err := apply.Parse([]byte("account: acme\nusers: []\n"))
	s.Must(err)
	_, err = apply.Run(t.Context(), s.Service(), file, apply.Options{Prune: true})
	s.Must(err)
	want = append(want, keyEvent("on", ten, nil, core.HowUserDeleted))
	wantEvents(t, want...)

	s.Must(os.RemoveAll(filepath.Join(s.Dir, "data")))
	want = append(want, storeEvent("on", "The store has failed, and the log says why"))
	wantEvents(t, want...)
}

// When Redis stops and comes back, the subscribers of the config that runs get each change of state once. A reload repeats
// no event, and the subscribers of the config before get none.
func TestEventsOfReload(t *testing.T) {
	redis := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	s := newServer(t)
	config := func(name string) {
		s.Start("store redis "+redis.Addr()+subscribe(t, name), caddytest.Both("respond ok"))
	}
	config("before")
	redis.Stop()
	wantEvents(t, storeEvent("before", "The store does not answer"))
	config("after")
	redis.Restart()
	wantEvents(t, storeEvent("after", ""))
	ten := s.Tenant("acme", 100)
	_, err := s.Service().UpdateKey(t.Context(), ten.Account, ten.Key.ID, core.KeyPatch{Status: new("inactive")})
	s.Must(err)
	wantEvents(t, storeEvent("after", ""), keyEvent("after", ten, ten.Key.ID, core.HowInactive))
}

// Requests reach the thresholds of the config: the subscribers of Caddy get each event once, with the name of the account. A reload
// applies other thresholds to the counters that are above them. The last events are stored when the server stops.
func TestEventsOfLimits(t *testing.T) {
	s := newServer(t)
	config := func(thresholds string) {
		s.Start("store badger %dir/data\nthresholds "+thresholds+subscribe(t, "on"), caddytest.Both("respond ok"))
	}
	config("80")
	ten := s.Tenant("acme", 10)
	use := func(n int) {
		for range n {
			s.Validate(ten.Owner, ten.Secret)
		}
	}
	event := func(name string, threshold, used int) string {
		return fmt.Sprint("on limitkeeper ", name, " ", map[string]any{"account": "acme", "user_id": ten.User.ID, "key_id": ten.Key.ID, "plan_id": ten.Plan.ID,
			"meter": "requests", "period": ten.Plan.Period.String(), "threshold": threshold, "used": used, "max": 10, "reset_time": ten.Plan.Period.Window(time.Now()).End.Format(time.RFC3339)})
	}
	use(8)
	want := event(core.EventThreshold, 80, 8)
	wantEvents(t, want)
	config("70 80") // the new subscribers have no earlier events
	caddytest.Eventually(t, "the threshold of the new config", func() bool {
		s.Must(s.Service().RankAccounts(t.Context())) // as every 10 seconds
		subscribed.Lock()
		defer subscribed.Unlock()
		return len(subscribed.events) > 0
	})
	want = event(core.EventThreshold, 70, 8)
	wantEvents(t, want)
	use(3)
	s.Must(caddy.Stop())
	config("70 80")
	open, err := RunningStore()
	s.Must(err)
	stored, _, err := open.Store.Events(t.Context(), ten.Account, core.EventFilter{}, 0, 100)
	s.Must(err)
	var got []string
	for _, e := range stored {
		if e.Type != core.EventForecast {
			got = append(got, e.Type)
		}
	}
	if all := strings.Join(got, " "); all != "limitkeeper.threshold limitkeeper.threshold limitkeeper.exhausted" {
		t.Errorf("the store has the events %s", all)
	}
}

// unsteady is a store that is unavailable while it says so.
type unsteady struct {
	core.Store
	down atomic.Bool
}

func (u *unsteady) Health(context.Context) error {
	if u.down.Load() {
		return core.Unavailable(errors.New("dial tcp 10.0.0.7:6379: password geheim"))
	}
	return nil
}

// A state of the store that lasts causes one event, however often it is seen. An event that finds no room comes later. A state
// before the first config causes its event when the config runs.
func TestEventsOfState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &unsteady{Store: memstore.New()}
		l := &live{service: service.New(store, service.Config{}), events: newEventQueue()}
		defer l.events.use(nil)
		emitted, hold := make(chan string, maxEvents), make(chan struct{})
		m := &emitter{log: zap.NewNop(), emit: func(name string, data map[string]any) {
			if strings.Contains(fmt.Sprint(data), "geheim") {
				t.Errorf("got the event %s %v", name, data)
			}
			switch name {
			case "hold":
				<-hold
			case "filler":
			default:
				emitted <- name
			}
		}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		store.down.Store(true)
		go l.watchHealth(ctx)
		time.Sleep(time.Minute)
		l.events.use(m)
		want := func(names ...string) {
			t.Helper()
			time.Sleep(time.Minute)
			for _, name := range names {
				select {
				case got := <-emitted:
					if got != name {
						t.Errorf("got the event %s, want %s", got, name)
					}
				default:
					t.Errorf("got no event, want %s", name)
				}
			}
			if n := len(emitted); n > 0 {
				t.Errorf("got %d more events: %s", n, <-emitted)
			}
		}
		noData := func() map[string]any { return nil }
		fill := func() {
			l.events.put(event{"hold", noData})
			time.Sleep(time.Millisecond) // m has taken it
			for l.events.put(event{"filler", noData}) {
				continue
			}
		}
		want(eventStoreUnavailable)
		want()
		fill()
		store.down.Store(false)
		want()
		hold <- struct{}{}
		want(eventStoreRecovered)
		fill()
		store.down.Store(true)
		want()
		store.down.Store(false)
		want()
		hold <- struct{}{}
		want()
	})
}

// One transaction that disables thousands of keys loses no event.
func TestEventsOfBatch(t *testing.T) {
	const keys = 5000
	s := newServer(t)
	s.Start("store memory batch"+subscribe(t, "on"), caddytest.Both("respond ok"))
	ten, svc := s.Tenant("acme", 100), s.Service()
	var want []string
	batch := func(fn func(*service.Transaction) error) { s.Must(svc.Transact(t.Context(), ten.Account, nil, fn)) }
	var ids []string
	batch(func(b *service.Transaction) error {
		for range keys {
			k, _, err := b.CreateKey(core.KeyPatch{Name: new("k"), UserID: &ten.User.ID, PlanID: core.Some(ten.Plan.ID)})
			s.Must(err)
			ids = append(ids, k.ID)
			want = append(want, keyEvent("on", ten, k.ID, core.HowDeleted))
		}
		return nil
	})
	batch(func(b *service.Transaction) error {
		for _, id := range ids {
			s.Must(b.DeleteKey(id))
		}
		return nil
	})
	wantEvents(t, want...)
}

// A subscriber that panics is logged without secrets, and gets the next event.
func TestEventsOfPanic(t *testing.T) {
	s := newServer(t)
	s.Start("store memory panic"+subscribe(t, "panics"), caddytest.Both("respond ok"))
	ten := s.Tenant("acme", 100)
	secret := ten.Secret
	subscribed.panics = "no handler for " + secret
	disable := func() string {
		k, _, err := s.Service().CreateKey(t.Context(), ten.Account, core.KeyPatch{Name: new("k"), UserID: &ten.User.ID, PlanID: core.Some(ten.Plan.ID)})
		s.Must(err)
		s.Must(s.Service().DeleteKey(t.Context(), ten.Account, k.ID))
		return keyEvent("panics", ten, k.ID, core.HowDeleted)
	}
	first := disable()
	wantEvents(t, first)
	s.WaitLog("a subscriber of an event panicked", 1)
	wantEvents(t, first, disable())
	if strings.Contains(s.Logged(), secret) {
		t.Error("a secret is in the log")
	}
}

// A subscriber that hangs makes no request and no reload wait. Events beyond the bound are dropped and counted. The next
// config gets the waiting events, and the config before gets none any more. When all has stopped no goroutine is left.
func TestEventsOfSlowSubscriber(t *testing.T) {
	const waiting = 500
	s := newServer(t)
	site := caddytest.Both("respond ok")
	s.Start("store memory a"+subscribe(t, "slow"), site)
	ten, svc := s.Tenant("acme", 100), s.Service()
	release := make(chan struct{})
	subscribed.hold["slow"] = release // no event has been emitted yet
	var keys []string
	s.Must(svc.Transact(t.Context(), ten.Account, nil, func(b *service.Transaction) error {
		for range waiting {
			k, _, err := b.CreateKey(core.KeyPatch{Name: new("k"), UserID: &ten.User.ID, PlanID: core.Some(ten.Plan.ID)})
			s.Must(err)
			keys = append(keys, k.ID)
		}
		return nil
	}))
	disable := func(id string) {
		_, err := svc.UpdateKey(t.Context(), ten.Account, id, core.KeyPatch{Status: new("inactive")})
		s.Must(err)
	}
	disable(ten.Key.ID)
	wantEvents(t, keyEvent("slow", ten, ten.Key.ID, core.HowInactive)) // and the subscriber hangs
	for _, id := range keys {
		disable(id)
	}

	options := "store memory a" + subscribe(t, "next")
	s.Start(options, site)
	want := make([]string, waiting)
	for i := range want {
		want[i] = keyEvent("next", ten, keys[i], core.HowInactive)
	}
	wantEvents(t, want...)
	close(release)
	s.Must(caddy.Stop())
	caddytest.Eventually(t, "the end of all goroutines", func() bool {
		var all strings.Builder
		s.Must(pprof.Lookup("goroutine").WriteTo(&all, 2))
		return !strings.Contains(all.String(), "emitter).run") && !strings.Contains(all.String(), "watchHealth")
	})
	wantEvents(t, want...)
}

// Events beyond the bound are dropped and counted. The log has one line until the subscriber has caught up.
func TestEventsAreDropped(t *testing.T) {
	const more = 10 // events that find no room
	logged, lines := observer.New(zapcore.ErrorLevel)
	hold, q := make(chan struct{}), newEventQueue()
	emitted := make(chan struct{}, maxEvents+more)
	q.use(&emitter{log: zap.New(logged), emit: func(string, map[string]any) { <-hold; emitted <- struct{}{} }})
	defer q.use(nil)
	e := event{"e", func() map[string]any { return nil }}
	registry := prometheus.NewRegistry()
	registry.MustRegister(eventsDropped)
	dropped := func() int {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		return int(families[0].Metric[0].Counter.GetValue())
	}
	for round := 1; round <= 2; round++ {
		before := dropped()
		q.putOrDrop(e)
		caddytest.Eventually(t, "the subscriber to hang", func() bool {
			q.mu.Lock()
			defer q.mu.Unlock()
			return len(q.waiting) == 0
		})
		for range maxEvents + more - 1 {
			q.putOrDrop(e)
		}
		hold <- struct{}{} // makes room for one event
		<-emitted
		caddytest.Eventually(t, "room", func() bool { return q.put(e) })
		q.putOrDrop(e)
		if n := dropped() - before; n != more {
			t.Errorf("round %d: got %d dropped events, want %d", round, n, more)
		}
		if n := lines.Len(); n != round {
			t.Errorf("round %d: got %d lines, want %d", round, n, round)
		}
		for range maxEvents + 1 {
			hold <- struct{}{}
			<-emitted
		}
	}
}
