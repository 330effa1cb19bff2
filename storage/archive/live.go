package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
)

// ErrChanged means that a store has changed in a way that an export cannot follow.
var ErrChanged = errors.New("it changed while the store was exported: export again")

// errLeftOut means that the archive of a live store leaves a key out.
var errLeftOut = errors.New("the key is left out")

// live is the sink for the resources of an account of a store that changes meanwhile. It keeps the archive valid: an import
// refuses a resource that refers to a missing one, or that has a unique member of another one.
//
// The largest numbers are read first, and resources with larger numbers are left out: they are newer. Plans, users and keys follow in
// this order. So the user of a key is missing only if it was deleted before it was read, and its keys are about to be deleted: Put
// returns errLeftOut for such a key. A resource that stays may have no valid record: it has a plan or a user that is newer, or it has
// taken over an email, an external id or a value from a resource that is in the archive. Put returns [ErrChanged] for this resource.
// The export of the account begins again with another sink if no record has passed this one. The sink holds the records back while they
// fit into its room.
type live struct {
	to      Sink
	room    int
	records []Record
	passing bool // the records pass

	last    core.Numbers
	plans   map[string]bool
	users   []int64
	unique  map[uint64]struct{} // hashes of the emails and external ids of the users, and of the digests of the keys
	earlier map[uint64]struct{} // the same of the earlier accounts
	seed    maphash.Seed
}

// uniqueMember is a unique member of a user of an account.
type uniqueMember struct {
	account string
	member  core.UserFilter
}

// Put implements [Sink].
func (l *live) Put(ctx context.Context, r Record) error {
	switch v := r.Value.(type) {
	case *Account:
		l.last = v.Last
	case *core.Plan:
		l.plans[v.ID] = true
	case *core.User:
		l.users = append(l.users, v.ID)
		changed := l.isNew(v.PlanID)
		for _, f := range v.UniqueFilters() {
			changed = l.taken(maphash.Comparable(l.seed, uniqueMember{v.AccountID, f})) || changed
		}
		if changed {
			return fmt.Errorf("user %d: %w", v.ID, ErrChanged)
		}
	case *core.Key:
		if _, exported := slices.BinarySearch(l.users, v.UserID); !exported && v.UserID <= l.last.User {
			return errLeftOut
		}
		changed := v.UserID > l.last.User || l.isNew(v.PlanID)
		for _, d := range v.Digests() {
			changed = l.taken(maphash.Comparable(l.seed, d)) || changed
		}
		if changed {
			return fmt.Errorf("key %s: %w", v.ID, ErrChanged)
		}
	}
	if l.passing {
		return l.to.Put(ctx, r)
	}
	if l.records = append(l.records, r); len(l.records) > l.room {
		return l.pass(ctx)
	}
	return nil
}

// isNew reports whether a plan is newer than the export.
func (l *live) isNew(plan string) bool { return plan != "" && !l.plans[plan] }

// taken notes the hash of a unique member, and reports whether another resource has the member.
func (l *live) taken(hash uint64) bool {
	_, earlier := l.earlier[hash]
	_, here := l.unique[hash]
	l.unique[hash] = struct{}{}
	return earlier || here
}

// pass gives the records to the sink behind, and lets later ones pass.
func (l *live) pass(ctx context.Context) error {
	for _, r := range l.records {
		if err := l.to.Put(ctx, r); err != nil {
			return err
		}
	}
	l.records, l.passing = nil, true
	return nil
}

// wholeResources exports an account with its resources. For a live store, it begins again after an [ErrChanged].
func (e *export) wholeResources(ctx context.Context, a *core.Account) error {
	if e.live == nil {
		return e.resources(ctx, a)
	}
	to, records := e.to, e.records
	defer func() { e.to = to }()
	for try := 1; ; try++ {
		l := &live{to: to, room: e.o.held, plans: map[string]bool{}, unique: map[uint64]struct{}{}, earlier: e.earlier, seed: e.seed}
		e.to, e.records = l, records
		a, err := e.s.Account(ctx, a.ID) // as it is now, as the resources are
		if err == nil && a.Deleting {
			err = core.ErrAccountNotFound
		}
		if err == nil {
			err = e.resources(ctx, a)
		}
		if errors.Is(err, ErrChanged) && !l.passing && try < maxTries {
			continue
		}
		if err != nil {
			return err
		}
		maps.Copy(e.earlier, l.unique)
		return l.pass(ctx)
	}
}

// maxTries bounds how often the export of an account begins.
const maxTries = 100

// exportKind exports the resources of a kind. A live store has after, which returns the page that follows a number: a page by its
// own number would miss resources when earlier ones are deleted. number returns the number of a resource, and resources of a live
// store behind the number last are left out.
func exportKind[T any](ctx context.Context, e *export, kind Kind, account string, list func(core.Page) ([]T, int, error),
	after func(core.LiveStore, context.Context, string, int64, int) ([]T, error), number func(T) int64, last int64) error {
	if e.live == nil {
		return core.Each(ctx, e.o.page, list, func(item T) error { return e.record(ctx, kind, item) })
	}
	for at := int64(0); at < last; {
		items, err := after(e.live, ctx, account, at, e.o.page)
		if err = cmp.Or(ctx.Err(), err); err != nil || len(items) == 0 {
			return err
		}
		for _, item := range items {
			if at = number(item); at > last {
				return nil
			}
			if err := e.record(ctx, kind, item); err != nil {
				return err
			}
		}
	}
	return nil
}
