package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// Redis fails over to its replica while two nodes write events of limits, of keys and of the test, and one node delivers them. The receiver gets each event of the log,
// in the order of its subject, and each repetition has the same body. Afterwards one node delivers. With wait_replicas, the log has each event whose write was acknowledged,
// and the receiver gets no other event. The replica lacks the last writes.
func TestFailover(t *testing.T) {
	wait := redisstore.Wait{Replicas: 1, Timeout: 100 * time.Millisecond}
	for name, test := range map[string]struct {
		wait   redisstore.Wait
		cutOff bool // the replica
	}{
		"replica up to date":                    {wait, false},
		"replica cut off":                       {wait, true},
		"replica cut off without wait_replicas": {redisstore.Wait{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sentinel := redistest.StartSentinel(t)
			nodes, _ := startNodes(t, redisstore.Options{Addresses: sentinel.Addrs(), Sentinel: sentinel.Name(), Wait: test.wait})
			r := newReceiver(t)
			w := nodes[0].webhook(r, core.EventThreshold, core.EventExhausted, core.EventKeyCreated)
			f := startTraffic(t, nodes)
			f.await("events before the failover", func() bool { return f.fewest() >= 20 })
			master, replica := sentinel.Servers()[0], sentinel.Servers()[1]
			if test.cutOff {
				f.pause(func() {
					f.awaitDelivery(w) // so that the next event would be sent at once
					replica.Pause()
					master.Do(t, "CLIENT", "KILL", "TYPE", "replica") // otherwise the replica later reads what its socket has
				})
				before := f.ended.Load()
				f.await("calls without the replica", func() bool { return f.ended.Load() >= before+50 })
			}
			master.Kill()
			replica.Resume()
			sentinel.AwaitFailover(t, master)
			host, port, _ := net.SplitHostPort(replica.Addr())
			redistest.Start(t, "--replicaof", host, port)
			before := f.fewest()
			f.await("events after the failover", func() bool { return f.fewest() >= before+20 })
			f.stop()
			f.awaitDelivery(w)
			f.check(r, test.wait.Replicas > 0)
			f.awaitOneDeliverer(w)
			got, _ := r.ids()
			t.Logf("%d calls, of which %d have failed; the receiver got %d requests for %d events", f.ended.Load(), f.failed.Load(), len(got), len(unique(got)))
		})
	}
}

// traffic writes events on two nodes, and notes the events whose write was acknowledged.
type traffic struct {
	t       *testing.T
	nodes   []*env
	user    int64
	plan    string
	running context.Context
	stop    func()

	ended, failed atomic.Int64 // calls
	gate          sync.RWMutex // while it is locked, no call begins

	mu    sync.Mutex // guards noted
	noted map[string][]string
}

func startTraffic(t *testing.T, nodes []*env) *traffic {
	t.Helper()
	n := nodes[0]
	plan, err := n.svc.CreatePlan(t.Context(), n.account, core.PlanPatch{Name: new("plan"), Limit: core.Some(int64(10)), Period: new("year")})
	if err != nil {
		t.Fatal(err)
	}
	user, err := n.svc.CreateUser(t.Context(), n.account, core.UserPatch{Name: new("user"), PlanID: core.Some(plan.ID)})
	if err != nil {
		t.Fatal(err)
	}
	f := &traffic{t: t, nodes: nodes, user: user.ID, plan: plan.ID, noted: map[string][]string{}}
	var done sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	f.running, f.stop = ctx, func() { cancel(); done.Wait() }
	t.Cleanup(f.stop)
	for _, subject := range []string{"a", "b", "c"} {
		done.Go(func() { f.put(subject) })
	}
	for _, n := range nodes {
		done.Go(func() { f.use(n) })
	}
	return f
}

// put puts the events of a subject, one after another. It repeats each one, on the other node, until it succeeds.
func (f *traffic) put(subject string) {
	for i := 1; ; i++ {
		e, used := f.nodes[0].event(subject, i), 0
		if !f.repeat(f.nodes, func(n *env) error {
			used++ // as that of a limit, which grows until its event is stored
			e.Data = fmt.Appendf(nil, `{"threshold":%d,"used":%d}`, i, used)
			return n.svc.PutEvents(context.Background(), n.account, e)
		}) {
			return
		}
		f.note(subject, e.ID)
	}
}

// use makes keys on a node, and uses up the limit of each one in two requests. The first one reaches 80 per cent.
func (f *traffic) use(n *env) {
	ctx, node := context.Background(), []*env{n}
	for f.running.Err() == nil {
		key, secret, err := n.svc.CreateKey(ctx, n.account, core.KeyPatch{Name: new("key"), UserID: &f.user, PlanID: core.Some(f.plan)})
		if f.end(err); err != nil {
			continue
		}
		f.note(key.ID, core.EventKeyCreated)
		request := func(cost int64, id string) bool {
			return f.repeat(node, func(n *env) error {
				_, err := n.svc.Validate(ctx, n.account, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: cost, RequestID: id})
				return err
			})
		}
		if !request(8, "first") {
			return
		}
		f.end(n.svc.FlushEvents(ctx)) // a failure leaves the events to the next call
		if !request(2, "second") || !f.repeat(node, func(n *env) error { return n.svc.KeepRankings(ctx) }) || !f.repeat(node, func(n *env) error { return n.svc.FlushEvents(ctx) }) {
			return
		}
		f.note(key.ID, core.EventThreshold, core.EventThreshold, core.EventExhausted)
	}
}

// repeat calls fn until it succeeds, each time with the next node. It returns false if the traffic ends before.
func (f *traffic) repeat(nodes []*env, fn func(*env) error) bool {
	for i := 0; f.running.Err() == nil; i++ {
		err := fn(nodes[i%len(nodes)])
		if f.end(err); err == nil {
			return true
		}
	}
	return false
}

// end counts a call that has ended, and waits until another one may begin.
func (f *traffic) end(err error) {
	f.ended.Add(1)
	if err != nil {
		f.failed.Add(1)
		if !errors.Is(err, core.ErrUnavailable) {
			f.t.Errorf("got %v, want ErrUnavailable", err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	f.gate.RLock()
	defer f.gate.RUnlock()
}

// pause calls fn while no call begins.
func (f *traffic) pause(fn func()) {
	f.gate.Lock()
	defer f.gate.Unlock()
	fn()
}

// note notes events of a subject: the types of the events of a key, the ids of others.
func (f *traffic) note(subject string, events ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.noted[subject] = append(f.noted[subject], events...)
}

// fewest returns the least number of noted events: of a subject that put writes, or of all keys.
func (f *traffic) fewest() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	keys := 0
	for subject, events := range f.noted {
		if strings.HasPrefix(subject, "key_") {
			keys += len(events)
		}
	}
	return min(len(f.noted["a"]), len(f.noted["b"]), len(f.noted["c"]), keys)
}

func (f *traffic) await(what string, fn func() bool) {
	f.t.Helper()
	f.nodes[0].until(what, 0, fn)
}

// awaitDelivery waits until no event waits for a webhook. A node may still fail after the other one has found the new master.
func (f *traffic) awaitDelivery(w *core.Webhook) {
	f.t.Helper()
	f.await("all is delivered", func() bool {
		_, n, err := f.nodes[0].svc.PendingEvents(f.t.Context(), w.AccountID, w.ID, 0, 0)
		return err == nil && n == 0
	})
}

// awaitOneDeliverer puts events until one node delivers them: after a failover, two nodes may have the lease until the next renewal.
func (f *traffic) awaitOneDeliverer(w *core.Webhook) {
	f.t.Helper()
	first, second := f.nodes[0], f.nodes[1]
	n := 0
	f.await("one node delivers", func() bool {
		before, beforeSecond := first.deliverer.Stats().Delivered, second.deliverer.Stats().Delivered
		var events []*core.Event
		for range 10 {
			n++
			events = append(events, first.event("last", n))
		}
		if first.svc.PutEvents(f.t.Context(), w.AccountID, events...) != nil {
			return false
		}
		f.awaitDelivery(w)
		return first.deliverer.Stats().Delivered == before || second.deliverer.Stats().Delivered == beforeSecond
	})
}

// check compares the events that the receiver got with the log of the account. With waits, it also compares the log with the events that were noted.
func (f *traffic) check(r *receiver, waits bool) {
	f.t.Helper()
	log, _, err := f.nodes[0].store.Events(f.t.Context(), f.nodes[0].account, core.EventFilter{}, 0, 1_000_000)
	if err != nil {
		f.t.Fatal(err)
	}
	logged, noted, received := map[string][]string{}, map[string][]string{}, map[string][]string{}
	subjects := map[string]string{} // by event
	for _, e := range log {
		if e.Type == core.EventForecast { // no webhook wants it
			continue
		}
		subjects[e.ID], logged[e.Subject] = e.Subject, append(logged[e.Subject], e.ID)
		if strings.HasPrefix(e.Subject, "key_") {
			noted[e.Subject] = append(noted[e.Subject], e.Type)
		} else {
			noted[e.Subject] = append(noted[e.Subject], e.ID)
		}
	}
	got, _ := r.ids()
	for _, id := range unique(got) {
		subject, isLogged := subjects[id]
		if isLogged {
			received[subject] = append(received[subject], id)
		} else if waits {
			f.t.Errorf("the receiver got an event that is not in the log: %s", id)
		}
	}
	if diff := cmp.Diff(logged, received); diff != "" {
		f.t.Errorf("the receiver (-want +got)\n%s", diff)
	}
	for subject, want := range f.noted {
		if has := noted[subject]; waits && !slices.Equal(has[:min(len(has), len(want))], want) {
			f.t.Errorf("%s: the log has %v, want %v first", subject, has, want)
		}
	}
}
