package caddymodule

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// The events of the store that the app emits to Caddy's app events. It also emits the events of accounts, see [core.Event].
const (
	eventStoreUnavailable = "limitkeeper.store_unavailable"
	eventStoreRecovered   = "limitkeeper.store_recovered"
)

// maxEvents is the number of events that wait for slow subscribers. Further ones are dropped. One transaction may disable
// tens of thousands of keys. A waiting event takes about 600 bytes.
const maxEvents = 100_000

// healthEvery is the interval at which a store is asked for its health.
const healthEvery = time.Second

// eventsDropped counts the events that no subscriber got.
var eventsDropped = newCounter("events_dropped_total", "Events that were dropped because a subscriber is slow and 100,000 events wait.")

// event is an event whose data is built when it is emitted: the name of an account may have to be read from the store.
type event struct {
	name string
	data func() map[string]any
}

// emitter emits the events of a store to the subscribers of one config.
type emitter struct {
	emit func(name string, data map[string]any)
	log  *zap.Logger
}

// run emits the events of a queue in the goroutine of the caller, until another emitter is the current one. A hanging
// subscriber delays run, and nothing else.
func (m *emitter) run(q *eventQueue) {
	for {
		e, ok := q.next(m)
		if !ok {
			return
		}
		m.emitOne(e)
	}
}

// emitOne emits an event. A panic of a subscriber is logged: it would end the process.
func (m *emitter) emitOne(e event) {
	defer func() {
		if v := recover(); v != nil {
			m.log.Error("a subscriber of an event panicked", zap.String("event", e.name),
				zap.String("error", secrets.MaskSecrets(fmt.Sprint(v))), zap.Stack("stack"))
		}
	}()
	m.emit(e.name, e.data())
}

// eventQueue has the events of a store that wait for the emitter of the config that applies.
type eventQueue struct {
	mu      sync.Mutex
	changed *sync.Cond // of mu: current or waiting has changed
	current *emitter   // nil while no config runs
	waiting []event
	full    bool // an event was dropped since waiting was empty

	running sync.WaitGroup // runs of emitters
}

func newEventQueue() *eventQueue {
	q := &eventQueue{}
	q.changed = sync.NewCond(&q.mu)
	return q
}

// next waits for an event and removes it from the queue. ok is false when m is not the current emitter.
func (q *eventQueue) next(m *emitter) (e event, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.current == m && len(q.waiting) == 0 {
		q.changed.Wait()
	}
	if q.current != m {
		return event{}, false
	}
	e, q.waiting[0] = q.waiting[0], event{}
	q.waiting = q.waiting[1:]
	if len(q.waiting) == 0 {
		q.waiting, q.full = nil, false
	}
	return e, true
}

// put queues an event, and reports whether there was room. It never waits for a subscriber.
func (q *eventQueue) put(e event) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.putLocked(e)
}

func (q *eventQueue) putLocked(e event) bool {
	if q.current == nil || len(q.waiting) == maxEvents {
		return false
	}
	q.waiting = append(q.waiting, e)
	q.changed.Broadcast()
	return true
}

// putOrDrop queues an event, or drops it. The first drop is logged, and the next one only after the queue was empty.
func (q *eventQueue) putOrDrop(e event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.putLocked(e) {
		return
	}
	eventsDropped.Inc()
	if q.current != nil && !q.full {
		q.full = true
		q.current.log.Error("a subscriber of events is slow: events are dropped until it has caught up", zap.String("event", e.name))
	}
}

// use makes an emitter the current one, which gets the waiting events. nil stands for no emitter.
func (q *eventQueue) use(m *emitter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.current = nil
	if m != nil {
		current := *m // a copy, so that an earlier run of m ends
		q.current = &current
		q.running.Go(func() { current.run(q) })
	}
	q.changed.Broadcast()
}

// maxSubscriber is how long close waits for a subscriber.
const maxSubscriber = 5 * time.Second

// close ends the emitters. A subscriber that hangs, which Caddy cannot stop either, keeps its goroutine.
func (q *eventQueue) close() {
	q.use(nil)
	done := make(chan struct{})
	go func() { q.running.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(maxSubscriber):
	}
}

// eventsTotal counts the events of accounts that this process has stored.
var eventsTotal = newCounterVec("events_total", "Events of accounts that this node has stored, by their type.", "type")

// happened queues an event of an account for Caddy's handlers, with its data and the name of the account.
func (l *live) happened(account string, e *core.Event) {
	eventsTotal.WithLabelValues(e.Type).Inc()
	l.events.putOrDrop(event{e.Type, func() map[string]any {
		d := json.NewDecoder(bytes.NewReader(e.Data))
		d.UseNumber() // a float64 would round large numbers
		data := map[string]any{}
		_ = d.Decode(&data) // core writes valid JSON
		data["account"] = l.names.name(account)
		return data
	}})
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
			data := map[string]any{"reason": reason(err)}
			if l.events.put(event{eventStoreUnavailable, func() map[string]any { return data }}) {
				since = time.Now()
			}
		case err == nil && !since.IsZero():
			data := map[string]any{"unavailable_seconds": time.Since(since).Round(time.Millisecond).Seconds()}
			if l.events.put(event{eventStoreRecovered, func() map[string]any { return data }}) {
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
