package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var accessCases = []testCase{
	{name: "access/read back", run: accessReadBack,
		promise: "the Access of an account comes back unchanged, also after reopening; the Access of another account does not change"},
	{name: "access/refusals", run: accessRefusals,
		promise: "Access and UpdateAccess of a missing account are ErrAccountNotFound; if fn fails, UpdateAccess returns its error and stores nothing"},
	{name: "access/updated at once", run: accessUpdatedAtOnce,
		promise: "UpdateAccess is atomic: no concurrent update is lost"},
	{name: "access/own copy", run: accessOwnCopy,
		promise: "the results of Access and UpdateAccess, and the argument of fn, are copies"},
	{name: "account/by id", run: accountByID,
		promise: "Account returns the account with the id, or ErrAccountNotFound"},
}

// someAccess returns an Access with every member set.
func someAccess() core.Access {
	return core.Access{
		Password: "$argon2id$v=19$Ünïcode \x00",
		Links:    []core.SignInLink{{Digest: core.DigestOf("link 1"), ExpiresAt: noon.In(time.FixedZone("somewhere", 3600))}, {Digest: core.DigestOf("link 2"), ExpiresAt: noon}},
		Sessions: []core.Session{{Digest: core.DigestOf("session 1"), ByLink: true, CreatedAt: noon, SeenAt: noon.Add(time.Nanosecond)},
			{Digest: core.DigestOf("session 2"), CreatedAt: noon.Add(time.Hour), SeenAt: noon.Add(time.Hour), FormsAfter: noon,
				SpentForms: []core.FormToken{{ID: "form 1", At: noon}, {ID: "form 2", At: noon.Add(time.Minute)}}}},
		Browsers: []core.Browser{{Digest: core.DigestOf("browser 1"), SeenAt: noon}, {Digest: core.DigestOf("browser 2"), SeenAt: noon.Add(time.Hour)}},
	}
}

// setAccess stores an Access.
func (e *env) setAccess(account string, to core.Access) *core.Access {
	e.Helper()
	got, err := e.Store.UpdateAccess(e.ctx, account, func(ac *core.Access) error { *ac = to; return nil })
	e.ok("UpdateAccess", err)
	return got
}

// wantAccess fails unless the account has the Access.
func (e *env) wantAccess(account string, want core.Access) {
	e.Helper()
	got, err := e.Store.Access(e.ctx, account)
	e.ok("Access", err)
	e.same("access", &want, got)
	for _, l := range got.Links {
		e.utc(l.ExpiresAt)
	}
	for _, se := range got.Sessions {
		e.utc(se.CreatedAt, se.SeenAt)
	}
	for _, b := range got.Browsers {
		e.utc(b.SeenAt)
	}
}

func accessReadBack(e *env) {
	account, other := e.account(), e.account()
	e.wantAccess(account, core.Access{})
	e.same("result of UpdateAccess", new(someAccess()), e.setAccess(account, someAccess()))
	for range 2 {
		e.wantAccess(account, someAccess())
		e.wantAccess(other, core.Access{})
		e.reopen()
	}
	e.setAccess(account, core.Access{Password: "another"})
	e.wantAccess(account, core.Access{Password: "another"})
	e.setAccess(account, core.Access{})
	e.wantAccess(account, core.Access{})
}

func accessRefusals(e *env) {
	account := e.account()
	e.setAccess(account, someAccess())
	failure := errors.New("no")
	_, err := e.Store.UpdateAccess(e.ctx, account, func(ac *core.Access) error {
		*ac = core.Access{}
		return failure
	})
	e.isErr("UpdateAccess when fn fails", err, failure)
	e.wantAccess(account, someAccess())
	for _, missing := range []string{"acct_missing", ""} {
		_, err = e.Store.Access(e.ctx, missing)
		e.isErr("Access of a missing account", err, core.ErrAccountNotFound)
		_, err = e.Store.UpdateAccess(e.ctx, missing, func(*core.Access) error { return nil })
		e.isErr("UpdateAccess of a missing account", err, core.ErrAccountNotFound)
	}
}

func accessUpdatedAtOnce(e *env) {
	const callers, times = 8, 10
	account := e.account()
	e.setAccess(account, core.Access{Password: "0"})
	e.parallel(callers, func(int) {
		for range times {
			_, err := e.Store.UpdateAccess(e.ctx, account, func(ac *core.Access) error {
				n, err := strconv.Atoi(ac.Password)
				ac.Password = strconv.Itoa(n + 1)
				return err
			})
			if err != nil {
				e.Errorf("UpdateAccess: %v", err)
			}
		}
	})
	e.wantAccess(account, core.Access{Password: strconv.Itoa(callers * times)})
}

func accessOwnCopy(e *env) {
	account := e.account()
	given := someAccess()
	spoil := func(ac *core.Access) {
		ac.Links[0].Digest, ac.Sessions[1].SeenAt = core.DigestOf("spoilt"), time.Time{}
		ac.Sessions[1].SpentForms[0].ID, ac.Browsers[0].Digest = "spoilt", core.DigestOf("spoilt")
		ac.Links, ac.Sessions = slices.Delete(ac.Links, 1, 2), slices.Delete(ac.Sessions, 0, 1)
	}
	returned := e.setAccess(account, given)
	spoil(&given)
	spoil(returned)
	read, err := e.Store.Access(e.ctx, account)
	e.ok("Access", err)
	spoil(read)
	e.wantAccess(account, someAccess())
}

func accountByID(e *env) {
	account, other := e.account(), e.account()
	for _, id := range []string{account, other} {
		want, _ := newAccount(id)
		got, err := e.Store.Account(e.ctx, id)
		e.ok("Account", err)
		e.same("account", want, got)
		e.utc(got.CreatedAt)
	}
	for _, id := range []string{"acct_missing", "", account + "x"} {
		_, err := e.Store.Account(e.ctx, id)
		e.isErr("Account that is missing", err, core.ErrAccountNotFound)
	}
}

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
