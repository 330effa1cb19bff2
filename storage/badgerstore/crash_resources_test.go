package badgerstore

import (
	"context"
	"fmt"

	"github.com/limitkeeper/limitkeeper/core"
)

// lists are all users and keys of a store, by their names and IDs.
type lists struct {
	users map[string]*core.User
	keys  map[string]*core.Key
	of    map[int64]int // how many keys each user has
}

// everything is a page of all there is.
var everything = core.Page{Number: 1, Size: 1 << 20}

// checkThings holds what was made and deleted against a store, and what its lists say
// against each other.
func (b *books) checkThings(s *Store) {
	l := b.checkLists(s)
	if l == nil {
		return
	}
	for name, x := range b.things {
		there := l.users[name] != nil || l.keys[name] != nil
		switch {
		case x.safe && !x.deleting && !there:
			b.problem("lost: the %s %s was answered, and is not there", x.kind, name)
		case x.over && there:
			b.problem("wrong: the %s %s was deleted, and is there", x.kind, name)
		case x.kind == aCrowd && there && l.of[l.users[name].ID] != crowdKeys:
			b.problem("wrong: the crowd %s has %d keys, want %d", name, l.of[l.users[name].ID], crowdKeys)
		}
		if k := l.keys[name]; k != nil && !x.seen {
			b.checkKey(s, k)
		}
		if !there {
			delete(b.things, name)
			delete(b.histories, ofKey(name))
			continue
		}
		*x = thing{kind: x.kind, made: true, safe: true, seen: true}
	}
}

// checkLists reads all users and keys and checks that totals, filters and what leads to
// a key agree.
func (b *books) checkLists(s *Store) *lists {
	ctx := context.Background()
	users, total, err := s.Users(ctx, acct, core.UserFilter{}, everything)
	if err != nil || total != len(users) {
		b.problem("wrong: users: got %d of %d, %v", len(users), total, err)
		return nil
	}
	keys, total, err := s.Keys(ctx, acct, core.KeyFilter{}, everything)
	if err != nil || total != len(keys) {
		b.problem("wrong: keys: got %d of %d, %v", len(keys), total, err)
		return nil
	}
	l := &lists{users: map[string]*core.User{}, keys: map[string]*core.Key{}, of: map[int64]int{}}
	for _, u := range users {
		l.users[u.Name] = u
	}
	for _, k := range keys {
		l.keys[k.ID] = k
		l.of[k.UserID]++
	}
	sum := 0
	for _, u := range users {
		sum += l.of[u.ID]
		if _, n, err := s.Keys(ctx, acct, core.KeyFilter{UserID: u.ID}, core.Page{Number: 1, Size: 1}); err != nil || n != l.of[u.ID] {
			b.problem("wrong: keys of user %d: got %d, %v, want %d", u.ID, n, err, l.of[u.ID])
		}
	}
	if sum != len(keys) {
		b.problem("wrong: %d of %d keys have a user who is there", sum, len(keys))
	}
	if _, n, err := s.Users(ctx, acct, core.UserFilter{PlanID: worldPlan}, core.Page{Number: 1, Size: 1}); err != nil || n != len(users) {
		b.problem("wrong: users with the plan: got %d, %v, want %d", n, err, len(users))
	}
	return l
}

// checkKey checks that what leads to a key leads to it.
func (b *books) checkKey(s *Store, k *core.Key) {
	if got, err := s.KeyByDigest(context.Background(), k.Digest); err != nil || got.ID != k.ID {
		b.problem("wrong: key by digest of %s: got %v, %v", k.ID, got, err)
	}
}

// The world in which requests are made: keys of a few users that stay, and a user whose
// keys come and go.
const (
	worldUsers = 3
	worldKeys  = 6 // of users 1 and 2
	mortalUser = 3
	worldPlan  = "plan_0"
	crowdKeys  = 1500 // more than a transaction holds
)

func worldKey(n int) string { return fmt.Sprint("key_", n) }

// makeWorld makes the account with what stays in it, unless it is there.
func makeWorld(s *Store) error {
	ctx := context.Background()
	a, k := &core.Account{ID: acct, Name: acct, CreatedAt: noon}, &core.OwnerKey{ID: "okey", AccountID: acct, CreatedAt: noon}
	if err := s.CreateAccount(ctx, a, k); err != nil && err != core.ErrAccountExists {
		return err
	}
	return s.Update(ctx, acct, func(tx core.Tx) (err error) {
		if _, missing := tx.Key(worldKey(0)); missing == nil {
			return nil
		}
		for id := int64(1); id <= worldUsers; id++ {
			err = firstOf(err, tx.PutUser(&core.User{AccountID: acct, ID: id, Name: fmt.Sprint("world ", id), PlanID: worldPlan}))
		}
		for n := range worldKeys {
			err = firstOf(err, tx.PutKey(&core.Key{AccountID: acct, ID: worldKey(n), UserID: int64(n%2 + 1), Status: core.KeyActive, Digest: core.DigestOf(worldKey(n))}))
		}
		return err
	})
}
