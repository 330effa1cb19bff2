package storetest

import (
	"context"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// accountName returns the name of an account.
func (m *machine) accountName(id string) string {
	if m.obeys {
		return "name of " + id
	}
	return "name of " + id + awkward
}

// ownerKeyID returns the id of an owner's key. If the machine obeys, each account has other ids.
func (m *machine) ownerKeyID(account, id string) string {
	if m.obeys {
		return account + "_" + id
	}
	return id
}

// createAccount creates an account, and fails to create another one with the same name or the same digest.
func (m *machine) createAccount(t *rapid.T, id string) {
	m.accounts = append(m.accounts, id)
	taken := newOwnerKey(id, m.ownerKeyID(id, "okey_1")).Digest
	for _, c := range []struct {
		id, name string
		digest   secrets.Digest
	}{
		{id, m.accountName(id), taken},
		{id, m.accountName(id), taken},
		{id + "_again", m.accountName(id), secrets.DigestOf(id + "_again")},
		{id + "_again", "other name of " + id, taken},
	} {
		a, k := newAccount(c.id)
		k.ID = m.ownerKeyID(c.id, k.ID)
		a.Name, a.CreatedAt, k.Digest = c.name, noon.In(abroad), c.digest
		ctx := m.acting(t)
		m.both(t, "CreateAccount", func(s core.Store) (any, error) { return nil, s.CreateAccount(ctx, copyOf(a), copyOf(k)) })
		m.both(t, "Account", func(s core.Store) (any, error) { return s.Account(m.e.ctx, c.id) })
		m.both(t, "AccountByName", func(s core.Store) (any, error) { return s.AccountByName(m.e.ctx, c.name) })
		m.bothOwnerKeys(t, c.id, c.digest)
	}
}

func (m *machine) bothOwnerKeys(t *rapid.T, account string, d secrets.Digest) {
	m.both(t, "OwnerKeys", func(s core.Store) (any, error) {
		return listed(s.OwnerKeys(m.e.ctx, account, core.Page{Number: 1, Size: 100}))
	})
	m.both(t, "OwnerKeyByDigest", func(s core.Store) (any, error) { return s.OwnerKeyByDigest(m.e.ctx, d) })
}

// lookAccounts compares the accounts on a page, and one account in each way to read it.
func (m *machine) lookAccounts(t *rapid.T, account string, page core.Page) {
	name := m.accountName(account)
	name = rapid.SampledFrom([]string{name, strings.ToUpper(name), name + "x", account, ""}).Draw(t, "name")
	m.both(t, "Accounts", func(s core.Store) (any, error) { return listed(s.Accounts(m.e.ctx, page)) })
	m.both(t, "AccountByName", func(s core.Store) (any, error) { return s.AccountByName(m.e.ctx, name) })
	m.both(t, "Account", func(s core.Store) (any, error) { return s.Account(m.e.ctx, account) })
	m.both(t, "Access", func(s core.Store) (any, error) { return s.Access(m.e.ctx, account) })
}

// changeAccount changes an account, how people sign in to it, or one of its owner's keys.
func (m *machine) changeAccount(t *rapid.T) {
	rapid.SampledFrom([]func(*rapid.T){m.ownerKey, m.ownerKey, m.accountUpdate, m.accessUpdate, m.deleteAccount}).Draw(t, "change")(t)
}

// accountUpdate updates an account, or makes such a call fail. The name changes to a name of this or of another account, with or without an
// addition.
func (m *machine) accountUpdate(t *rapid.T) {
	account := m.anyAccount(t)
	abort, prefix := rapid.Bool().Draw(t, "abort"), m.next("prefix")+"_"
	name := m.accountName(rapid.SampledFrom([]string{account, account, account + "_renamed", m.account(t)}).Draw(t, "name"))
	disabled := rapid.Bool().Draw(t, "disabled")
	ctx := m.acting(t)
	m.both(t, "UpdateAccount", func(s core.Store) (any, error) {
		return s.UpdateAccount(ctx, account, func(a *core.Account) error {
			a.KeyPrefix, a.KeyPrefixes = prefix, append(a.KeyPrefixes, prefix)
			a.Disabled = disabled
			if err := a.Rename(name); err != nil {
				a.Name, a.FormerNames = name, append(a.FormerNames, a.Name)
			}
			if abort {
				return errAborted
			}
			return nil
		})
	})
	m.both(t, "Account", func(s core.Store) (any, error) { return s.Account(m.e.ctx, account) })
	m.both(t, "AccountByName", func(s core.Store) (any, error) { return s.AccountByName(m.e.ctx, name) })
	m.both(t, "AccountByName", func(s core.Store) (any, error) { return s.AccountByName(m.e.ctx, m.accountName(account)) })
}

// deleteAccount removes an account with everything in it, rarely, and creates another one with the same name and the same digests of owner's keys.
func (m *machine) deleteAccount(t *rapid.T) {
	if rapid.IntRange(0, 9).Draw(t, "rarely") != 0 {
		t.SkipNow()
	}
	account := m.anyAccount(t)
	m.both(t, "UpdateAccount", func(s core.Store) (any, error) {
		return s.UpdateAccount(m.e.ctx, account, func(a *core.Account) error { a.Deleting = true; return nil })
	})
	name := m.accountName(account)
	m.both(t, "AccountByName", func(s core.Store) (any, error) { return s.AccountByName(m.e.ctx, name) })
	m.both(t, "Account", func(s core.Store) (any, error) { return s.Account(m.e.ctx, account) })
	m.both(t, "PurgeAccount", func(s core.Store) (any, error) { return nil, purge(m.e.ctx, s, account) })
	m.forget(account)
	m.both(t, "Accounts", func(s core.Store) (any, error) { return listed(s.Accounts(m.e.ctx, core.Page{Number: 1, Size: 100})) })
	m.bothOwnerKeys(t, account, newOwnerKey(account, m.ownerKeyID(account, "okey_1")).Digest)
	m.bothDigests(t)
	if account == "acct_missing" {
		return
	}
	m.accounts = slices.DeleteFunc(m.accounts, func(a string) bool { return a == account })
	if _, err := m.model.AccountByName(m.e.ctx, name); err == nil { // another account has got the name
		name = m.accountName(m.next(account + "_"))
	}
	a, k := newAccount(m.next(account + "_"))
	k = newOwnerKey(a.ID, m.ownerKeyID(a.ID, "okey_1"))
	again := newOwnerKey(a.ID, m.ownerKeyID(a.ID, "okey_again"))
	a.Name, again.Digest = name, newOwnerKey(account, m.ownerKeyID(account, "okey_1")).Digest
	m.both(t, "CreateAccount", func(s core.Store) (any, error) { return nil, s.CreateAccount(m.e.ctx, copyOf(a), copyOf(k)) })
	m.both(t, "CreateOwnerKey", func(s core.Store) (any, error) { return nil, s.CreateOwnerKey(m.e.ctx, copyOf(again)) })
	m.accounts = append(m.accounts, a.ID)
}

// purge calls PurgeAccount until nothing is left.
func purge(ctx context.Context, s core.Store, account string) error {
	for {
		if more, err := s.PurgeAccount(ctx, account); !more || err != nil {
			return err
		}
	}
}

// forget removes what the machine knows of an account.
func (m *machine) forget(account string) {
	m.keys = slices.DeleteFunc(m.keys, func(k keyRef) bool { return k.account == account })
	m.named = slices.DeleteFunc(m.named, func(c core.Consumption) bool { return c.Account == account })
	m.holds = slices.DeleteFunc(m.holds, func(h heldRef) bool { return h.account == account })
}

// accessUpdate changes who may sign in to an account, or makes such a call fail.
func (m *machine) accessUpdate(t *rapid.T) {
	account, abort, to := m.anyAccount(t), rapid.Bool().Draw(t, "abort"), someAccess()
	if m.obeys {
		to.Password = "$argon2id$v=19$m=19456,t=2,p=1$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY"
		to.People[0].Password = to.Password
	}
	to.Links = to.Links[:rapid.IntRange(0, 2).Draw(t, "links")]
	to.Sessions = to.Sessions[rapid.IntRange(0, 2).Draw(t, "first session"):]
	ctx := m.acting(t)
	m.both(t, "UpdateAccess", func(s core.Store) (any, error) {
		given := copyOf(to)
		defer func() { spoil(&given) }()
		return s.UpdateAccess(ctx, account, func(a *core.Access) error {
			if *a = given; abort {
				return errAborted
			}
			return nil
		})
	})
	m.both(t, "Access", func(s core.Store) (any, error) { return s.Access(m.e.ctx, account) })
}

// ownerKey creates or updates an owner's key, or makes such a call fail.
func (m *machine) ownerKey(t *rapid.T) {
	account := m.anyAccount(t)
	id := m.ownerKeyID(account, rapid.SampledFrom([]string{"okey_1", "okey_2", "okey_3"}).Draw(t, "id"))
	k, ctx := newOwnerKey(account, id), m.acting(t)
	update := func(fn func(*core.OwnerKey) error) {
		m.both(t, "UpdateOwnerKey", func(s core.Store) (any, error) { return s.UpdateOwnerKey(ctx, account, id, fn) })
	}
	switch rapid.SampledFrom([]string{"create", "taken", "revoke", "give up"}).Draw(t, "what") {
	case "create":
		k.CreatedAt, k.Name = m.someNow(), m.text(t, m.next("owner"))
		k.ExpiresAt = rapid.SampledFrom([]*time.Time{nil, new(m.now.Add(time.Hour))}).Draw(t, "expires")
		k.LastUsedAt = rapid.SampledFrom([]*time.Time{nil, new(m.now.In(abroad))}).Draw(t, "last used")
		m.both(t, "CreateOwnerKey", func(s core.Store) (any, error) { return nil, s.CreateOwnerKey(ctx, copyOf(k)) })
	case "taken":
		k.AccountID, k.ID = m.account(t), "okey_taken"
		k.Digest = newOwnerKey(m.accounts[0], m.ownerKeyID(m.accounts[0], "okey_1")).Digest
		m.both(t, "CreateOwnerKey", func(s core.Store) (any, error) { return nil, s.CreateOwnerKey(ctx, copyOf(k)) })
	case "revoke":
		now := m.now.In(abroad)
		update(func(k *core.OwnerKey) error { k.RevokedAt = &now; return nil })
	case "give up":
		update(func(k *core.OwnerKey) error { k.Name = "given up"; return errAborted })
	}
	m.bothOwnerKeys(t, account, k.Digest)
}
