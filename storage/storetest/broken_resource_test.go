package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

var brokenResources = []defect{
	{name: "shows another account's user", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return leaksUsers{s} })},
	{name: "lets another account revoke an owner's key", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return revokesAnywhere{s} })},
	{name: "stores half an account", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return halfAnAccount{s} })},
	{name: "stores a change of an account that fn refused", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return storesRefused{s} })},
	{name: "ignores the case of an account name", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return foldsNames{s} })},
	{name: "accepts puts into a missing account", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return takesAnything{s} })},
	{name: "returns local times", caughtBy: "machine",
		open: users(func(u *core.User) { u.CreatedAt = u.CreatedAt.In(time.FixedZone("here", 3600)) })},
	{name: "keeps microseconds", caughtBy: "machine",
		open: users(func(u *core.User) { u.CreatedAt = u.CreatedAt.Truncate(time.Microsecond) })},
	{name: "reformats metadata", caughtBy: "machine",
		open: users(func(u *core.User) {
			var v any
			if json.Unmarshal(u.Metadata, &v) == nil || u.Metadata != nil {
				u.Metadata, _ = json.Marshal(v)
			}
		})},
	{name: "returns its own resources", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return &sharesPlans{Store: s, held: map[string]*core.Plan{}} })},
	{name: "returns a shared key by digest", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return &sharesKeys{Store: s, held: map[secrets.Digest]*core.Key{}} })},
	{name: "finds a key by a replaced value", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return &findsReplaced{Store: s, seen: map[secrets.Digest]*core.Key{}} })},
	{name: "finds no key by its earlier values", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return findsCurrent{s} })},
	{name: "finds a key of a deleted user", caughtBy: "machine",
		open: wrapped(func(s core.Store) core.Store { return &findsDeleted{Store: s, seen: map[secrets.Digest]*core.Key{}} })},
}

type leaksUsers struct{ core.Store }

func (s leaksUsers) User(ctx context.Context, account string, id int64) (*core.User, error) {
	u, err := s.Store.User(ctx, account, id)
	if !errors.Is(err, core.ErrUserNotFound) {
		return u, err
	}
	accounts, _, _ := s.Accounts(ctx, core.Page{Number: 1, Size: 1 << 20})
	for _, a := range accounts {
		if u, err := s.Store.User(ctx, a.ID, id); err == nil {
			return u, nil
		}
	}
	return nil, err
}

type revokesAnywhere struct{ core.Store }

func (s revokesAnywhere) UpdateOwnerKey(ctx context.Context, account, id string, fn func(*core.OwnerKey) error) (*core.OwnerKey, error) {
	k, err := s.Store.UpdateOwnerKey(ctx, account, id, fn)
	accounts, _, _ := s.Accounts(ctx, core.Page{Number: 1, Size: 1 << 20})
	for i := 0; errors.Is(err, core.ErrOwnerKeyNotFound) && i < len(accounts); i++ {
		k, err = s.Store.UpdateOwnerKey(ctx, accounts[i].ID, id, fn)
	}
	return k, err
}

// halfAnAccount stores the account before it checks the key.
type halfAnAccount struct{ core.Store }

func (s halfAnAccount) CreateAccount(ctx context.Context, a *core.Account, k *core.OwnerKey) error {
	err := s.Store.CreateAccount(ctx, a, k)
	if errors.Is(err, core.ErrOwnerKeyExists) {
		_ = s.Store.CreateAccount(ctx, a, newOwnerKey(a.ID, "okey_half"))
	}
	return err
}

type storesRefused struct{ core.Store }

func (s storesRefused) UpdateAccount(ctx context.Context, id string, fn func(*core.Account) error) (*core.Account, error) {
	var refused error
	a, err := s.Store.UpdateAccount(ctx, id, func(a *core.Account) error {
		refused = fn(a)
		return nil
	})
	if refused != nil {
		return nil, refused
	}
	return a, err
}

type foldsNames struct{ core.Store }

func (s foldsNames) AccountByName(ctx context.Context, name string) (*core.Account, error) {
	accounts, _, err := s.Accounts(ctx, core.Page{Number: 1, Size: 1 << 20})
	for _, a := range accounts {
		if core.FoldEmail(a.Name) == core.FoldEmail(name) {
			return a, nil
		}
	}
	return nil, errors.Join(err, core.ErrAccountNotFound)
}

type takesAnything struct{ core.Store }

func (s takesAnything) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	err := s.Store.Update(ctx, account, fn)
	if errors.Is(err, core.ErrAccountNotFound) {
		return nil
	}
	return err
}

// changedUsers changes every result of User.
type changedUsers struct {
	core.Store
	alter func(*core.User)
}

func users(alter func(*core.User)) func() Opened {
	return wrapped(func(s core.Store) core.Store { return changedUsers{s, alter} })
}

func (s changedUsers) User(ctx context.Context, account string, id int64) (*core.User, error) {
	u, err := s.Store.User(ctx, account, id)
	if err == nil {
		s.alter(u)
	}
	return u, err
}

// sharesPlans returns the same plan to every caller until the next write.
type sharesPlans struct {
	core.Store
	mu   sync.Mutex
	held map[string]*core.Plan
}

func (s *sharesPlans) Plan(ctx context.Context, account, id string) (*core.Plan, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.held[account+id]; ok {
		return p, nil
	}
	p, err := s.Store.Plan(ctx, account, id)
	if err == nil {
		s.held[account+id] = p
	}
	return p, err
}

func (s *sharesPlans) Plans(ctx context.Context, account string, p core.Page) ([]*core.Plan, int, error) {
	plans, n, err := s.Store.Plans(ctx, account, p)
	for i := range plans {
		plans[i], _ = s.Plan(ctx, account, plans[i].ID)
	}
	return plans, n, err
}

func (s *sharesPlans) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	s.mu.Lock()
	clear(s.held)
	s.mu.Unlock()
	return s.Store.Update(ctx, account, fn)
}

type sharesKeys struct {
	core.Store
	mu   sync.Mutex
	held map[secrets.Digest]*core.Key
}

func (s *sharesKeys) KeyByDigest(ctx context.Context, d secrets.Digest) (*core.Key, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.held[d]; ok {
		return k, nil
	}
	k, err := s.Store.KeyByDigest(ctx, d)
	if err == nil {
		s.held[d] = k
	}
	return k, err
}

// findsReplaced finds a key by every value that it ever had.
type findsReplaced struct {
	core.Store
	mu   sync.Mutex
	seen map[secrets.Digest]*core.Key
}

func (s *findsReplaced) KeyByDigest(ctx context.Context, d secrets.Digest) (*core.Key, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, err := s.Store.KeyByDigest(ctx, d)
	if err == nil {
		s.seen[d] = copyOf(k)
	} else if k := s.seen[d]; k != nil {
		return s.Key(ctx, k.AccountID, k.ID)
	}
	return k, err
}

type findsCurrent struct{ core.Store }

func (s findsCurrent) KeyByDigest(ctx context.Context, d secrets.Digest) (*core.Key, error) {
	k, err := s.Store.KeyByDigest(ctx, d)
	if err == nil && k.Digest != d {
		return nil, core.ErrKeyNotFound
	}
	return k, err
}

// findsDeleted finds a deleted key by its value.
type findsDeleted struct {
	core.Store
	mu   sync.Mutex
	seen map[secrets.Digest]*core.Key
}

func (s *findsDeleted) KeyByDigest(ctx context.Context, d secrets.Digest) (*core.Key, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, err := s.Store.KeyByDigest(ctx, d)
	if err == nil {
		s.seen[d] = copyOf(k)
	} else if k := s.seen[d]; k != nil {
		if _, err := s.Key(ctx, k.AccountID, k.ID); err != nil {
			return k, nil
		}
	}
	return k, err
}
