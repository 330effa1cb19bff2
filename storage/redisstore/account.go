package redisstore

import (
	"context"
	"strconv"

	"github.com/redis/rueidis"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// CreateAccount implements [core.Store].
func (s *Store) CreateAccount(ctx context.Context, a *core.Account, k *core.OwnerKey) error {
	return s.updateRegistry(ctx, func(r *registryTx) error {
		if r.has("names", a.Name) {
			return core.ErrAccountExists
		}
		if r.has("owners", encodeDigest(k.Digest)) {
			return core.ErrOwnerKeyExists
		}
		b, err := record.Encode(a)
		if err != nil {
			return err
		}
		r.add("HSET", "names", a.Name, a.ID)
		r.add("HSET", "accounts", a.ID, string(b))
		r.add("RPUSH", "order", a.ID)
		return r.addOwnerKey(a.ID, k)
	})
}

// AccountByName implements [core.Store].
func (s *Store) AccountByName(ctx context.Context, name string) (a *core.Account, err error) {
	err = s.updateRegistry(ctx, func(r *registryTx) error {
		id, ok := r.get("HGET", "names", name)
		if !ok {
			return core.ErrAccountNotFound
		}
		b, ok := r.get("HGET", "accounts", id)
		if !ok {
			return core.ErrAccountNotFound
		}
		a, err = record.Decode[core.Account]([]byte(b))
		return err
	})
	return a, err
}

// Account implements [core.Store].
func (s *Store) Account(ctx context.Context, id string) (a *core.Account, err error) {
	err = s.updateRegistry(ctx, func(r *registryTx) error {
		b, ok := r.get("HGET", "accounts", id)
		if !ok {
			return core.ErrAccountNotFound
		}
		a, err = record.Decode[core.Account]([]byte(b))
		return err
	})
	return a, err
}

// Accounts implements [core.Store].
func (s *Store) Accounts(ctx context.Context, p core.Page) (page []*core.Account, total int, err error) {
	err = s.updateRegistry(ctx, func(r *registryTx) error {
		page, total, err = registryPage[core.Account](r, "order", "accounts", p)
		return err
	})
	return page, total, err
}

// UpdateAccount implements [core.Store].
func (s *Store) UpdateAccount(ctx context.Context, id string, fn func(*core.Account) error) (a *core.Account, err error) {
	err = s.updateRegistryOf(ctx, id, func(r *registryTx) error {
		b, ok := r.get("HGET", "accounts", id)
		if !ok {
			return core.ErrAccountNotFound
		}
		if a, err = record.Decode[core.Account]([]byte(b)); err != nil {
			return err
		}
		if err = fn(a); err != nil {
			return err
		}
		if a, err = replaceRecord(r, "accounts", id, a); err != nil {
			return err
		}
		r.writes.add("INVALIDATE", s.o.accountInvalidation(id, a.PrefixOfNewKeys()))
		return nil
	})
	if err != nil {
		return nil, err
	}
	return a, nil
}

// CreateOwnerKey implements [core.Store].
func (s *Store) CreateOwnerKey(ctx context.Context, k *core.OwnerKey) error {
	return s.updateRegistry(ctx, func(r *registryTx) error {
		if !r.has("accounts", k.AccountID) {
			return core.ErrAccountNotFound
		}
		if r.has("owners", encodeDigest(k.Digest)) {
			return core.ErrOwnerKeyExists
		}
		return r.addOwnerKey(k.AccountID, k)
	})
}

// OwnerKeyByDigest implements [core.Store].
func (s *Store) OwnerKeyByDigest(ctx context.Context, d core.Digest) (k *core.OwnerKey, err error) {
	err = s.updateRegistry(ctx, func(r *registryTx) error {
		k, err = r.ownerKey(encodeDigest(d))
		return err
	})
	return k, err
}

// OwnerKeys implements [core.Store].
func (s *Store) OwnerKeys(ctx context.Context, account string, p core.Page) (page []*core.OwnerKey, total int, err error) {
	err = s.updateRegistry(ctx, func(r *registryTx) error {
		page, total, err = registryPage[core.OwnerKey](r, "owners:"+account, "owners", p)
		return err
	})
	return page, total, err
}

// UpdateOwnerKey implements [core.Store].
func (s *Store) UpdateOwnerKey(ctx context.Context, account, id string, fn func(*core.OwnerKey) error) (k *core.OwnerKey, err error) {
	err = s.updateRegistryOf(ctx, account, func(r *registryTx) error {
		digest, ok := r.get("HGET", "owner-ids:"+account, id)
		if !ok {
			return core.ErrOwnerKeyNotFound
		}
		if k, err = r.ownerKey(digest); err != nil {
			return err
		}
		if err = fn(k); err != nil {
			return err
		}
		if k, err = replaceRecord(r, "owners", digest, k); err != nil {
			return err
		}
		r.invalidate(k.Digest)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return k, nil
}

// Access implements [core.Store].
func (s *Store) Access(ctx context.Context, account string) (ac *core.Access, err error) {
	err = s.updateRegistry(ctx, func(r *registryTx) error {
		ac, err = r.access(account)
		return err
	})
	return ac, err
}

// UpdateAccess implements [core.Store]. It works while memory is full, so that an operator can sign in and
// delete data.
func (s *Store) UpdateAccess(ctx context.Context, account string, fn func(*core.Access) error) (ac *core.Access, err error) {
	err = s.updateRegistryOf(ctx, account, func(r *registryTx) error {
		if ac, err = r.access(account); err != nil {
			return err
		}
		if err = fn(ac); err != nil {
			return err
		}
		ac, err = replaceRecord(r, "access", account, ac)
		return err
	})
	if err != nil {
		return nil, err
	}
	return ac, nil
}

// accountExists reports whether an account exists.
func (s *Store) accountExists(ctx context.Context, account string) (bool, error) {
	if _, known := s.knownAccounts.Load(account); known {
		return true, nil
	}
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	exists, err := s.do(ctx, s.client.B().Hexists().Key(s.o.registry().key("accounts")).Field(account).Build()).AsBool()
	if err != nil {
		return false, unavailable(err)
	}
	if exists {
		s.knownAccounts.Store(account, true)
	}
	return exists, nil
}

// registryTx is a transaction on the registry: all accounts and owner's keys.
type registryTx struct {
	ctx     context.Context
	s       *Store
	scope   string // name of the version key
	version string // of the first read; all reads must see it
	writes  *batch
	readErr error // the first failed read; later answers are zero
}

// updateRegistry runs fn, and commits its writes if the registry is unchanged since the first read.
// Otherwise it runs fn again.
func (s *Store) updateRegistry(ctx context.Context, fn func(*registryTx) error) error {
	return s.updateRegistryAt(ctx, "version", fn)
}

// updateRegistryOf is updateRegistry for a change of existing records of one account. It depends on a version of the account, so
// that a stream of form tokens or of uses of an owner's key delays no other account. fn neither creates nor deletes records.
func (s *Store) updateRegistryOf(ctx context.Context, account string, fn func(*registryTx) error) error {
	return s.updateRegistryAt(ctx, "version:"+account, fn)
}

func (s *Store) updateRegistryAt(ctx context.Context, scope string, fn func(*registryTx) error) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	return s.retryStale(func() (bool, error) {
		r := &registryTx{ctx: ctx, s: s, scope: scope, writes: newBatchOf(s.o.registry().key(scope))}
		err := fn(r)
		switch {
		case r.readErr == errStale:
			return false, nil
		case r.readErr != nil:
			return false, r.readErr
		case err != nil:
			return false, err
		case r.writes.empty():
			return true, nil
		}
		return s.commit(ctx, r.writes, r.version)
	})
}

// read runs a read command on the registry.
func (r *registryTx) read(command, name string, args ...string) (answer rueidis.RedisMessage, ok bool) {
	if r.readErr != nil {
		return answer, false
	}
	b := newBatchOf(r.s.o.registry().key(r.scope))
	b.add(command, r.s.o.registry().key(name), args...)
	version, answers, err := r.s.readBatch(r.ctx, b)
	if err == nil && r.version != "" && version != r.version {
		err = errStale
	}
	if err != nil {
		r.readErr = err
		return answer, false
	}
	r.version = version
	return answers[0], true
}

// get reads a string.
func (r *registryTx) get(command, name string, args ...string) (string, bool) {
	answer, ok := r.read(command, name, args...)
	if !ok {
		return "", false
	}
	return text(answer)
}

func (r *registryTx) has(hash, field string) bool {
	answer, ok := r.read("HEXISTS", hash, field)
	return ok && number(answer) == 1
}

func (r *registryTx) add(command, name string, args ...string) {
	r.writes.add(command, r.s.o.registry().key(name), args...)
}

func (r *registryTx) invalidate(d core.Digest) {
	r.writes.add("INVALIDATE", r.s.o.ownerKeyInvalidation(d))
}

func (r *registryTx) ownerKey(digest string) (*core.OwnerKey, error) {
	b, ok := r.get("HGET", "owners", digest)
	if !ok {
		return nil, core.ErrOwnerKeyNotFound
	}
	return record.Decode[core.OwnerKey]([]byte(b))
}

func (r *registryTx) access(account string) (*core.Access, error) {
	b, ok := r.get("HGET", "access", account)
	switch {
	case ok:
		return record.Decode[core.Access]([]byte(b))
	case r.has("accounts", account):
		return &core.Access{}, nil // no one has set up a sign-in
	}
	return nil, core.ErrAccountNotFound
}

func (r *registryTx) addOwnerKey(account string, k *core.OwnerKey) error {
	b, err := record.Encode(k)
	if err != nil {
		return err
	}
	digest := encodeDigest(k.Digest)
	r.writes.addsData = true
	r.add("HSET", "owners", digest, string(b))
	r.add("HSET", "owner-ids:"+account, k.ID, digest)
	r.add("RPUSH", "owners:"+account, digest)
	r.invalidate(k.Digest)
	return nil
}

// replaceRecord stores v in a field of a hash. It returns v as a reader would decode it.
func replaceRecord[T any](r *registryTx, hash, field string, v *T) (*T, error) {
	b, err := record.Encode(v)
	if err != nil {
		return nil, err
	}
	r.add("HSET", hash, field, string(b))
	return record.Decode[T](b)
}

// registryPage returns a page of records. order names the list of their ids, hash the hash with the
// records.
func registryPage[T any](r *registryTx, order, hash string, p core.Page) (page []*T, total int, err error) {
	n, ok := r.read("LLEN", order)
	first := p.Offset()
	if total = int(number(n)); !ok || first >= total {
		return nil, total, nil
	}
	answer, ok := r.read("LRANGE", order, strconv.Itoa(first), strconv.Itoa(first+p.Size-1))
	if !ok {
		return nil, 0, nil
	}
	ids, err := answer.AsStrSlice()
	if err != nil {
		return nil, 0, unavailable(err)
	}
	records, ok := r.read("HMGET", hash, ids...)
	if !ok {
		return nil, 0, nil
	}
	all, err := records.AsStrSlice()
	if err != nil {
		return nil, 0, unavailable(err)
	}
	for _, b := range all {
		item, err := record.Decode[T]([]byte(b))
		if err != nil {
			return nil, 0, err
		}
		page = append(page, item)
	}
	return page, total, nil
}
