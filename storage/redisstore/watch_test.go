package redisstore_test

import (
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// Every change through one store is reported to another. A failure means that caches of other processes
// stay stale.
func TestEveryChangeInvalidates(t *testing.T) {
	server := redistest.Start(t)
	w := newWorld(t, openFaulty(t, faulty(server.Addr())), 2)
	other := &watcher{}
	openFaulty(t, faulty(server.Addr())).Watch(other)
	other.awaitTrust(t)

	k := w.keys[0]
	user := core.Change{Account: w.account, UserID: k.UserID}
	plan := core.Change{Account: w.account, PlanID: "plan_1"}
	value := core.Change{Account: w.account, Digest: k.Digest}
	later := core.Change{Account: w.account, Digest: secrets.DigestOf("later")}
	owner := core.Change{OwnerKey: secrets.DigestOf(w.account)}
	put := func(k core.Key) func(core.Tx) error { return func(tx core.Tx) error { return tx.PutKey(&k) } }
	regenerated := k
	regenerated.Digest = later.Digest
	regenerated.Previous = []core.GraceValue{{Digest: k.Digest, Until: time.Now().Add(time.Hour)}}
	for _, c := range []struct {
		name string
		fn   func(core.Tx) error
		want []core.Change
	}{
		{"a user is changed", func(tx core.Tx) error { return tx.PutUser(&core.User{AccountID: w.account, ID: k.UserID}) }, []core.Change{user}},
		{"a plan is created", func(tx core.Tx) error { return tx.PutPlan(&core.Plan{AccountID: w.account, ID: "plan_1"}) }, []core.Change{plan}},
		{"a plan is deleted", func(tx core.Tx) error { return tx.DeletePlan("plan_1") }, []core.Change{plan}},
		{"a key is changed", put(k), []core.Change{value}},
		{"a key is regenerated", put(regenerated), []core.Change{value, later}},
		{"a key loses a value", put(k), []core.Change{value, later}},
		{"a key is deleted", func(tx core.Tx) error { return tx.DeleteKey(k.ID) }, []core.Change{value}},
		{"a key is created", put(k), []core.Change{value}},
		{"a user is deleted with a key", func(tx core.Tx) error { return tx.DeleteUser(k.UserID) }, []core.Change{user, value}},
	} {
		t.Run(c.name, func(t *testing.T) {
			from := time.Now()
			if err := w.s.Update(t.Context(), w.account, c.fn); err != nil {
				t.Fatal(err)
			}
			for _, change := range c.want {
				other.awaitChange(t, change, from)
			}
		})
	}
	for _, c := range []struct{ set, want string }{{"acme_live_", "acme_live_"}, {"", secrets.DefaultKeyPrefix}} {
		from := time.Now()
		if _, err := w.s.UpdateAccount(t.Context(), w.account, func(a *core.Account) error { a.KeyPrefix = c.set; return nil }); err != nil {
			t.Fatal(err)
		}
		other.awaitChange(t, core.Change{Account: w.account, KeyPrefix: c.want}, from)
	}
	from := time.Now()
	if _, err := w.s.UpdateOwnerKey(t.Context(), w.account, "okey_1", func(*core.OwnerKey) error { return nil }); err != nil {
		t.Fatal(err)
	}
	other.awaitChange(t, owner, from)
	another := &core.OwnerKey{ID: "okey_2", AccountID: w.account, Digest: secrets.DigestOf("another")}
	if err := w.s.CreateOwnerKey(t.Context(), another); err != nil {
		t.Fatal(err)
	}
	other.awaitChange(t, core.Change{OwnerKey: another.Digest}, from)
}

// Changes are reported at once. Until then, other processes serve from stale caches.
func TestLagOfChanges(t *testing.T) {
	server := redistest.Start(t)
	w := newWorld(t, openFaulty(t, faulty(server.Addr())), 1)
	other := &watcher{}
	openFaulty(t, faulty(server.Addr())).Watch(other)
	other.awaitTrust(t)
	var lags []time.Duration
	for range 200 {
		from := time.Now()
		w.moveKey(t, 0, w.keys[0].UserID)
		lags = append(lags, other.awaitChange(t, core.Change{Account: w.account, Digest: w.keys[0].Digest}, from))
	}
	median, worst := medianAndMax(lags)
	t.Logf("%d changes were told within %v (median), %v (worst) from the beginning of the write", len(lags), median, worst)
	if worst > time.Second {
		t.Errorf("a change was reported after %v, want less than a second", worst)
	}
}

// A cut connection ends the trust in caches at once. After the reconnect every cache is emptied.
func TestCutChannel(t *testing.T) {
	server := redistest.Start(t)
	relay := newRelay(t, server.Addr())
	other := &watcher{}
	openFaulty(t, faulty(relay.Addr())).Watch(other)
	other.awaitTrust(t)
	for range 3 {
		losses := other.losses()
		relay.refuse()
		until(t, "the end of trust", func() bool { return !other.trusts() })
		if n := other.losses(); n != losses {
			t.Errorf("Lost was called %d times, want it only after the reconnect", n-losses)
		}
		relay.resume()
		other.awaitTrust(t)
		if n := other.losses(); n == losses {
			t.Error("the watcher was not told of possible losses after the connection was cut")
		}
	}
}

// A stopped server, or a silent connection, ends the trust in caches within a second. The trust returns
// when it continues.
func TestSilentChannel(t *testing.T) {
	server := redistest.Start(t)
	relay := newRelay(t, server.Addr())
	other := &watcher{}
	openFaulty(t, faulty(relay.Addr())).Watch(other)
	for name, silence := range map[string]struct{ begin, end func() }{
		"server":     {server.Pause, server.Resume},
		"connection": {func() { relay.stall(isInvalidationConn) }, relay.resume},
	} {
		other.awaitTrust(t)
		silence.begin()
		from := time.Now()
		until(t, "the end of trust", func() bool { return !other.trusts() })
		if took := time.Since(from); took > time.Second+slack {
			t.Errorf("%s: trusted for %v, want a second at most", name, took)
		} else {
			t.Logf("%s: trusted for another %v", name, took)
		}
		silence.end()
	}
	other.awaitTrust(t)
}

// slack is the extra time for a busy machine.
const slack = 500 * time.Millisecond

// FLUSHALL invalidates all caches.
func TestFlushedServer(t *testing.T) {
	server := redistest.Start(t)
	other := &watcher{}
	openFaulty(t, faulty(server.Addr())).Watch(other)
	other.awaitTrust(t)
	losses := other.losses()
	server.Do(t, "FLUSHALL")
	until(t, "to be told that all may have changed", func() bool { return other.losses() > losses })
	other.awaitTrust(t)
}
