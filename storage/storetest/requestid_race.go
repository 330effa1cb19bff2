package storetest

import (
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var requestIDRaceCases = []testCase{
	{name: "request id/at once", run: requestIDAtOnce,
		promise: "of concurrent requests with one id one counts, and all get its answer"},
	{name: "request id/at once with a quota", run: requestIDAtOnceWithQuota,
		promise: "of concurrent requests with many ids, the allowed ids fill the limit exactly, and requests with the same id get the same answer"},
	{name: "request id/with other ids", run: requestIDMeanwhile,
		promise: "a repeat gets the answer that the first request got, also while other requests count"},
	{name: "request id/during close", run: requestIDBesideClose, own: true,
		promise: "a count and its id are stored in one step: an answered request is remembered after reopening; any other can be repeated and counts once"},
}

// resultsByID holds the results of concurrent requests, by id.
type resultsByID struct {
	mu      sync.Mutex
	firsts  map[string]int // results that were no repeats
	answers map[string]core.ConsumeResult
}

func newTwins() *resultsByID {
	return &resultsByID{firsts: map[string]int{}, answers: map[string]core.ConsumeResult{}}
}

// add stores a result, and fails if another result of the same id differs.
func (w *resultsByID) add(e *env, c *core.Consumption, v core.ConsumeResult) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v.Allowed && v.FirstTerms == nil {
		w.firsts[c.RequestID]++
	}
	if v.FirstTerms != nil && !reflect.DeepEqual(*v.FirstTerms, c.Terms) {
		e.Errorf("first answer to %q: got it under %+v, want %+v", c.RequestID, *v.FirstTerms, c.Terms)
	}
	v.FirstTerms = nil
	before, known := w.answers[c.RequestID]
	if !known {
		w.answers[c.RequestID] = v
	} else if !reflect.DeepEqual(before, v) {
		e.Errorf("answers to %q: got %+v and %+v, want the same", c.RequestID, before, v)
	}
}

// wantFirsts fails unless each allowed id was counted once, and the number of allowed ids is right.
func (w *resultsByID) wantFirsts(e *env, want int) {
	e.Helper()
	allowed := 0
	for id, v := range w.answers {
		if v.Allowed {
			allowed++
		}
		if n := w.firsts[id]; v.Allowed != (n == 1) {
			e.Errorf("%q: got allowed %t and %d counts, want one when it is allowed", id, v.Allowed, n)
		}
	}
	if allowed != want {
		e.Errorf("ids that were allowed: got %d, want %d", allowed, want)
	}
}

// consume makes n requests by each of the callers at once, all the same requests in the same order.
func (w *resultsByID) consume(e *env, callers, n int, request func(n int) core.Consumption) {
	e.parallel(callers, func(int) {
		for i := range n {
			c := request(i)
			v, err := e.Store.Consume(e.ctx, &c)
			if err != nil {
				e.Errorf("Consume: %v", err)
				return
			}
			w.add(e, &c, v)
		}
	})
}

func requestIDAtOnce(e *env) {
	const callers, n = 32, 40
	keys := e.user1("key_1", "key_2")
	shared := keys[1]
	shared.PlanID = ""
	e.put(shared)
	for _, k := range keys {
		w := newTwins()
		consume := func(i int) core.Consumption { return withRequestID(request(k, noon), fmt.Sprintf("%d", i)) }
		w.consume(e, callers, n, consume)
		w.wantFirsts(e, n)
		check := func() {
			e.Helper()
			e.wantUsed(keyCounter(k), core.Month, noon, n)
			if got := e.historyTotal(keyCounter(k)); got != n {
				e.Errorf("history: got %d entries, want %d", got, n)
			}
		}
		check()
		e.reopen()
		w.consume(e, 1, n, consume)
		check()
	}
}

func requestIDAtOnceWithQuota(e *env) {
	const callers, n, quota = 32, 40, 15
	k := e.user1("key_1")[0]
	w := newTwins()
	e.parallel(callers, func(caller int) {
		for i := range n {
			c := withRequestID(limit(request(k, noon), core.Month, quota), fmt.Sprintf("%d", (i+caller%4*10)%n))
			v, err := e.Store.Consume(e.ctx, &c)
			if err != nil {
				e.Errorf("Consume: %v", err)
				return
			}
			w.add(e, &c, v)
		}
	})
	w.wantFirsts(e, quota)
	e.wantUsed(keyCounter(k), core.Month, noon, quota)
}

func requestIDMeanwhile(e *env) {
	const callers, n = 16, 30
	k := e.user1("key_1")[0]
	w := newTwins()
	e.parallel(callers, func(caller int) {
		for i := range n {
			other := request(k, noon)
			c := withRequestID(request(k, noon.Add(time.Duration(i)*time.Second)), fmt.Sprintf("%d", i))
			for _, c := range []core.Consumption{c, other, c} {
				v, err := e.Store.Consume(e.ctx, &c)
				if err != nil {
					e.Errorf("Consume: %v", err)
					return
				}
				if c.RequestID != "" {
					w.add(e, &c, v)
				}
			}
		}
	})
	w.wantFirsts(e, n)
	e.wantUsed(keyCounter(k), core.Month, noon, n+callers*n)
}

func requestIDBesideClose(e *env) {
	const callers, begin = 32, 300
	keys := e.user1("key_1", "key_2")
	w := newTwins()
	var begun atomic.Int64
	var asked sync.Map
	s, half := e.Store, make(chan struct{})
	e.parallel(callers+1, func(caller int) {
		if caller == callers {
			<-half
			if err := s.Close(); err != nil {
				e.Errorf("Close: %v", err)
			}
			return
		}
		for i := 0; ; i++ {
			if begun.Add(1) == begin {
				close(half)
			}
			k := keys[caller%2]
			c := withRequestID(limit(request(k, noon), core.Month, core.MaxLimit), fmt.Sprintf("%s %d", k.ID, i/2))
			asked.Store(c.RequestID, c)
			v, err := s.Consume(e.ctx, &c)
			if errors.Is(err, core.ErrUnavailable) {
				return
			}
			if err != nil || !v.Allowed {
				e.Errorf("Consume: got %t, %v, want allowed or ErrUnavailable", v.Allowed, err)
				return
			}
			w.add(e, &c, v)
		}
	})
	e.Store = e.Reopen(e)
	for range 2 { // an unanswered request counts now or has counted before
		ids := map[string]int64{}
		asked.Range(func(_, value any) bool {
			c := value.(core.Consumption)
			ids[c.KeyID]++
			_, answered := w.answers[c.RequestID]
			v := e.consume(c)
			if answered && v.FirstTerms == nil {
				e.Errorf("%q was answered before Close: got it counted again", c.RequestID)
			}
			w.add(e, &c, v)
			return true
		})
		for _, k := range keys {
			e.wantUsed(keyCounter(k), core.Month, noon, ids[k.ID])
			if got := e.historyTotal(keyCounter(k)); int64(got) != ids[k.ID] {
				e.Errorf("history of %s: got %d entries, want %d", k.ID, got, ids[k.ID])
			}
		}
		e.reopen()
	}
}
