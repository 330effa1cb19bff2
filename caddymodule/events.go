package caddymodule

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/limitkeeper/limitkeeper/core"
)

// The events that the app emits to Caddy's app events.
const (
	eventStoreUnavailable = "limitkeeper.store_unavailable"
	eventStoreRecovered   = "limitkeeper.store_recovered"
	eventKeyDisabled      = "limitkeeper.key_disabled"
)

// maxEvents is the number of events that wait for slow subscribers. Further ones are dropped.
const maxEvents = 1000

// healthEvery is the interval at which a store is asked for its health.
const healthEvery = time.Second

// eventsDropped counts the events that no subscriber got.
var eventsDropped = prometheus.NewCounter(prometheus.CounterOpts{Namespace: "limitkeeper", Name: "events_dropped_total",
	Help: "Events that were dropped because a subscriber is slow and 1000 events wait."})

// event is an event with its data.
type event struct {
	name string
	data map[string]any
}

// emitter emits the events of a store to the subscribers of one config, in a goroutine of its own: Caddy runs subscribers
// in the goroutine that emits.
type emitter struct {
	emit  func(event)
	log   *zap.Logger
	queue chan event
	done  chan struct{} // closed by stop

	full bool // an event was dropped since the last one that had room; guarded by eventQueue.mu
}

// newEmitter returns an emitter to the subscribers of a config. It is idle until run.
func newEmitter(ctx caddy.Context, app *caddyevents.App, log *zap.Logger) *emitter {
	return &emitter{emit: func(e event) { app.Emit(ctx, e.name, e.data) }, log: log,
		queue: make(chan event, maxEvents), done: make(chan struct{})}
}

// run emits events until stop. An event whose subscribers run at that time is their last one.
func (m *emitter) run() {
	for {
		select {
		case <-m.done:
			return
		case e := <-m.queue:
			select {
			case <-m.done:
				return
			default:
			}
			m.emit(e)
		}
	}
}

// stop ends run. It does not wait for subscribers.
func (m *emitter) stop() { close(m.done) }

// eventQueue takes the events of a store for the emitter of the config that applies.
type eventQueue struct {
	mu      sync.Mutex
	current *emitter // nil while no config runs
}

// put queues an event, and reports whether there was room. It never waits for a subscriber.
func (q *eventQueue) put(e event) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.current == nil {
		return false
	}
	select {
	case q.current.queue <- e:
		q.current.full = false
		return true
	default:
		return false
	}
}

// putOrDrop queues an event, or drops it. The first of consecutive drops is logged.
func (q *eventQueue) putOrDrop(e event) {
	if q.put(e) {
		return
	}
	eventsDropped.Inc()
	q.mu.Lock()
	defer q.mu.Unlock()
	if m := q.current; m != nil && !m.full {
		m.full = true
		m.log.Error("a subscriber of events is slow: events are dropped until it has caught up", zap.String("event", e.name))
	}
}

// use makes an emitter the current one, and moves the waiting events to it. nil stands for no emitter.
func (q *eventQueue) use(m *emitter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	before := q.current
	q.current = m
	if before == nil || m == nil || before == m {
		return
	}
	for {
		select {
		case e := <-before.queue:
			m.queue <- e // as large as the queue before, and empty
		default:
			return
		}
	}
}

// keyDisabled queues the event for a key or user.
func (l *live) keyDisabled(d core.KeyDisabled) {
	data := map[string]any{"account": l.names.name(d.Account), "key_id": nil, "user_id": d.UserID, "how": string(d.How)}
	if d.KeyID != "" {
		data["key_id"] = d.KeyID
	}
	l.events.putOrDrop(event{eventKeyDisabled, data})
}

// watchHealth queues an event when the store becomes unavailable and when it has recovered, until ctx ends. An event that
// finds no room is queued later, if the state is still the same.
func (l *live) watchHealth(ctx context.Context) {
	tick := time.NewTicker(healthEvery)
	defer tick.Stop()
	var since time.Time // of the failure that was reported; zero while the store is available
	for {
		err := l.service.Health(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && since.IsZero():
			if l.events.put(event{eventStoreUnavailable, map[string]any{"reason": reason(err)}}) {
				since = time.Now()
			}
		case err == nil && !since.IsZero():
			seconds := time.Since(since).Round(time.Millisecond).Seconds()
			if l.events.put(event{eventStoreRecovered, map[string]any{"unavailable_seconds": seconds}}) {
				since = time.Time{}
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// reason returns the public text of the error of an unavailable store.
func reason(err error) string {
	e, ok := errors.AsType[*core.Error](err)
	if !ok || e.Message == core.ErrUnavailable.Message {
		return "The store does not answer"
	}
	return e.Message
}
