package storetest

import (
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var requestIDCases = []testCase{
	{name: "request id/many", run: requestIDMany,
		promise: "each of thousands of ids is remembered, however many came later"},
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

// consume makes n requests by each of the callers at once, and adds the results of those with an id.
func (w *resultsByID) consume(e *env, callers, n int, request func(caller, n int) core.Consumption) {
	e.parallel(callers, func(caller int) {
		for i := range n {
			c := request(caller, i)
			v, err := e.Store.Consume(e.ctx, &c)
			if err != nil {
				e.Errorf("Consume: %v", err)
				return
			}
			if c.RequestID != "" {
				w.add(e, &c, v)
			}
		}
	})
}

func requestIDAtOnce(e *env) {
	const callers, n = 32, 40
	for _, k := range []*core.Key{e.user1("key_1")[0], e.sharing("key_1")[0]} {
		w := newTwins()
		consume := func(_, i int) core.Consumption { return withRequestID(request(k, noon), fmt.Sprint(i)) }
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
	w.consume(e, callers, n, func(caller, i int) core.Consumption {
		return withRequestID(limit(request(k, noon), core.Month, quota), fmt.Sprint((i+caller%4*10)%n))
	})
	w.wantFirsts(e, quota)
	e.wantUsed(keyCounter(k), core.Month, noon, quota)
}

func requestIDMeanwhile(e *env) {
	const callers, n = 16, 30
	k := e.user1("key_1")[0]
	w := newTwins()
	w.consume(e, callers, 3*n, func(_, i int) core.Consumption {
		if i%3 == 1 {
			return request(k, noon)
		}
		return withRequestID(request(k, noon.Add(time.Duration(i/3)*time.Second)), fmt.Sprint(i/3))
	})
	w.wantFirsts(e, n)
	e.wantUsed(keyCounter(k), core.Month, noon, n+callers*n)
}

func requestIDBesideClose(e *env) {
	keys := e.user1("key_1", "key_2")
	w := newTwins()
	var asked sync.Map
	e.besideClose(32, 300, func(caller, i int) error {
		k := keys[caller%2]
		c := withRequestID(limit(request(k, noon), core.Month, core.MaxLimit), fmt.Sprintf("%s %d", k.ID, i/2))
		asked.Store(c.RequestID, c)
		v, err := e.mustAllow(&c)
		if err == nil {
			w.add(e, &c, v)
		}
		return err
	})
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

// requestIDMany uses thousands of ids with a few keys, so that a store with a cache of ids has to
// read some.
func requestIDMany(e *env) {
	const n, callers = 4000, 64
	keys := e.user1("key_1", "key_2", "key_3", "key_4")
	quota := int64(n / len(keys))
	round := func(when string, repeated bool) {
		e.Helper()
		e.parallel(callers, func(i int) {
			for at := i; at < n; at += callers {
				c := withRequestID(limit(request(keys[at%len(keys)], noon), core.Month, quota), fmt.Sprintf("id %d", at))
				v, err := e.Store.Consume(e.ctx, &c)
				if err != nil || !v.Allowed || (v.FirstTerms != nil) != repeated {
					e.Errorf("%s: request %q of %s: got %+v, %v, want allowed, a first answer: %t", when, c.RequestID, c.KeyID, v, err, repeated)
					return
				}
			}
		})
	}
	round("the first time", false)
	round("the second time", true)
	e.reopen()
	round("after reopening", true)
	for _, k := range keys {
		e.wantUsed(keyCounter(k), core.Month, noon, quota)
		if got := e.historyTotal(keyCounter(k)); int64(got) != quota {
			e.Errorf("history of %s: got %d entries, want %d", k.ID, got, quota)
		}
	}
}
