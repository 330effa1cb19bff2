package storetest

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var importCases = []testCase{
	{name: "import/days of an unused counter", run: importDaysUnused, imports: true,
		promise: "days that were set stay on the next day, also if the counter has no usage on its day"},
	{name: "import/history", run: importHistory, imports: true,
		promise: "AppendHistory appends entries to the history of one key or user, in order and unchanged, and counts nothing"},
	{name: "import/replaced", run: importReplaced, imports: true,
		promise: "SetHistory replaces the history of one key or user, as often as it is called, and changes nothing else"},
	{name: "import/one history", run: importOneHistory, imports: true,
		promise: "the history of a key has entries of its former users, that of a user has entries of deleted keys"},
	{name: "import/unchanged", run: importAsTheyAre, imports: true,
		promise: "AppendHistory leaves no entry out, and keeps Denied as given"},
	{name: "import/while counting", run: importBesideCounting, imports: true,
		promise: "entries are appended after those that were counted before, and before those that are counted later"},
	{name: "import/many", run: importMany, imports: true,
		promise: "SetHistory and AppendHistory accept MaxImport entries of any number of keys, and keep their order"},
	{name: "import/at once", run: importAtOnce, imports: true,
		promise: "with concurrent calls each appended entry is in its history once"},
	{name: "import/missing", run: importNotThere, imports: true,
		promise: "the history of a missing key or user is ErrKeyNotFound or ErrUserNotFound, and nothing deleted comes back"},
	{name: "import/kept", run: importKept, imports: true,
		promise: "an appended entry is kept for its retention"},
	{name: "import/moved key", run: importMovedKey, imports: true,
		promise: "a key that is put with another user keeps its history and its counter; later entries are in the history of that user"},
	{name: "import/numbers", run: importNumbers, imports: true,
		promise: "a number that is put counts as given: the next one is larger, even if the resource with the number was deleted"},
	{name: "import/put again", run: importPutAgain, imports: true,
		promise: "a deleted resource may be put again at once: its history is empty and its counter zero"},
	{name: "import/number at once", run: importNumberAtOnce, imports: true,
		promise: "the number of a deleted key may be put with another id in the same transaction: its counter starts at zero at once"},
	{name: "import/put again and moved", run: importPutAgainMoved, imports: true,
		promise: "a key that is put again may move to any user, also to one that it had before it was deleted"},
	{name: "import/machine", run: importMachine, imports: true, own: true,
		promise: "for random operations, imports included, the store answers as the reference store does"},
}

// importer returns the store as a core.Importer.
func (e *env) importer() core.Importer {
	e.Helper()
	im, ok := e.Store.(core.Importer)
	if !ok {
		e.Fatalf("the store: got %T, want a core.Importer", e.Store)
	}
	return im
}

// entry returns an entry of a key, with its number as the endpoint.
func entry(k *core.Key, n int) core.Entry {
	return endpoint(request(k, noon.Add(time.Duration(n)*time.Second)), "/%d", n).Entry
}

// append appends entries of one account to the histories of their users and keys.
func (e *env) append(account string, entries ...core.Entry) {
	e.Helper()
	each := map[core.CounterID][]core.Entry{}
	for _, x := range entries {
		for _, of := range []core.CounterID{{Account: account, KeyID: x.KeyID}, {Account: account, UserID: x.UserID}} {
			each[of] = append(each[of], x)
		}
	}
	for of, some := range each {
		e.ok("AppendHistory", e.importer().AppendHistory(e.ctx, of, some, forever))
	}
}

// setHistory replaces the history of a key or user.
func (e *env) setHistory(of core.CounterID, entries ...core.Entry) {
	e.Helper()
	e.ok("SetHistory", e.importer().SetHistory(e.ctx, of, entries, forever))
}

func importHistory(e *env) {
	keys := e.user1("key_1", "key_2")
	full := cost(request(keys[0], noon.In(time.FixedZone("somewhere", 3600))), 77).Entry
	full.Endpoint, full.Method, full.IP = "/"+awkward, "PROPFIND", "2001:db8::1%eth0"
	bare := core.Entry{At: noon.Add(-time.Hour), KeyID: "key_2", UserID: 1, Cost: core.MaxCost}
	denied := cost(request(keys[0], noon), 5).Entry
	denied.Denied, denied.Reason = true, core.ReasonExpired
	e.ok("AppendHistory of nothing", e.importer().AppendHistory(e.ctx, keyCounter(keys[0]), nil, forever))
	e.append(keys[0].AccountID, full, bare, denied)
	check := func(when string) {
		e.Helper()
		late := bare
		late.Late = full.At.Sub(bare.At)
		e.same("history of the user "+when, []core.Entry{denied, late, full}, all(e, e.entries(userCounter(keys[0]), time.Time{})))
		e.same("history of a key "+when, []core.Entry{denied, full}, all(e, e.entries(keyCounter(keys[0]), time.Time{})))
		e.same("history of the other "+when, []core.Entry{bare}, all(e, e.entries(keyCounter(keys[1]), time.Time{})))
		for _, of := range []core.CounterID{userCounter(keys[0]), keyCounter(keys[0]), keyCounter(keys[1])} {
			e.same(fmt.Sprintf("counter %+v %s", of, when), core.Counter{}, e.counter(of))
		}
	}
	check("now")
	e.reopen()
	check("after reopening")
	e.wantHistory(userCounter(keys[0]), noon.Add(-time.Second), denied.Endpoint, full.Endpoint)
}

// importReplaced replaces the histories of a key and of its user, between requests.
func importReplaced(e *env) {
	keys := e.user1("key_1", "key_2")
	k, other := keys[0], keys[1]
	e.allowed(endpoint(request(k, noon), "/counted"))
	e.allowed(endpoint(request(other, noon), "/other"))
	e.denied(limit(endpoint(request(k, noon), "/denied"), core.Month, 0))
	e.awaitHistory(keyCounter(k), 2)
	before := e.snapshot(k.AccountID)
	for round := range 4 {
		for range 2 { // a repeated call changes nothing
			e.setHistory(keyCounter(k), entry(k, 1), entry(k, 2))
			e.wantHistory(keyCounter(k), time.Time{}, "/2", "/1")
		}
		e.ok("AppendHistory", e.importer().AppendHistory(e.ctx, keyCounter(k), []core.Entry{entry(k, 3)}, forever))
		if round%2 == 0 {
			e.reopen()
		}
		e.wantHistory(keyCounter(k), time.Time{}, "/3", "/2", "/1")
		e.wantHistory(keyCounter(other), time.Time{}, "/other")
		after := e.snapshot(k.AccountID)
		e.same("counters", before.Counters, after.Counters)
		e.same("days", before.Days, after.Days)
	}
	e.wantHistory(userCounter(k), time.Time{}, "/denied", "/other", "/counted")
	e.setHistory(userCounter(k))
	e.wantHistory(userCounter(k), time.Time{})
	e.reopen()
	e.wantHistory(userCounter(k), time.Time{})
	e.allowed(endpoint(request(k, noon), "/4"))
	e.setHistory(keyCounter(other))
	e.reopen()
	e.wantHistory(userCounter(k), time.Time{}, "/4")
	e.wantHistory(keyCounter(k), time.Time{}, "/4", "/3", "/2", "/1")
	e.wantHistory(keyCounter(other), time.Time{})
	e.wantUsed(keyCounter(k), core.Month, noon, 2)
}

func importOneHistory(e *env) {
	k := e.user1("key_1")[0]
	formerUser, deletedKey := entry(k, 1), entry(k, 2)
	formerUser.UserID, deletedKey.KeyID = 77, "key_deleted"
	e.setHistory(keyCounter(k), formerUser, entry(k, 3))
	e.setHistory(userCounter(k), deletedKey, entry(k, 4))
	for range 2 {
		e.same("history of the key", []core.Entry{entry(k, 3), formerUser}, all(e, e.entries(keyCounter(k), time.Time{})))
		e.same("history of the user", []core.Entry{entry(k, 4), deletedKey}, all(e, e.entries(userCounter(k), time.Time{})))
		e.noKey(k.AccountID, "key_deleted", 1)
		e.wantHistory(core.CounterID{Account: k.AccountID, UserID: 77}, time.Time{})
		e.reopen()
	}
}

func importAsTheyAre(e *env) {
	k := e.user1("key_1")[0]
	var want, given []core.Entry
	for i := range 5 * core.DeniedPerSecond {
		x := entry(k, i)
		x.At, x.Denied = noon, i%5 > 0
		if x.Denied {
			x.Reason = core.ReasonQuota
		}
		given, want = append(given, x), slices.Insert(want, 0, x)
	}
	e.append(k.AccountID, given...)
	e.same("history", want, all(e, e.entries(keyCounter(k), time.Time{})))
	e.same("counter", core.Counter{}, e.counter(keyCounter(k)))
	e.reopen()
	e.same("history after reopening", want, all(e, e.entries(userCounter(k), time.Time{})))
	e.denied(limit(endpoint(request(k, noon), "/denied"), core.Month, 0))
	e.awaitHistory(keyCounter(k), len(want)+1)
	e.same("counter after a denial", core.Counter{}, e.counter(keyCounter(k)))
}

func importBesideCounting(e *env) {
	k := e.user1("key_1")[0]
	k.PlanID = ""
	e.put(k)
	n, want := 0, []string{}
	next := func() core.Entry {
		n++
		want = slices.Insert(want, 0, fmt.Sprintf("/%d", n))
		return entry(k, n)
	}
	for round := range 3 {
		e.append(k.AccountID, next(), next())
		c := request(k, noon)
		c.Entry = next()
		e.allowed(c)
		e.append(k.AccountID, next())
		for _, of := range []core.CounterID{keyCounter(k), userCounter(k)} {
			e.wantHistory(of, time.Time{}, want...)
			e.wantUsed(of, core.Month, noon, int64(round+1))
		}
		if round < 2 {
			e.reopen()
		}
	}
}

func importMany(e *env) {
	const keys, batches = 40, 3
	ids := make([]string, keys)
	for i := range ids {
		ids[i] = fmt.Sprintf("key_%d", i)
	}
	ks := e.user1(ids...)
	var want []string
	of := make([][]string, keys)
	for b := range batches {
		var entries []core.Entry
		for i := range core.MaxImport {
			n := b*core.MaxImport + i
			x := entry(ks[n*n%keys], n)
			entries = append(entries, x)
			want, of[n*n%keys] = append(want, x.Endpoint), append(of[n*n%keys], x.Endpoint)
		}
		e.append(ks[0].AccountID, entries...)
	}
	check := func() {
		e.Helper()
		e.wantHistory(userCounter(ks[0]), time.Time{}, reversed(want)...)
		for i, k := range ks {
			e.same("history of "+k.ID, reversed(of[i]), endpoints(all(e, e.entries(keyCounter(k), time.Time{}))))
		}
	}
	check()
	e.reopen()
	check()
}

// reversed returns a reversed copy.
func reversed[T any](list []T) []T {
	list = slices.Clone(list)
	slices.Reverse(list)
	return list
}

// endpoints returns the endpoints of entries.
func endpoints(entries []core.Entry) (list []string) {
	for _, x := range entries {
		list = append(list, x.Endpoint)
	}
	return list
}

func importAtOnce(e *env) {
	const users, rounds, each = 8, 10, 50
	account := e.account()
	var keys []*core.Key
	for i := range users {
		u := newUser(account, fmt.Sprintf("user %d", i+1))
		e.put(u)
		keys = append(keys, newKey(account, fmt.Sprintf("key_%d", i), u.ID, "plan_1"))
		e.put(keys[i])
	}
	im := e.importer()
	e.parallel(2*users, func(i int) { // two callers for each history
		for round := range rounds {
			var entries []core.Entry
			for n := range each {
				entries = append(entries, entry(keys[i/2], (2*round+i%2)*each+n))
			}
			for _, of := range []core.CounterID{keyCounter(keys[i/2]), userCounter(keys[i/2])} {
				if err := im.AppendHistory(e.ctx, of, entries, forever); err != nil {
					e.Errorf("AppendHistory: %v", err)
				}
			}
		}
	})
	e.reopen()
	for _, k := range keys {
		var want []string
		for n := range 2 * rounds * each {
			want = append(want, entry(k, n).Endpoint)
		}
		slices.Sort(want)
		for _, of := range []core.CounterID{keyCounter(k), userCounter(k)} {
			got := endpoints(all(e, e.entries(of, time.Time{})))
			for caller := range 2 { // its entries are in its order
				some := slices.DeleteFunc(slices.Clone(got), func(name string) bool { return entryNumber(name)/each%2 != caller })
				e.same("order of the entries of a caller", slices.SortedFunc(slices.Values(some), func(a, b string) int { return entryNumber(b) - entryNumber(a) }), some)
			}
			slices.Sort(got)
			e.same(fmt.Sprintf("history of %+v", of), want, got)
		}
	}
}

// entryNumber returns the number of an entry from its endpoint.
func entryNumber(endpoint string) int {
	n, _ := strconv.Atoi(endpoint[1:])
	return n
}

func importNotThere(e *env) {
	keys := e.user1("key_1", "key_2")
	account, gone, left := keys[0].AccountID, keys[0], keys[1]
	e.append(account, entry(gone, 1), entry(left, 2))
	e.deleteKeys(account, gone.ID)
	refused := func(of core.CounterID, want error) {
		e.Helper()
		e.isErr("AppendHistory", e.importer().AppendHistory(e.ctx, of, []core.Entry{entry(left, 3)}, forever), want)
		e.isErr("SetHistory", e.importer().SetHistory(e.ctx, of, []core.Entry{entry(left, 3)}, forever), want)
		e.isErr("SetHistory of nothing", e.importer().SetHistory(e.ctx, of, nil, forever), want)
	}
	refused(keyCounter(gone), core.ErrKeyNotFound)
	refused(core.CounterID{Account: account, KeyID: "key_never"}, core.ErrKeyNotFound)
	refused(core.CounterID{Account: account, UserID: 2}, core.ErrUserNotFound)
	refused(core.CounterID{Account: "acct_missing", KeyID: left.ID}, core.ErrKeyNotFound)
	refused(core.CounterID{Account: "acct_missing", UserID: 1}, core.ErrUserNotFound)
	e.wantHistory(keyCounter(gone), time.Time{})
	e.wantHistory(userCounter(left), time.Time{}, "/2", "/1")
	e.deleteUsers(account, 1)
	refused(keyCounter(left), core.ErrKeyNotFound)
	refused(userCounter(left), core.ErrUserNotFound)
	e.put(newUser(account, "second user"))
	for range 2 {
		for _, of := range []core.CounterID{keyCounter(left), userCounter(left), {Account: account, UserID: 2}} {
			e.wantHistory(of, time.Time{})
		}
		e.reopen()
	}
}

func importKept(e *env) {
	k := e.user1("key_1")[0]
	old := entry(k, 0)
	old.At = time.Now().Add(-20 * 24 * time.Hour)
	recent := entry(k, 1)
	recent.At = time.Now().Add(-time.Hour)
	im := e.importer()
	e.ok("AppendHistory", im.AppendHistory(e.ctx, keyCounter(k), []core.Entry{old, recent}, 21*24*time.Hour))
	e.ok("SetHistory", im.SetHistory(e.ctx, userCounter(k), []core.Entry{old, recent}, 21*24*time.Hour))
	e.wantHistory(keyCounter(k), time.Time{}, "/1", "/0")
	e.reopen()
	e.wantHistory(keyCounter(k), time.Time{}, "/1", "/0")
	e.wantHistory(userCounter(k), time.Time{}, "/1", "/0")
}

func importDaysUnused(e *env) {
	k := e.user1("key_1")[0]
	e.setCounters([]core.CounterID{keyCounter(k)}, core.Counter{At: noon.Unix()})
	days := []core.CounterDay{{Date: today, Traffic: core.Traffic{Allowed: 2}}}
	e.ok("SetDays", e.importer().SetDays(e.ctx, keyCounter(k), days))
	e.allowed(onDay(request(k, noon), 1))
	e.wantDays(daysOfKey(k), today, 2, 0, 1, 0)
}
