package migrate

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"

	"github.com/limitkeeper/limitkeeper/core"
)

// verify compares the content of both stores.
func (m *migration) verify(ctx context.Context) (Report, error) {
	v := &verifying{migration: m, report: Report{Used: map[string]int64{}}}
	if err := v.accounts(ctx); err != nil {
		return Report{}, err
	}
	err := m.eachAccount(ctx, func(a *core.Account) error { return v.account(ctx, a.ID) })
	if err != nil {
		return Report{}, err
	}
	return v.report, nil
}

// verifying is the state of a comparison.
type verifying struct {
	*migration
	mu     sync.Mutex // guards UserHistory and KeyHistory in report
	report Report
}

// accounts compares the accounts.
func (v *verifying) accounts(ctx context.Context) error {
	n, err := sameTotals("accounts", accountsOf(ctx, v.from), accountsOf(ctx, v.to))
	if err != nil {
		return err
	}
	v.report.Accounts = n
	return sameInOrder(ctx, v.o.page, accountsOf(ctx, v.from), accountsOf(ctx, v.to), func(a *core.Account) string { return "account " + a.ID })
}

// account compares the content of an account.
func (v *verifying) account(ctx context.Context, id string) error {
	for _, step := range []func(context.Context, string) error{v.resources, v.access, v.digests, v.numbers, v.counters, v.days, v.histories} {
		if err := step(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// resources compares the number of resources of each kind, and then each resource: a missing resource is reported
// before a resource that differs.
func (v *verifying) resources(ctx context.Context, account string) error {
	of := " of account " + account
	owners, err := sameTotals("owner's keys"+of, ownerKeysOf(ctx, v.from, account), ownerKeysOf(ctx, v.to, account))
	if err != nil {
		return err
	}
	plans, err := sameTotals("plans"+of, plansOf(ctx, v.from, account), plansOf(ctx, v.to, account))
	if err != nil {
		return err
	}
	users, err := sameTotals("users"+of, usersOf(ctx, v.from, account), usersOf(ctx, v.to, account))
	if err != nil {
		return err
	}
	keys, err := sameTotals("keys"+of, keysOf(ctx, v.from, account), keysOf(ctx, v.to, account))
	if err != nil {
		return err
	}
	v.report.OwnerKeys += owners
	v.report.Plans += plans
	v.report.Users += users
	v.report.Keys += keys
	return v.each(ctx, account)
}

// each compares the resources of an account one by one.
func (v *verifying) each(ctx context.Context, account string) error {
	size := v.o.page
	err := sameInOrder(ctx, size, ownerKeysOf(ctx, v.from, account), ownerKeysOf(ctx, v.to, account), func(k *core.OwnerKey) string { return "owner's key " + k.ID })
	if err != nil {
		return err
	}
	err = sameInOrder(ctx, size, plansOf(ctx, v.from, account), plansOf(ctx, v.to, account), func(p *core.Plan) string { return "plan " + p.ID })
	if err != nil {
		return err
	}
	err = sameInOrder(ctx, size, usersOf(ctx, v.from, account), usersOf(ctx, v.to, account), func(u *core.User) string { return nameOfUser(u.ID) })
	if err != nil {
		return err
	}
	return sameInOrder(ctx, size, keysOf(ctx, v.from, account), keysOf(ctx, v.to, account), func(k *core.Key) string { return "key " + k.ID })
}

// access compares the sign-in data of an account.
func (v *verifying) access(ctx context.Context, account string) error {
	from, to, err := v.migration.access(ctx, account)
	if err == nil && !same(from, to) {
		err = differs("how account %s is signed in to is not the same in the target", account)
	}
	return err
}

// digests checks that the target finds each key by its values.
func (v *verifying) digests(ctx context.Context, account string) error {
	keys := func(ctx context.Context, page func([]*core.Key) error) error {
		return eachPage(ctx, v.o.page, keysOf(ctx, v.from, account), page)
	}
	return parallel(ctx, v.o.Workers, keys, func(ctx context.Context, k *core.Key) error {
		for _, d := range k.Digests() {
			found, err := v.to.KeyByDigest(ctx, d)
			if errors.Is(err, core.ErrKeyNotFound) || err == nil && (found.AccountID != account || found.ID != k.ID) {
				return differs("key %s of account %s is not found by its value in the target", k.ID, account)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// numbers checks that the target gives no number that the source has given.
func (v *verifying) numbers(ctx context.Context, account string) error {
	a, err := lastNumbers(ctx, v.from, account)
	if err != nil {
		return err
	}
	b, err := lastNumbers(ctx, v.to, account)
	if err != nil {
		return err
	}
	if b.user < a.user || b.plan < a.plan || b.key < a.key {
		return differs("the numbers that account %s has given last: user %d, plan %d and key %d in the source, user %d, plan %d and key %d in the target",
			account, a.user, a.plan, a.key, b.user, b.plan, b.key)
	}
	return nil
}

// counters compares the counters and adds them up.
func (v *verifying) counters(ctx context.Context, account string) error {
	return v.eachCounters(ctx, account, func(ids []core.CounterID) error {
		from, to, err := v.migration.counters(ctx, ids)
		if err != nil {
			return err
		}
		for i, id := range ids {
			for _, p := range core.Periods() {
				a, b := from[i].Requests[p], to[i].Requests[p]
				if a != b {
					return differs("%s of account %s has used %d in its %v in the source, %d in the target", nameOf(id), account, a, p, b)
				}
				sum := v.report.Used[p.String()]
				v.report.Used[p.String()] = sum + min(b, math.MaxInt64-sum)
			}
			if !from[i].Same(&to[i]) {
				return differs("the counter of %s of account %s: last used at %v, %d denials left out in the source, at %v, %d in the target", nameOf(id), account,
					from[i].LastUsedAt, from[i].DeniedOmitted, to[i].LastUsedAt, to[i].DeniedOmitted)
			}
		}
		return nil
	})
}

// days compares the traffic of the days that both stores still keep.
func (v *verifying) days(ctx context.Context, account string) error {
	return v.parallelCounters(ctx, account, func(ctx context.Context, id core.CounterID) error {
		from, to, err := v.migration.days(ctx, id)
		if err != nil {
			return err
		}
		if a, b := v.stillKept(from), v.stillKept(to); !slices.Equal(a, b) {
			return differs("the days of %s of account %s: %d in the source, %d in the target, or another number on one of them",
				nameOf(id), account, len(a), len(b))
		}
		return nil
	})
}

// histories compares the length and the newest entry of each history.
func (v *verifying) histories(ctx context.Context, account string) error {
	return v.parallelCounters(ctx, account, func(ctx context.Context, id core.CounterID) error {
		n, same, err := v.sameHistory(ctx, id)
		if err == nil && !same && n.Target == 0 { // the target may have dropped all entries
			same, err = historyCut(ctx, v.to, id)
		}
		if err == nil && !same {
			err = differs("the history of %s of account %s: %d entries in the source, %d in the target, or another one is the newest", nameOf(id), account, n.Source, n.Target)
		}
		if err != nil {
			return err
		}
		v.mu.Lock()
		if id.KeyID == "" {
			v.report.UserHistory.add(n)
		} else {
			v.report.KeyHistory.add(n)
		}
		v.mu.Unlock()
		v.progress.done(&v.progress.now.Verified, 1)
		return nil
	})
}

// sameTotals returns the number of items if it is the same in both lists.
func sameTotals[T any](what string, from, to list[T]) (int64, error) {
	a, err := total(from)
	if err != nil {
		return 0, err
	}
	b, err := total(to)
	if err == nil && a != b {
		err = differs("%s: %d in the source, %d in the target", what, a, b)
	}
	return int64(b), err
}

// sameInOrder compares two lists.
func sameInOrder[T any](ctx context.Context, size int, from, to list[*T], name func(*T) string) error {
	target := newReading(size, to)
	return each(ctx, size, from, func(a *T) error {
		b, _, err := target.next()
		if err != nil {
			return err
		}
		if b == nil || !same(a, b) {
			return differs("%s is not the same in the target", name(a))
		}
		return nil
	})
}
