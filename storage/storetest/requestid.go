package storetest

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var requestIDCases = []testCase{
	{name: "request id/counted once", run: requestIDCountedOnce,
		promise: "a repeat writes nothing: no usage, no last use, no history"},
	{name: "request id/first answer", run: requestIDFirstAnswer,
		promise: "a repeat gets the first answer, with its usage, window and terms, whatever the limit, plan and usage are now"},
	{name: "request id/of the user's counter", run: requestIDShared,
		promise: "if the counter of the user decides, a repeat gets its first usage, and counts on neither counter"},
	{name: "request id/for 24 hours", run: requestIDRetention,
		promise: "an id is remembered for 24 hours from its count, by the clock of the requests; then it is new"},
	{name: "request id/per key", run: requestIDPerKey,
		promise: "the same id of another key, also of another account, is another request"},
	{name: "request id/exact", run: requestIDExact,
		promise: "ids are compared byte by byte, up to 128 bytes"},
	{name: "request id/none", run: requestIDNone,
		promise: "requests without an id are all different"},
	{name: "request id/denied", run: requestIDDenied,
		promise: "a denied request is not remembered: the same id may be allowed later, and each denial is in the history"},
	{name: "request id/cost of 0", run: requestIDLook,
		promise: "a request of cost 0 is not remembered: the same id counts later"},
	{name: "request id/key changed", run: requestIDKeyChanged,
		promise: "a key that is regenerated, moved to another user or to another plan keeps its ids"},
	{name: "request id/deleted", run: requestIDDeleted,
		promise: "deleting a key forgets its ids: a missing key gets no first answer, and a new key with its id has none"},
	{name: "request id/reopen", run: requestIDReopen,
		promise: "an id is remembered after reopening, with its first answer, and expires at the same time"},
	{name: "request id/many", run: requestIDMany,
		promise: "each of thousands of ids is remembered, however many came later"},
	{name: "request id/copy", run: requestIDCopy,
		promise: "the terms of a first answer are a copy, and the caller may change its arguments after the call"},
}

// withRequestID returns the request with an id.
func withRequestID(c core.Consumption, id string) core.Consumption {
	c.RequestID = id
	return c
}

// counts fails unless a request is allowed and counted as a new one.
func (e *env) counts(c core.Consumption) core.Usage {
	e.Helper()
	v := e.consume(c)
	if !v.Allowed || v.FirstTerms != nil {
		e.Fatalf("Consume with the id %q: got allowed %t with the usage %d and a first answer under %+v, want it counted",
			c.RequestID, v.Allowed, v.Usage.Used, v.FirstTerms)
	}
	return v.Usage
}

// repeats fails unless a request gets the answer first.
func (e *env) repeats(c, first core.Consumption, usage core.Usage) {
	e.Helper()
	want := core.ConsumeResult{Usage: usage, Allowed: true, FirstTerms: &first.Terms}
	e.same(fmt.Sprintf("Consume once more with the id %q", c.RequestID), want, e.consume(c))
}

func requestIDCountedOnce(e *env) {
	k := e.user1("key_1")[0]
	c := withRequestID(endpoint(cost(request(k, noon), 5), "/first"), "id")
	usage := e.counts(c)
	e.same("usage", core.Usage{Window: core.Month.Window(noon), Used: 5}, usage)
	before := e.snapshot(k.AccountID)
	later := c
	later.Entry.At, later.Entry.IP = noon.Add(time.Hour), "192.0.2.2"
	for _, again := range []core.Consumption{c, later, endpoint(c, "/again"), cost(c, 1), cost(c, 0), cost(c, core.MaxCost)} {
		e.repeats(again, c, usage)
	}
	e.same("the account after repeats", before, e.snapshot(k.AccountID))
	e.same("counter", usedCounter(5, noon), e.counter(keyCounter(k)))
	e.wantHistory(keyCounter(k), time.Time{}, "/first")
	e.wantHistory(userCounter(k), time.Time{}, "/first")
	e.counts(endpoint(request(k, noon), "/second"))
	e.repeats(c, c, usage)
	e.reopen()
	e.wantUsed(keyCounter(k), core.Month, noon, 6)
	e.wantHistory(keyCounter(k), time.Time{}, "/second", "/first")
}

// under returns the request under the terms of another plan.
func under(c core.Consumption, plan string, p core.Period, n int64) core.Consumption {
	c.Terms = core.Terms{PlanID: plan, PlanName: "name of " + plan, Period: p, Limit: n}
	return c
}

func requestIDFirstAnswer(e *env) {
	k := e.user1("key_1")[0]
	evening := time.Date(2026, time.March, 12, 23, 59, 59, 0, time.UTC)
	day, month := under(request(k, evening), "plan_day", core.Day, 3), under(request(k, evening), "plan_month", core.Month, 4)
	first, second := withRequestID(day, "first"), withRequestID(month, "second")
	usage1, usage2 := e.counts(first), e.counts(second)
	e.same("usage of the first", core.Usage{Window: core.Day.Window(evening), Used: 1}, usage1)
	e.same("usage of the second", core.Usage{Window: core.Month.Window(evening), Used: 2}, usage2)
	check := func() {
		e.Helper()
		for _, now := range []core.Consumption{day, month, under(day, "plan_none", core.Year, 0), under(day, "plan_1", core.Week, core.MaxLimit)} {
			for _, at := range []time.Time{evening, evening.Add(2 * time.Second), evening.Add(20 * time.Hour)} {
				now.Entry.At = at
				e.repeats(withRequestID(now, "first"), first, usage1)
				e.repeats(withRequestID(now, "second"), second, usage2)
			}
		}
	}
	check()
	e.counts(day)
	e.denied(day)
	e.denied(withRequestID(day, "third"))
	check() // the quota is used up
	day.Entry.At = evening.Add(time.Hour)
	e.counts(day)
	check() // in the next window
}

func requestIDShared(e *env) {
	keys := e.user1("key_1", "key_2", "key_3")
	a, b, own := keys[0], keys[1], keys[2]
	a.PlanID, b.PlanID = "", ""
	e.put(a, b)
	first := withRequestID(limit(request(a, noon), core.Week, 2), "id")
	e.counts(limit(request(b, noon), core.Week, 2))
	usage := e.counts(first)
	e.same("usage", core.Usage{Window: core.Week.Window(noon), Used: 2}, usage)
	e.denied(limit(request(b, noon), core.Week, 2))
	e.repeats(first, first, usage)
	a.PlanID = own.PlanID // the counter of the key decides now
	e.repeats(withRequestID(request(a, noon), "id"), first, usage)
	e.counts(withRequestID(limit(request(b, noon), core.Week, 3), "id"))
	e.wantUsed(userCounter(a), core.Week, noon, 3)
	e.wantUsed(keyCounter(a), core.Week, noon, 1)
	e.wantUsed(keyCounter(b), core.Week, noon, 2)
}

func requestIDRetention(e *env) {
	k := e.user1("key_1")[0]
	at := func(d time.Duration) core.Consumption { return withRequestID(request(k, noon.Add(d)), "id") }
	const over = core.RequestIDRetention
	usage := e.counts(at(0))
	for _, d := range []time.Duration{time.Nanosecond, time.Hour, 23 * time.Hour, over - time.Second, over - time.Nanosecond, -time.Hour, -48 * time.Hour} {
		e.repeats(at(d), at(0), usage)
	}
	next := e.counts(at(over))
	if next.Used != 2 {
		e.Errorf("usage after 24 hours: got %d, want 2", next.Used)
	}
	e.repeats(at(over), at(over), next)
	e.repeats(at(2*over-time.Nanosecond), at(over), next)
	e.counts(at(2*over + time.Hour))
	e.counts(at(200 * 24 * time.Hour))
	e.wantUsed(keyCounter(k), core.Year, noon, 4)
}

func requestIDPerKey(e *env) {
	keys := append(e.user1("key_1", "key_2"), e.user1("key_1")...)
	for i, k := range keys { // the last key is of another account, with the same ids
		c := withRequestID(cost(request(k, noon), int64(i+1)), "id")
		usage := e.counts(c)
		e.same("usage of "+k.AccountID+" "+k.ID, core.Usage{Window: core.Month.Window(noon), Used: int64(i + 1)}, usage)
	}
	for i, k := range keys {
		c := withRequestID(request(k, noon), "id")
		e.repeats(c, c, core.Usage{Window: core.Month.Window(noon), Used: int64(i + 1)})
		e.wantUsed(keyCounter(k), core.Month, noon, int64(i+1))
	}
}

func requestIDExact(e *env) {
	long := strings.Repeat("x", core.MaxRequestIDLength-1)
	ids := []string{"id", "ID", "Id", "id ", " id", " ", "i", "d", "idid", "0", "00", "id/", "id\x00", "\x00", "\x00id", "i\x00d", "\xff", "\xff\xff",
		"é", "e\u0301", "é"[:1], "ünder", long, long + "a", long + "A", long + "\x00", long[:64], `"id"`, "id%20", "key_1", "{id}"}
	k := e.user1("key_1")[0]
	check := func(consume func(i int, c core.Consumption)) {
		e.Helper()
		for i, id := range ids {
			consume(i, withRequestID(request(k, noon), id))
		}
	}
	again := func(i int, c core.Consumption) {
		e.repeats(c, c, core.Usage{Window: core.Month.Window(noon), Used: int64(i + 1)})
	}
	check(func(_ int, c core.Consumption) { e.counts(c) })
	check(again)
	e.reopen()
	check(again)
	e.wantUsed(keyCounter(k), core.Month, noon, int64(len(ids)))
}

func requestIDNone(e *env) {
	k := e.user1("key_1")[0]
	for want := range int64(3) {
		if got := e.counts(request(k, noon)).Used; got != want+1 {
			e.Errorf("usage: got %d, want %d", got, want+1)
		}
	}
	e.denied(limit(request(k, noon), core.Month, 3))
}

func requestIDDenied(e *env) {
	k := e.user1("key_1")[0]
	c := withRequestID(limit(request(k, noon), core.Month, 1), "id")
	e.counts(withRequestID(c, "other"))
	for range 3 {
		if v := e.consume(c); v.Allowed || v.FirstTerms != nil {
			e.Errorf("Consume at the limit: got %+v, want denied without a first answer", v)
		}
	}
	e.denied(withRequestID(cost(c, 2), "large"))
	e.awaitHistory(keyCounter(k), 5)
	raised := limit(c, core.Month, 2)
	usage := e.counts(raised)
	e.repeats(c, raised, usage)
	e.denied(withRequestID(c, "large"))
	e.wantUsed(keyCounter(k), core.Month, noon, 2)
}

func requestIDLook(e *env) {
	k := e.user1("key_1")[0]
	c := withRequestID(limit(request(k, noon), core.Month, 1), "id")
	look := cost(c, 0)
	for range 2 {
		if got := e.counts(look).Used; got != 0 {
			e.Errorf("a look: got the usage %d, want 0", got)
		}
	}
	usage := e.counts(c)
	e.denied(withRequestID(look, "other"))
	e.denied(withRequestID(c, "other"))
	e.repeats(look, c, usage)
	e.wantUsed(keyCounter(k), core.Month, noon, 1)
}

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
