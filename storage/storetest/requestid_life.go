package storetest

import (
	"fmt"
	"reflect"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

func requestIDKeyChanged(e *env) {
	k := e.user1("key_1")[0]
	e.put(newUser(k.AccountID, "second user"))
	first := withRequestID(request(k, noon), "id")
	usage := e.counts(first)
	k.Previous = []core.GraceValue{{Digest: k.Digest, Until: noon}}
	k.Digest, k.Name = digest(k.AccountID, k.ID, 2), "regenerated"
	e.put(k)
	e.repeats(withRequestID(request(k, noon), "id"), first, usage)
	k.UserID = 2
	e.put(k)
	e.repeats(withRequestID(request(k, noon), "id"), first, usage)
	k.PlanID = ""
	e.put(k)
	e.repeats(withRequestID(request(k, noon), "id"), first, usage)
	e.reopen()
	e.repeats(withRequestID(request(k, noon), "id"), first, usage)
	e.wantUsed(keyCounter(k), core.Month, noon, 1)
	e.same("counter of the second user", core.Counter{}, e.counter(userCounter(k)))
}

func requestIDDeleted(e *env) {
	keys := e.user1("key_1", "key_2")
	gone, left := keys[0], keys[1]
	account := gone.AccountID
	e.put(newUser(account, "second user"))
	moved := newKey(account, "key_moved", 2, "plan_1")
	e.put(moved)
	for _, k := range append(keys, moved) {
		e.counts(withRequestID(request(k, noon), "id"))
	}
	refused := func(k *core.Key, want error) {
		e.Helper()
		c := withRequestID(request(k, noon), "id")
		v, err := e.Store.Consume(e.ctx, &c)
		e.isErr("Consume with the id of a deleted key", err, want)
		e.same("Consume with the id of a deleted key", core.ConsumeResult{}, v)
	}
	renew := func(old *core.Key) *core.Key {
		e.Helper()
		k := newKey(account, old.ID, old.UserID, old.PlanID)
		e.put(k)
		if got := e.counts(withRequestID(request(k, noon), "id")).Used; got != 1 {
			e.Errorf("usage of a new key with the id of a deleted one: got %d, want 1", got)
		}
		return k
	}
	e.deleteKeys(account, gone.ID)
	refused(gone, core.ErrKeyNotFound)
	gone = renew(gone)
	first := withRequestID(request(left, noon), "id")
	e.repeats(first, first, core.Usage{Window: core.Month.Window(noon), Used: 1})
	e.deleteKeys(account, gone.ID)
	e.reopen()
	refused(gone, core.ErrKeyNotFound)
	renew(gone)

	stale := *moved // its former user is deleted after the move
	moved.UserID = 1
	e.put(moved)
	e.deleteUsers(account, 2)
	refused(&stale, core.ErrUserNotFound)
	first = withRequestID(request(moved, noon), "id")
	e.repeats(first, first, core.Usage{Window: core.Month.Window(noon), Used: 1})
	e.deleteUsers(account, 1)
	refused(left, core.ErrKeyNotFound)
	u := newUser(account, "third user")
	e.put(u)
	left.UserID, moved.UserID = u.ID, u.ID
	renew(left)
	e.reopen()
	renew(moved)
}

func requestIDReopen(e *env) {
	keys := e.user1("key_1", "key_2")
	shared := keys[1]
	shared.PlanID = ""
	e.put(shared)
	at := func(d time.Duration) core.Consumption {
		return withRequestID(under(request(shared, noon.Add(d)), "plan_week", core.Week, 7), "id")
	}
	e.counts(cost(request(shared, noon), 2))
	usage := e.counts(at(0))
	e.same("usage", core.Usage{Window: core.Week.Window(noon), Used: 3}, usage)
	for range 3 {
		e.reopen()
		e.repeats(at(time.Minute), at(0), usage)
		c := withRequestID(request(keys[0], noon), "id")
		e.counts(withRequestID(c, fmt.Sprint("other", serial.Add(1))))
	}
	e.reopen()
	e.repeats(at(core.RequestIDRetention-time.Nanosecond), at(0), usage)
	e.reopen()
	usage = e.counts(at(core.RequestIDRetention))
	e.reopen()
	e.repeats(at(core.RequestIDRetention), at(core.RequestIDRetention), usage)
	e.wantUsed(userCounter(shared), core.Month, noon, 4)
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

func requestIDCopy(e *env) {
	k := e.user1("key_1")[0]
	want := withRequestID(request(k, noon), "id")
	c := want
	given, err := e.Store.Consume(e.ctx, &c)
	e.ok("Consume", err)
	c.Terms, c.RequestID, c.Entry.At = core.Terms{PlanName: "spoilt"}, "spoilt", noon.AddDate(1, 0, 0)
	for range 3 {
		c = want
		v := e.consume(c)
		if v.FirstTerms == nil || !reflect.DeepEqual(*v.FirstTerms, want.Terms) || v.Usage != given.Usage {
			e.Fatalf("Consume once more: got %+v under %+v, want %+v under %+v", v.Usage, v.FirstTerms, given.Usage, want.Terms)
		}
		*v.FirstTerms = core.Terms{PlanName: "spoilt"}
	}
}
