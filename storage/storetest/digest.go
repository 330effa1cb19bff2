package storetest

import (
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var digestCases = []testCase{
	{name: "digest/regenerated", run: digestRegenerated,
		promise: "exactly the Digests of a key find it, whether they still work or not"},
	{name: "digest/deleted", run: digestGone,
		promise: "no digest finds a key that was deleted, alone or with its user"},
	{name: "digest/any account", run: digestAnyAccount,
		promise: "KeyByDigest finds a key of any account, also an inactive or expired one"},
}

func digestRegenerated(e *env) {
	account := e.account()
	e.put(newUser(account, "user"))
	k := newKey(account, "key_1", 1, "plan_x")
	e.put(k)
	e.wantKey(k)
	with := func(current int, previous ...int) {
		e.Helper()
		k.Digest, k.Previous = digest(account, k.ID, current), nil
		for _, p := range previous {
			k.Previous = append(k.Previous, core.GraceValue{Digest: digest(account, k.ID, p), Until: noon.Add(-time.Hour)})
		}
		e.put(k)
		e.wantKey(k)
		found := map[core.Digest]bool{}
		for _, d := range k.Digests() {
			found[d] = true
		}
		for n := range 6 {
			if d := digest(account, k.ID, n); !found[d] {
				_, err := e.Store.KeyByDigest(e.ctx, d)
				e.isErr("KeyByDigest of another value", err, core.ErrKeyNotFound)
			}
		}
	}
	with(2)          // replaced without grace
	with(3, 2)       // replaced with grace
	with(4, 2, 3)    // replaced with grace again
	with(4, 3)       // one grace has ended
	with(5)          // replaced without grace
	with(3, 5, 4, 2) // earlier values come back
}

func digestGone(e *env) {
	account := e.account()
	e.put(newUser(account, "a"), newUser(account, "b"))
	for i, id := range []string{"key_1", "key_2"} {
		k := newKey(account, id, int64(i+1), "plan_x")
		e.put(k)
		k.Digest, k.Previous = digest(account, id, 3), []core.GraceValue{
			{Digest: digest(account, id, 1), Until: noon}, {Digest: digest(account, id, 2), Until: noon}}
		e.put(k)
		e.wantKey(k)
	}
	e.deleteKeys(account, "key_1")
	e.noKey(account, "key_1", 3)
	e.deleteUsers(account, 2)
	e.noKey(account, "key_2", 3)
	e.reopen()
	e.noKey(account, "key_1", 3)
	e.noKey(account, "key_2", 3)
}

func digestAnyAccount(e *env) {
	for _, account := range []string{e.account(), e.account()} {
		e.put(newUser(account, "user"))
		k := newKey(account, "key_1", 1, "plan_x") // the ID is the same in both
		k.Status, k.ExpiresAt = core.KeyInactive, new(noon.Add(-time.Hour))
		e.put(k)
		e.wantKey(k)
	}
	_, err := e.Store.KeyByDigest(e.ctx, core.Digest{})
	e.isErr("KeyByDigest of an unknown digest", err, core.ErrKeyNotFound)
}
