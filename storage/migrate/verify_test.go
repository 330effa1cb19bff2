package migrate

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// lossy is a target that returns other content than was written to it.
type lossy struct {
	core.Importer
	accounts func([]*core.Account) []*core.Account
	owners   func([]*core.OwnerKey) []*core.OwnerKey
	plans    func([]*core.Plan) []*core.Plan
	users    func([]*core.User) []*core.User
	keys     func([]*core.Key) []*core.Key
	history  func(core.CounterID, []core.Entry) []core.Entry
	counter  func(core.CounterID, *core.Counter)
	days     func([]core.CounterDay) []core.CounterDay
	access   func(*core.Access)
	put      func(core.Tx) core.Tx
	digest   func(core.Digest) core.Digest
}

func (s *lossy) KeyByDigest(ctx context.Context, d core.Digest) (*core.Key, error) {
	if s.digest != nil {
		d = s.digest(d)
	}
	return s.Importer.KeyByDigest(ctx, d)
}

// altered returns a page of a list that was altered as a whole.
func altered[T any](list func(core.Page) ([]T, int, error), alter func([]T) []T, p core.Page) ([]T, int, error) {
	if alter == nil {
		return list(p)
	}
	all, _, err := list(core.Page{Number: 1, Size: 1 << 20})
	all = alter(all)
	first := min(p.Offset(), len(all))
	return all[first:min(first+min(p.Size, len(all)), len(all))], len(all), err
}

func (s *lossy) Accounts(ctx context.Context, p core.Page) ([]*core.Account, int, error) {
	return altered(accountsOf(ctx, s.Importer), s.accounts, p)
}

func (s *lossy) OwnerKeys(ctx context.Context, account string, p core.Page) ([]*core.OwnerKey, int, error) {
	return altered(ownerKeysOf(ctx, s.Importer, account), s.owners, p)
}

func (s *lossy) Plans(ctx context.Context, account string, p core.Page) ([]*core.Plan, int, error) {
	return altered(plansOf(ctx, s.Importer, account), s.plans, p)
}

func (s *lossy) Users(ctx context.Context, account string, f core.UserFilter, p core.Page) ([]*core.User, int, error) {
	return altered(usersOf(ctx, s.Importer, account), s.users, p)
}

func (s *lossy) Keys(ctx context.Context, account string, f core.KeyFilter, p core.Page) ([]*core.Key, int, error) {
	return altered(func(p core.Page) ([]*core.Key, int, error) { return s.Importer.Keys(ctx, account, f, p) }, s.keys, p)
}

func (s *lossy) History(ctx context.Context, of core.CounterID, since time.Time, p core.Page) ([]core.Entry, int, error) {
	list := func(p core.Page) ([]core.Entry, int, error) { return s.Importer.History(ctx, of, since, p) }
	if s.history == nil {
		return list(p)
	}
	return altered(list, func(es []core.Entry) []core.Entry { return s.history(of, es) }, p)
}

func (s *lossy) Counters(ctx context.Context, ids []core.CounterID) ([]core.Counter, error) {
	cs, err := s.Importer.Counters(ctx, ids)
	for i := range cs {
		if s.counter != nil {
			s.counter(ids[i], &cs[i])
		}
	}
	return cs, err
}

func (s *lossy) CounterDays(ctx context.Context, id core.CounterID) ([]core.CounterDay, error) {
	days, err := s.Importer.CounterDays(ctx, id)
	if s.days != nil {
		days = s.days(days)
	}
	return days, err
}

func (s *lossy) Access(ctx context.Context, account string) (*core.Access, error) {
	ac, err := s.Importer.Access(ctx, account)
	if s.access != nil && err == nil {
		s.access(ac)
	}
	return ac, err
}

func (s *lossy) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	if s.put == nil {
		return s.Importer.Update(ctx, account, fn)
	}
	return s.Importer.Update(ctx, account, func(tx core.Tx) error { return fn(s.put(tx)) })
}

// lastLost returns a list without the last item.
func lastLost[T any](list []T) []T { return list[:max(0, len(list)-1)] }

// otherTx puts keys with another name, or gives low numbers.
type otherTx struct {
	core.Tx
	rename, low bool
}

func (tx otherTx) PutKey(k *core.Key) error {
	if tx.rename {
		k.Name = "another"
	}
	return tx.Tx.PutKey(k)
}

func (tx otherTx) PutUser(u *core.User) error {
	if tx.low && u.ID == 0 {
		u.ID = 1
	}
	return tx.Tx.PutUser(u)
}

// The error names each resource that the target loses or changes.
func TestVerified(t *testing.T) {
	for name, tc := range map[string]struct {
		lossy lossy
		want  string
	}{
		"an account": {lossy{accounts: lastLost[*core.Account]}, "accounts: 2 in the source, 1 in the target"},
		"an account's name": {lossy{accounts: func(as []*core.Account) []*core.Account {
			for _, a := range as {
				a.CreatedAt = noon.Add(time.Hour)
			}
			return as
		}}, "account acct_a is not the same in the target"},
		"an owner's key": {lossy{owners: func(ks []*core.OwnerKey) []*core.OwnerKey { return ks[:min(len(ks), 1)] }}, "owner's keys of account acct_a: 2 in the source, 1 in the target"},
		"a revocation": {lossy{owners: func(ks []*core.OwnerKey) []*core.OwnerKey {
			for _, k := range ks {
				k.RevokedAt = new(noon)
			}
			return ks
		}}, "owner's key acct_aokey_1 is not the same in the target"},
		"a plan": {lossy{plans: lastLost[*core.Plan]}, "plans of account acct_a: 1 in the source, 0 in the target"},
		"a user": {lossy{users: lastLost[*core.User]}, "users of account acct_a: 2 in the source, 1 in the target"},
		"a key":  {lossy{keys: lastLost[*core.Key]}, "keys of account acct_a: 2 in the source, 1 in the target"},
		"the limit of a plan": {lossy{plans: func(ps []*core.Plan) []*core.Plan {
			for _, p := range ps {
				p.Limit++
			}
			return ps
		}}, "plan plan_1 is not the same in the target"},
		"a user's state": {lossy{users: func(us []*core.User) []*core.User {
			for _, u := range us {
				u.Disabled = u.ID == 2
			}
			return us
		}}, "user 2 is not the same in the target"},
		"an external id": {lossy{users: func(us []*core.User) []*core.User {
			for _, u := range us {
				u.ExternalID = "another"
			}
			return us
		}}, "user 1 is not the same in the target"},
		"a key's name": {lossy{put: func(tx core.Tx) core.Tx { return otherTx{Tx: tx, rename: true} }}, "key key_1 is not the same in the target"},
		"a digest": {lossy{digest: func(core.Digest) core.Digest { return core.DigestOf("lost") }},
			"key key_1 of account acct_a is not found by its value in the target"},
		"whose digest it is": {lossy{digest: func(core.Digest) core.Digest { return core.DigestOf("key_1") }},
			"key key_2 of account acct_a is not found by its value in the target"},
		"usage": {lossy{counter: func(id core.CounterID, c *core.Counter) {
			if id.KeyID == "key_1" {
				c.Requests[core.Week]++
			}
		}}, "key key_1 of account acct_a has used 1 in its week in the source, 2 in the target"},
		"denials": {lossy{counter: func(id core.CounterID, c *core.Counter) {
			if id.UserID == 2 {
				c.DeniedOmitted = 7
			}
		}}, "the counter of user 2 of account acct_a: last used at 0001-01-01 00:00:00 +0000 UTC, 0 denials left out in the source"},
		"an entry of a key": {lossy{history: func(of core.CounterID, es []core.Entry) []core.Entry {
			if of.KeyID != "" {
				return lastLost(es)
			}
			return es
		}}, "the history of key key_1 of account acct_a: 1 entries in the source, 0 in the target"},
		"an entry of a user": {lossy{history: func(of core.CounterID, es []core.Entry) []core.Entry {
			if of.KeyID == "" {
				return lastLost(es)
			}
			return es
		}}, "the history of user 1 of account acct_a: 1 entries in the source, 0 in the target"},
		"what an entry says": {lossy{history: func(_ core.CounterID, es []core.Entry) []core.Entry {
			es = slices.Clone(es)
			for i := range es {
				es[i].Cost++
			}
			return es
		}}, "1 in the target, or another one is the newest"},
		"a day": {lossy{days: lastLost[core.CounterDay]}, "the days of user 1 of account acct_a: 1 in the source, 0 in the target"},
		"what was denied on a day": {lossy{days: func(days []core.CounterDay) []core.CounterDay {
			for i := range days {
				days[i].Denied++
			}
			return days
		}}, "the days of user 1 of account acct_a: 1 in the source, 1 in the target, or another number on one of them"},
		"a password": {lossy{access: func(ac *core.Access) { ac.Password = "another" }}, "how account acct_a is signed in to is not the same in the target"},
		"numbers":    {lossy{put: func(tx core.Tx) core.Tx { return otherTx{Tx: tx, low: true} }}, "the numbers that account acct_a has given last: user 2, plan 1 and key 2 in the source, user 0,"},
	} {
		t.Run(name, func(t *testing.T) {
			source := acme(t)
			err := errors.Join(source.CreateOwnerKey(t.Context(), newOwner("acct_a", "okey_2")),
				source.CreateAccount(t.Context(), newAccount("acct_b", "second"), newOwner("acct_b", "okey_1")))
			if err != nil {
				t.Fatal(err)
			}
			tc.lossy.Importer = memstore.New()
			o := small()
			o.Workers = 1 // of two that differ, the first is named
			_, err = Run(t.Context(), source, &tc.lossy, o)
			if !errors.Is(err, ErrDiffers) || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want ErrDiffers with %q", err, tc.want)
			}
		})
	}
}

// uses changes a source during the copy.
type uses struct {
	core.Importer
	when func(of core.CounterID, p core.Page) bool
	once bool
	do   func()
}

func (s *uses) History(ctx context.Context, of core.CounterID, since time.Time, p core.Page) ([]core.Entry, int, error) {
	if !s.once && s.when(of, p) {
		s.once = true
		s.do()
	}
	return s.Importer.History(ctx, of, since, p)
}

// Run reports a source that is in use. If this fails, requests that the source counts during the copy are lost
// unnoticed.
func TestSourceInUse(t *testing.T) {
	for page := 1; page <= 4; page++ {
		for _, key := range []string{"key_1", "key_2"} {
			source := acme(t)
			for i := range 9 {
				use(t, source, "key_1", 1, noon.Add(time.Duration(i)))
			}
			user := int64(1)
			if key == "key_2" {
				user = 2
			}
			n := 0
			busy := &uses{Importer: source, do: func() { use(t, source, key, user, noon.Add(time.Hour)) },
				when: func(core.CounterID, core.Page) bool { n++; return n == 2*page }}
			target := memstore.New()
			o := small()
			o.Workers = 1
			_, err := Run(t.Context(), busy, target, o)
			switch {
			case err == nil:
				wantSame(t, "used before it was read", everything(t, source), target)
			case !errors.Is(err, ErrChanged) && !errors.Is(err, ErrDiffers):
				t.Errorf("got %v, want ErrChanged or ErrDiffers", err)
			default:
				mustRun(t, source, target, o)
				wantSame(t, "run again when it is quiet", everything(t, source), target)
			}
		}
	}
}
