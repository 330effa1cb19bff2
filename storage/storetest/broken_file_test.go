package storetest

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

var brokenFiles = []defect{
	{name: "loses the last write", caughtBy: "machine",
		open: journaled(func(js []journalEntry) []journalEntry { return js[:max(0, len(js)-1)] })},
	{name: "loses the last request", caughtBy: "machine",
		open: journaled(func(js []journalEntry) []journalEntry {
			for i, j := range slices.Backward(js) {
				if j.request {
					return slices.Delete(js, i, i+1)
				}
			}
			return js
		})},
	{name: "counts the last request twice", caughtBy: "machine",
		open: journaled(func(js []journalEntry) []journalEntry {
			if n := len(js); n > 0 && js[n-1].request {
				js = append(js, js[n-1])
			}
			return js
		})},
	{name: "loses denials that were not stored yet", caughtBy: "machine",
		open: journaled(func(js []journalEntry) []journalEntry {
			return slices.DeleteFunc(js, func(j journalEntry) bool { return j.denied })
		})},
	{name: "restores deleted keys", caughtBy: "machine",
		open: func() Opened { return resurrecting(memstore.New(), &sync.Map{}) }},
	{name: "answers after Close", caughtBy: "close/afterwards", open: wrapped(func(s core.Store) core.Store {
		return &answersClosed{Store: s}
	})},
	{name: "runs a transaction after Close", caughtBy: "close/afterwards", open: wrapped(func(s core.Store) core.Store {
		return runsClosed{s}
	})},
	{name: "denies after Close", caughtBy: "close/under load", open: wrapped(func(s core.Store) core.Store {
		return deniesClosed{s}
	})},
}

// journalEntry is a write that can be replayed.
type journalEntry struct {
	do              func(core.Store)
	request, denied bool
}

// journal is a store that replays all writes when it is opened again.
type journal struct {
	core.Store
	mu      sync.Mutex
	entries []journalEntry
}

// journaled opens journals that edit their entries before the replay.
func journaled(edit func([]journalEntry) []journalEntry) func() Opened {
	return func() Opened {
		j := &journal{Store: memstore.New()}
		return Opened{Store: j, Reopen: func(testing.TB) core.Store {
			next := &journal{Store: memstore.New(), entries: edit(j.entries)}
			for _, x := range next.entries {
				x.do(next.Store)
			}
			j = next
			return j
		}}
	}
}

func (j *journal) note(x journalEntry, err error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err == nil {
		j.entries = append(j.entries, x)
	}
	return err
}

func (j *journal) CreateAccount(ctx context.Context, a *core.Account, k *core.OwnerKey) error {
	account, key := *a, *k
	do := func(s core.Store) { _ = s.CreateAccount(ctx, &account, &key) }
	return j.note(journalEntry{do: do}, j.Store.CreateAccount(ctx, a, k))
}

func (j *journal) UpdateAccount(ctx context.Context, id string, fn func(*core.Account) error) (*core.Account, error) {
	do := func(s core.Store) { _, _ = s.UpdateAccount(ctx, id, fn) }
	a, err := j.Store.UpdateAccount(ctx, id, fn)
	return a, j.note(journalEntry{do: do}, err)
}

func (j *journal) UpdateAccess(ctx context.Context, id string, fn func(*core.Access) error) (*core.Access, error) {
	a, err := j.Store.UpdateAccess(ctx, id, fn)
	result := copyOf(a)
	do := func(s core.Store) {
		_, _ = s.UpdateAccess(ctx, id, func(a *core.Access) error { *a = *result; return nil })
	}
	return a, j.note(journalEntry{do: do}, err)
}

func (j *journal) CreateOwnerKey(ctx context.Context, k *core.OwnerKey) error {
	key := *k
	do := func(s core.Store) { _ = s.CreateOwnerKey(ctx, &key) }
	return j.note(journalEntry{do: do}, j.Store.CreateOwnerKey(ctx, k))
}

func (j *journal) UpdateOwnerKey(ctx context.Context, account, id string, fn func(*core.OwnerKey) error) (*core.OwnerKey, error) {
	do := func(s core.Store) { _, _ = s.UpdateOwnerKey(ctx, account, id, fn) }
	k, err := j.Store.UpdateOwnerKey(ctx, account, id, fn)
	return k, j.note(journalEntry{do: do}, err)
}

func (j *journal) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	do := func(s core.Store) { _ = s.Update(ctx, account, fn) }
	wrote := false
	err := j.Store.Update(ctx, account, func(tx core.Tx) error {
		before := writesOf(tx, &wrote)
		return fn(before)
	})
	if !wrote {
		return err
	}
	return j.note(journalEntry{do: do}, err)
}

func (j *journal) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	given := copyOf(*c)
	do := func(s core.Store) { _, _ = s.Consume(ctx, &given) }
	v, err := j.Store.Consume(ctx, c)
	return v, j.note(journalEntry{do: do, request: v.Allowed && c.Cost > 0, denied: !v.Allowed}, err)
}

// noting records whether a transaction wrote anything.
type noting struct {
	core.Tx
	wrote *bool
}

func writesOf(tx core.Tx, wrote *bool) core.Tx { return noting{tx, wrote} }

func (n noting) PutUser(u *core.User) error { *n.wrote = true; return n.Tx.PutUser(u) }
func (n noting) PutPlan(p *core.Plan) error { *n.wrote = true; return n.Tx.PutPlan(p) }
func (n noting) PutKey(k *core.Key) error   { *n.wrote = true; return n.Tx.PutKey(k) }
func (n noting) DeleteUser(id int64) error  { *n.wrote = true; return n.Tx.DeleteUser(id) }
func (n noting) DeletePlan(id string) error { *n.wrote = true; return n.Tx.DeletePlan(id) }
func (n noting) DeleteKey(id string) error  { *n.wrote = true; return n.Tx.DeleteKey(id) }

// resurrecting opens stores that restore every key that was ever read.
func resurrecting(inner *memstore.Store, seen *sync.Map) Opened {
	return Opened{Store: remembersKeys{inner, seen}, Reopen: func(testing.TB) core.Store {
		inner = inner.Reopen()
		ctx := context.Background()
		seen.Range(func(_, v any) bool {
			k := v.(*core.Key)
			if _, err := inner.User(ctx, k.AccountID, k.UserID); err == nil {
				_ = inner.Update(ctx, k.AccountID, func(tx core.Tx) error { return tx.PutKey(k) })
			}
			return true
		})
		return remembersKeys{inner, seen}
	}}
}

type remembersKeys struct {
	core.Store
	seen *sync.Map
}

func (s remembersKeys) KeyByDigest(ctx context.Context, d secrets.Digest) (*core.Key, error) {
	k, err := s.Store.KeyByDigest(ctx, d)
	if err == nil {
		s.seen.Store(k.AccountID+k.ID, copyOf(k))
	}
	return k, err
}

// answersClosed still returns the last account after Close.
type answersClosed struct {
	core.Store
	mu   sync.Mutex
	last *core.Account
}

func (s *answersClosed) AccountByName(ctx context.Context, name string) (*core.Account, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, err := s.Store.AccountByName(ctx, name)
	if err == nil {
		s.last = a
	} else if s.last != nil && s.last.Name == name {
		return s.last, nil
	}
	return a, err
}

type runsClosed struct{ core.Store }

func (s runsClosed) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	ran := false
	err := s.Store.Update(ctx, account, func(tx core.Tx) error {
		ran = true
		return fn(tx)
	})
	if err != nil && !ran {
		_ = fn(&optimisticTx{ctx: ctx, s: s.Store, account: account})
	}
	return err
}

type deniesClosed struct{ core.Store }

func (s deniesClosed) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	v, err := s.Store.Consume(ctx, c)
	if err != nil {
		return core.ConsumeResult{}, nil
	}
	return v, err
}
