package storetest

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var ownerKeyCases = []testCase{
	{name: "owner key/read back", run: ownerKeyReadBack,
		promise: "an owner's key comes back as it went in, in force or not"},
	{name: "owner key/refusals", run: ownerKeyRefusals,
		promise: "CreateOwnerKey of a missing account is ErrAccountNotFound, with a digest that any account has ErrOwnerKeyExists"},
	{name: "owner key/list", run: ownerKeyList,
		promise: "OwnerKeys lists only the owner's keys of the account, in the order of creation, with their total"},
	{name: "owner key/update", run: ownerKeyUpdate,
		promise: "UpdateOwnerKey stores the changes of fn and returns the result; if fn fails, it returns its error and stores nothing"},
	{name: "owner key/updated at once", run: ownerKeyUpdatedAtOnce,
		promise: "UpdateOwnerKey is atomic: no concurrent update is lost"},
}

func ownerKeyID(k *core.OwnerKey) string { return k.ID }

func ownerKeyReadBack(e *env) {
	account := e.account()
	k := newOwnerKey(account, "okey_read")
	k.Name, k.Hint = "Ünïcode 日本 \x00\u2028", "lk_…wxyz"
	k.ExpiresAt, k.RevokedAt = new(noon.Add(time.Nanosecond)), new(noon.In(time.FixedZone("somewhere", -7200)))
	k.LastUsedAt = new(noon.Add(-time.Hour))
	e.ok("CreateOwnerKey", e.Store.CreateOwnerKey(e.ctx, k))

	got, err := e.Store.OwnerKeyByDigest(e.ctx, k.Digest)
	e.ok("OwnerKeyByDigest", err)
	e.same("owner's key", k, got)
	e.utc(got.CreatedAt, *got.ExpiresAt, *got.RevokedAt, *got.LastUsedAt)
	list := all(e, e.ownerKeys(account))
	if len(list) != 2 {
		e.Fatalf("owner's keys: got %d, want 2", len(list))
	}
	e.same("owner's key in the list", k, list[1])
	if list[0].ExpiresAt != nil || list[0].RevokedAt != nil {
		e.Errorf("times that were never set: got %v and %v, want nil", list[0].ExpiresAt, list[0].RevokedAt)
	}
	_, err = e.Store.OwnerKeyByDigest(e.ctx, core.DigestOf("another"))
	e.isErr("OwnerKeyByDigest of an unknown digest", err, core.ErrOwnerKeyNotFound)
}

func ownerKeyRefusals(e *env) {
	account, other := e.account(), e.account()
	lost := newOwnerKey("acct_missing", "okey_lost")
	e.isErr("a key of a missing account", e.Store.CreateOwnerKey(e.ctx, lost), core.ErrAccountNotFound)
	_, err := e.Store.OwnerKeyByDigest(e.ctx, lost.Digest)
	e.isErr("the refused key", err, core.ErrOwnerKeyNotFound)

	for _, of := range []string{account, other} {
		again := newOwnerKey(of, "okey_again")
		_, first := newAccount(account)
		again.Digest = first.Digest
		e.isErr("a digest that is taken", e.Store.CreateOwnerKey(e.ctx, again), core.ErrOwnerKeyExists)
		samePages(e, "owner's keys", []string{"okey_1"}, ownerKeyID, e.ownerKeys(of))
	}
}

func ownerKeyList(e *env) {
	account, other := e.account(), e.account()
	want := []string{"okey_1"}
	for i := range 12 { // not in the order of ids or times
		k := newOwnerKey(account, fmt.Sprintf("okey_%d", 100-i*7%12))
		k.CreatedAt = noon.Add(-time.Duration(i) * time.Hour)
		e.ok("CreateOwnerKey", e.Store.CreateOwnerKey(e.ctx, k))
		want = append(want, k.ID)
	}
	samePages(e, "owner's keys", want, ownerKeyID, e.ownerKeys(account))
	samePages(e, "owner's keys of another account", []string{"okey_1"}, ownerKeyID, e.ownerKeys(other))
	samePages(e, "owner's keys of a missing account", nil, ownerKeyID, e.ownerKeys("acct_missing"))
}

func ownerKeyUpdate(e *env) {
	account, other := e.account(), e.account()
	_, k := newAccount(account)
	revoke := func(k *core.OwnerKey) error {
		k.RevokedAt = new(noon)
		return nil
	}
	failure := errors.New("no")
	_, err := e.Store.UpdateOwnerKey(e.ctx, account, k.ID, func(k *core.OwnerKey) error {
		return errors.Join(revoke(k), failure)
	})
	e.isErr("UpdateOwnerKey when fn fails", err, failure)
	e.wantOwnerKey(k)

	_, err = e.Store.UpdateOwnerKey(e.ctx, account, "okey_missing", revoke)
	e.isErr("UpdateOwnerKey of a missing key", err, core.ErrOwnerKeyNotFound)
	e.ok("CreateOwnerKey", e.Store.CreateOwnerKey(e.ctx, newOwnerKey(account, "okey_2")))
	_, err = e.Store.UpdateOwnerKey(e.ctx, other, "okey_2", revoke)
	e.isErr("UpdateOwnerKey by another account", err, core.ErrOwnerKeyNotFound)
	e.wantOwnerKey(newOwnerKey(account, "okey_2"))

	got, err := e.Store.UpdateOwnerKey(e.ctx, account, k.ID, revoke)
	e.ok("UpdateOwnerKey", err)
	k.RevokedAt = new(noon)
	e.same("what UpdateOwnerKey returned", k, got)
	e.wantOwnerKey(k)
	_, untouched := newAccount(other)
	e.wantOwnerKey(untouched)
}

// wantOwnerKey fails unless the key is stored: by digest and in the list.
func (e *env) wantOwnerKey(want *core.OwnerKey) {
	e.Helper()
	got, err := e.Store.OwnerKeyByDigest(e.ctx, want.Digest)
	e.ok("OwnerKeyByDigest", err)
	e.same("owner's key", want, got)
	for _, k := range all(e, e.ownerKeys(want.AccountID)) {
		if k.ID == want.ID {
			e.same("owner's key in the list", want, k)
			return
		}
	}
	e.Errorf("owner's key %s is not in the list", want.ID)
}

func ownerKeyUpdatedAtOnce(e *env) {
	const callers, times = 8, 10
	account := e.account()
	_, k := newAccount(account)
	k.Name = "0"
	_, err := e.Store.UpdateOwnerKey(e.ctx, account, k.ID, func(s *core.OwnerKey) error {
		s.Name = k.Name
		return nil
	})
	e.ok("UpdateOwnerKey", err)
	e.parallel(callers, func(int) {
		for range times {
			_, err := e.Store.UpdateOwnerKey(e.ctx, account, k.ID, func(k *core.OwnerKey) error {
				n, err := strconv.Atoi(k.Name)
				k.Name = strconv.Itoa(n + 1)
				return err
			})
			if err != nil {
				e.Errorf("UpdateOwnerKey: %v", err)
			}
		}
	})
	k.Name = strconv.Itoa(callers * times)
	e.wantOwnerKey(k)
}
