package badgerstore

import (
	"context"
	"fmt"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// lists has all users of a store by name, and all keys by ID.
type lists struct {
	users  map[string]*core.User
	keys   map[string]*core.Key
	keysOf map[int64]int // number of keys of each user
}

// everything is a page that is large enough for every list.
var everything = core.Page{Number: 1, Size: 1 << 20}

// checkResources compares the created and deleted resources with a store, and the lists of the store with each other.
func (m *model) checkResources(s *Store) {
	l := m.checkLists(s)
	if l == nil {
		return
	}
	for name, x := range m.resources {
		exists := l.users[name] != nil || l.keys[name] != nil
		switch {
		case x.createdSafe && !x.deleting && !exists:
			m.problem("lost: the creation of the %s %s was answered, and it does not exist", x.kind, name)
		case x.deletedSafe && exists:
			m.problem("wrong: the %s %s was deleted, and exists", x.kind, name)
		case x.kind == crowdUser && exists && l.keysOf[l.users[name].ID] != crowdKeys:
			m.problem("wrong: the crowd %s has %d keys, want %d", name, l.keysOf[l.users[name].ID], crowdKeys)
		}
		if k := l.keys[name]; k != nil && !x.seen {
			m.checkKey(s, k)
		}
		if !exists {
			delete(m.resources, name)
			delete(m.histories, ofKey(name))
			continue
		}
		*x = changed{kind: x.kind, created: true, createdSafe: true, seen: true}
	}
}

// checkLists reads all users and keys, and checks that totals and filters agree with them.
func (m *model) checkLists(s *Store) *lists {
	ctx := context.Background()
	users, total, err := s.Users(ctx, acct, core.UserFilter{}, everything)
	if err != nil || total != len(users) {
		m.problem("wrong: users: got %d of %d, %v", len(users), total, err)
		return nil
	}
	keys, total, err := s.Keys(ctx, acct, core.KeyFilter{}, everything)
	if err != nil || total != len(keys) {
		m.problem("wrong: keys: got %d of %d, %v", len(keys), total, err)
		return nil
	}
	l := &lists{users: map[string]*core.User{}, keys: map[string]*core.Key{}, keysOf: map[int64]int{}}
	for _, u := range users {
		l.users[u.Name] = u
	}
	for _, k := range keys {
		l.keys[k.ID] = k
		l.keysOf[k.UserID]++
	}
	sum := 0
	for _, u := range users {
		sum += l.keysOf[u.ID]
		if _, n, err := s.Keys(ctx, acct, core.KeyFilter{UserID: u.ID}, core.Page{Number: 1, Size: 1}); err != nil || n != l.keysOf[u.ID] {
			m.problem("wrong: keys of user %d: got %d, %v, want %d", u.ID, n, err, l.keysOf[u.ID])
		}
	}
	if sum != len(keys) {
		m.problem("wrong: %d of %d keys have an existing user", sum, len(keys))
	}
	if _, n, err := s.Users(ctx, acct, core.UserFilter{PlanID: fixturePlan}, core.Page{Number: 1, Size: 1}); err != nil || n != len(users) {
		m.problem("wrong: users with the plan: got %d, %v, want %d", n, err, len(users))
	}
	return l
}

// checkKey checks that the digest of a key leads to the key.
func (m *model) checkKey(s *Store, k *core.Key) {
	if got, err := s.KeyByDigest(context.Background(), k.Digest); err != nil || got.ID != k.ID {
		m.problem("wrong: key by digest of %s: got %v, %v", k.ID, got, err)
	}
}

// The fixture of the crash tests: keys of a few users that are never deleted, and a user whose keys are created and
// deleted.
const (
	fixtureUsers   = 3
	fixtureKeys    = 6 // keys of the users 1 and 2
	shortLivedUser = 3
	fixturePlan    = "plan_0"
	crowdKeys      = 1500 // more keys than one transaction of Badger takes
)

func fixtureKey(n int) string { return fmt.Sprint("key_", n) }

// createFixture creates the account, its users and its keys, unless they exist.
func createFixture(s *Store) error {
	ctx := context.Background()
	a, k := &core.Account{ID: acct, Name: acct, CreatedAt: noon}, &core.OwnerKey{ID: "okey", AccountID: acct, CreatedAt: noon}
	if err := s.CreateAccount(ctx, a, k); err != nil && err != core.ErrAccountExists {
		return err
	}
	return s.Update(ctx, acct, func(tx core.Tx) (err error) {
		if _, missing := tx.Key(fixtureKey(0)); missing == nil {
			return nil
		}
		for id := int64(1); id <= fixtureUsers; id++ {
			err = firstOf(err, tx.PutUser(&core.User{AccountID: acct, ID: id, Name: fmt.Sprint("world ", id), PlanID: fixturePlan}))
		}
		for n := range fixtureKeys {
			err = firstOf(err, tx.PutKey(&core.Key{AccountID: acct, ID: fixtureKey(n), UserID: int64(n%2 + 1), Status: core.KeyActive, Digest: secrets.DigestOf(fixtureKey(n))}))
		}
		return err
	})
}
