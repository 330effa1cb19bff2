package storetest

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var keyCases = []testCase{
	{name: "key/read back", run: keyReadBack,
		promise: "strings, numbers and compact JSON of a key come back as they went in, times as the same instant in UTC"},
	{name: "key/replace", run: keyReplace,
		promise: "PutKey stores a key in place of the one with its ID, and clears members that are now empty"},
	{name: "key/list", run: keyList,
		promise: "Keys lists the keys by Seq, which grows with every new key and is never reused"},
	{name: "key/filter", run: keyFilter,
		promise: "KeyFilter selects the keys that match every member that is set"},
	{name: "key/filter after changes", run: keyFilterAfterChanges,
		promise: "KeyFilter selects by the current user, plan and status of a key"},
}

func keyReadBack(e *env) {
	account := e.account()
	full := newKey(account, "key_full", 1, "plan_x")
	full.Name, full.Hint, full.Status, full.Metadata = awkward, "lk_user_…ÿ", core.KeyInactive, awkwardJSON
	full.ExpiresAt = new(noon.In(time.FixedZone("somewhere", 3600)))
	for i := range 16 {
		full.Previous = append(full.Previous, core.GraceValue{
			Digest: digest(account, full.ID, 100-i), Until: noon.Add(time.Duration(-i)).In(time.FixedZone("elsewhere", -3600))})
	}
	bare := newKey(account, "key_bare", 1, "")
	e.put(newUser(account, "user"))
	e.put(full, bare)
	e.wantKey(full)
	e.wantKey(bare)

	got, err := e.Store.Key(e.ctx, account, full.ID)
	e.ok("Key", err)
	e.utc(got.CreatedAt, got.UpdatedAt, *got.ExpiresAt, got.Previous[3].Until)
	got, err = e.Store.Key(e.ctx, account, bare.ID)
	e.ok("Key", err)
	if got.ExpiresAt != nil || got.Metadata != nil {
		e.Errorf("members that were never set: got %v and %v, want nil", got.ExpiresAt, got.Metadata)
	}
}

// wantKey fails unless the key is stored: by id, by each digest, in a transaction and in the list.
func (e *env) wantKey(want *core.Key) {
	e.Helper()
	got, err := e.Store.Key(e.ctx, want.AccountID, want.ID)
	e.ok("Key", err)
	e.same("Key", want, got)
	for i, d := range want.Digests() {
		got, err := e.Store.KeyByDigest(e.ctx, d)
		e.ok(fmt.Sprintf("KeyByDigest of value %d", i), err)
		e.same(fmt.Sprintf("KeyByDigest of value %d", i), want, got)
	}
	e.update(want.AccountID, func(tx core.Tx) (err error) {
		got, err = tx.Key(want.ID)
		return err
	})
	e.same("Key in a transaction", want, got)
	for _, k := range all(e, e.keys(want.AccountID, core.KeyFilter{})) {
		if k.ID == want.ID {
			e.same("key in the list", want, k)
			return
		}
	}
	e.Errorf("key %s is not in the list", want.ID)
}

// noKey fails unless a key is deleted, with its first n values.
func (e *env) noKey(account, id string, n int) {
	e.Helper()
	_, err := e.Store.Key(e.ctx, account, id)
	e.isErr("Key "+id, err, core.ErrKeyNotFound)
	for i := range n {
		_, err := e.Store.KeyByDigest(e.ctx, digest(account, id, i+1))
		e.isErr(fmt.Sprintf("KeyByDigest of value %d of %s", i+1, id), err, core.ErrKeyNotFound)
	}
	e.update(account, func(tx core.Tx) error {
		_, err := tx.Key(id)
		e.isErr("Key "+id+" in a transaction", err, core.ErrKeyNotFound)
		return nil
	})
}

func keyReplace(e *env) {
	account := e.account()
	e.put(newUser(account, "a"), newUser(account, "b"))
	k, other := newKey(account, "key_1", 1, "plan_x"), newKey(account, "key_10", 1, "plan_x")
	k.ExpiresAt, k.Metadata = new(noon), json.RawMessage(`{"a":1}`)
	e.put(k, other)

	k.Name, k.UserID, k.PlanID, k.Status, k.Hint = "after", 2, "plan_y", core.KeyInactive, "lk_user_…after"
	k.ExpiresAt, k.Metadata, k.UpdatedAt = new(noon.Add(time.Second)), json.RawMessage(`{}`), noon.Add(time.Hour)
	e.put(k)
	e.wantKey(k)
	k.PlanID, k.Status, k.ExpiresAt, k.Metadata = "", core.KeyActive, nil, nil
	e.put(k)
	e.wantKey(k)
	e.wantKey(other)
	e.wantKeys(account, core.KeyFilter{}, k.ID, other.ID)

	again := newKey(account, k.ID, 1, "plan_x") // a caller that got ErrUnavailable may create the key twice
	e.put(again)
	if again.Seq <= other.Seq {
		e.Errorf("Seq of a key that is put as new: got %d, want more than %d", again.Seq, other.Seq)
	}
	e.wantKey(again)
	e.wantKeys(account, core.KeyFilter{}, other.ID, k.ID)
	e.wantKeys(account, core.KeyFilter{UserID: 2})
}

func keyList(e *env) {
	account := e.account()
	e.put(newUser(account, "user"))
	var want []string
	var last int64
	for i := range 12 { // not in the order of ids or times
		k := newKey(account, fmt.Sprintf("key_%d", 100-i*7%12), 1, "plan_x")
		k.CreatedAt = noon.Add(-time.Duration(i) * time.Hour)
		e.put(k)
		if k.Seq <= last {
			e.Errorf("Seq of a new key: got %d, want more than %d", k.Seq, last)
		}
		want, last = append(want, k.ID), k.Seq
	}
	e.wantKeys(account, core.KeyFilter{}, want...)
	e.deleteKeys(account, want[11], want[5], want[0])
	want = append(want[1:5:5], want[6:11]...)
	e.wantKeys(account, core.KeyFilter{}, want...)
	e.put(newKey(account, "key_a", 1, ""), newKey(account, "key_Z", 1, ""))
	want = append(want, "key_a", "key_Z")
	e.wantKeys(account, core.KeyFilter{}, want...)
	e.deleteKeys(account, want...)
	e.wantKeys(account, core.KeyFilter{})
	e.reopen()
	k := newKey(account, "key_last", 1, "")
	e.put(k)
	if k.Seq <= last+2 {
		e.Errorf("Seq after deletions and reopening: got %d, want more than %d", k.Seq, last+2)
	}
	e.wantKeys(account, core.KeyFilter{}, k.ID)
}

// keyFilters returns every combination of members, each with values that match and one that does
// not.
func keyFilters() []core.KeyFilter {
	var fs []core.KeyFilter
	for _, user := range []int64{0, 1, 2, 10, 99} {
		for _, plan := range []*string{nil, new(""), new("plan_x"), new("plan_xy"), new("plan_missing")} {
			for _, status := range []core.KeyStatus{"", core.KeyActive, core.KeyInactive} {
				fs = append(fs, core.KeyFilter{UserID: user, PlanID: plan, Status: status})
			}
		}
	}
	return fs
}

// wantFiltered fails unless every filter selects from the keys, given in order, as the contract
// says.
func (e *env) wantFiltered(account string, keys []*core.Key) {
	e.Helper()
	for _, f := range keyFilters() {
		var want []string
		for _, k := range keys {
			if (f.UserID == 0 || f.UserID == k.UserID) && (f.PlanID == nil || *f.PlanID == k.PlanID) &&
				(f.Status == "" || f.Status == k.Status) {
				want = append(want, k.ID)
			}
		}
		e.wantKeys(account, f, want...)
	}
}

// mixedKeys stores ten users and a key for every combination of user, plan and status, some of them
// twice.
func (e *env) mixedKeys(account string) (keys []*core.Key) {
	e.Helper()
	for range 10 {
		e.put(newUser(account, "user"))
	}
	for i := range 23 {
		user := []int64{1, 2, 10}[i%3]
		k := newKey(account, fmt.Sprintf("key_%d", i), user, []string{"", "plan_x", "plan_xy"}[i/3%3])
		if i%2 == 1 {
			k.Status = core.KeyInactive
		}
		e.put(k)
		keys = append(keys, k)
	}
	return keys
}

func keyFilter(e *env) {
	account, other := e.account(), e.account()
	keys := e.mixedKeys(account)
	e.wantFiltered(account, keys)
	e.wantFiltered(other, nil)
}

func keyFilterAfterChanges(e *env) {
	account := e.account()
	keys := e.mixedKeys(account)
	keys[0].UserID, keys[1].UserID = 10, 1
	keys[3].PlanID, keys[4].PlanID, keys[5].PlanID = "", "plan_xy", "plan_x"
	keys[6].Status, keys[7].Status = core.KeyInactive, core.KeyActive
	keys[8].UserID, keys[8].PlanID, keys[8].Status = 1, "plan_x", core.KeyActive
	for _, k := range keys[:9] {
		e.put(k)
	}
	e.wantFiltered(account, keys)

	e.deleteKeys(account, keys[22].ID, keys[9].ID)
	keys = append(keys[:9:9], keys[10:22]...)
	e.wantFiltered(account, keys)
	e.deleteUsers(account, 2)
	var left []*core.Key
	for _, k := range keys {
		if k.UserID != 2 {
			left = append(left, k)
		}
	}
	e.wantFiltered(account, left)
	e.reopen()
	e.wantFiltered(account, left)
}

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
