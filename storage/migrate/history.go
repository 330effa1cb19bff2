package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
)

// errStop ends a look through a list early.
var errStop = errors.New("enough was seen")

// histories takes over the histories of the users and keys of an account.
type histories struct {
	*migration
	account string
	gaps    *gaps
	tangle  *tangle
}

// copyHistories takes over all histories of an account: first those of the users who are
// entangled with nobody, then the others.
func (m *migration) copyHistories(ctx context.Context, account string) error {
	last, err := lastNumbers(ctx, m.from, account)
	if err != nil {
		return err
	}
	h := &histories{migration: m, account: account, gaps: newGaps(ctx, m, account, last.key), tangle: newTangle()}
	err = parallel(ctx, m.o.Workers, h.user, func(next func(int64) error) error {
		return each(ctx, m.o.page, usersOf(ctx, m.from, account), func(u *core.User) error { return next(u.ID) })
	})
	if err != nil {
		return err
	}
	if err := h.untangle(ctx); err != nil {
		return err
	}
	return parallel(ctx, m.o.Workers, h.group, func(next func([]int64) error) error {
		for _, users := range h.tangle.groups() {
			if err := next(users); err != nil {
				return err
			}
		}
		return nil
	})
}

// user takes over the histories of a user and of its keys, unless they are there or the user
// is entangled: then it is noted.
func (h *histories) user(ctx context.Context, id int64) error {
	done, err := h.done(ctx, id)
	if err != nil || done {
		return err
	}
	s, err := h.survey(ctx, id)
	if err != nil {
		return err
	}
	if s.entangled() {
		h.tangle.add(s)
		return nil
	}
	return h.replay(ctx, s)
}

// untangle follows what users are entangled with, until everyone is known.
func (h *histories) untangle(ctx context.Context) error {
	for {
		id, ok := h.tangle.unknown()
		if !ok {
			return nil
		}
		_, err := h.from.User(ctx, h.account, id)
		if errors.Is(err, core.ErrUserNotFound) {
			h.tangle.gone(id)
			continue
		}
		if err != nil {
			return err
		}
		s, err := h.survey(ctx, id)
		if err != nil {
			return err
		}
		h.tangle.add(s)
		h.progress.done(&h.progress.now.Histories, -1) // it was, and goes with the others again
	}
}

// group takes over the histories of users who are entangled, and of their keys. They are
// surveyed again: what was found before is not kept for all of them.
func (h *histories) group(ctx context.Context, users []int64) error {
	var all []*survey
	for _, id := range users {
		s, err := h.survey(ctx, id)
		if err != nil {
			return err
		}
		all = append(all, s)
	}
	return h.replay(ctx, all...)
}

// done reports whether the target has the histories of a user and of its keys.
func (h *histories) done(ctx context.Context, user int64) (bool, error) {
	n, same, err := h.sameHistory(ctx, ofUser(h.account, user))
	if err != nil || !same {
		return false, err
	}
	err = each(ctx, h.o.page, keysOfUser(ctx, h.from, h.account, user), func(k *core.Key) error {
		_, same, err := h.sameHistory(ctx, ofKey(h.account, k.ID))
		if err == nil && !same {
			err = errStop
		}
		return err
	})
	if errors.Is(err, errStop) {
		return false, nil
	}
	if err == nil {
		h.progress.entries(int64(n.Source), int64(n.Source))
		h.progress.done(&h.progress.now.Histories, 1)
	}
	return err == nil, err
}

// sameHistory returns how many entries a history has in both stores, and whether the
// target's is that of the source: as many, as far as it keeps them, up to the same newest
// one.
func (m *migration) sameHistory(ctx context.Context, of core.CounterID) (n HistoryCount, same bool, err error) {
	newest := core.Page{Number: 1, Size: 1}
	a, source, err := m.from.History(ctx, of, m.since, newest)
	if err != nil {
		return n, false, err
	}
	b, target, err := m.to.History(ctx, of, m.since, newest)
	if err != nil {
		return n, false, err
	}
	n = HistoryCount{Source: int64(source), Target: int64(target)}
	least, full := source, m.fromCap > 0 && source >= m.fromCap
	if m.toCap > 0 {
		least = min(source, m.toCap)
	}
	switch {
	case target < least:
		if cut, err := historyCut(ctx, m.to, of); err != nil || !cut {
			return n, false, err
		}
	case target > source && !full:
		if cut, err := historyCut(ctx, m.from, of); err != nil || !cut {
			return n, false, err
		}
	}
	return n, source == 0 || len(a) == 1 && len(b) == 1 && sameEntry(&a[0], &b[0]), nil
}

// historyCut reports whether a store may have dropped entries of a history because of their
// size.
func historyCut(ctx context.Context, s core.Store, of core.CounterID) (bool, error) {
	if c, ok := s.(core.CappedHistory); ok {
		return c.HistoryCut(ctx, of)
	}
	return false, nil
}

// replay appends everything in the histories of users and of their keys to those of the
// target, which are emptied before.
func (h *histories) replay(ctx context.Context, all ...*survey) error {
	if err := h.empty(ctx, all); err != nil {
		return err
	}
	g := newMerge(h, all)
	h.progress.entries(0, g.total())
	w := newWriter(h)
	err := g.run(ctx, func(e *core.Entry, needed bool) error {
		if !needed {
			h.progress.entries(1, 0)
			return nil
		}
		return w.append(ctx, e)
	})
	if err == nil {
		err = w.finish(ctx)
	}
	if err != nil {
		return fmt.Errorf("the history of %s: %w", nameOfUser(all[0].user), err)
	}
	h.progress.done(&h.progress.now.Histories, len(all))
	return nil
}

// empty empties the histories of users and of their keys on the target, of which an earlier
// run may have left a part: all of them are deleted and put again.
func (h *histories) empty(ctx context.Context, all []*survey) error {
	for _, s := range all {
		begun, err := h.begun(ctx, s.user)
		if err != nil {
			return err
		}
		if !begun {
			continue
		}
		if err := h.update(ctx, h.account, func(tx core.Tx) error { return tx.DeleteUser(s.user) }); err != nil {
			return fmt.Errorf("the history of %s: %w", nameOfUser(s.user), err)
		}
		u, err := h.from.User(ctx, h.account, s.user)
		if err != nil {
			return err
		}
		if err := putAll(ctx, h.migration, h.account, []*core.User{u}, core.Tx.PutUser); err != nil {
			return err
		}
		err = eachPage(ctx, h.o.page, keysOfUser(ctx, h.from, h.account, s.user), func(ks []*core.Key) error {
			return putAll(ctx, h.migration, h.account, ks, core.Tx.PutKey)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// begun reports whether the target has anything in the history of a user or of its keys.
func (h *histories) begun(ctx context.Context, user int64) (bool, error) {
	ids := []core.CounterID{ofUser(h.account, user)}
	err := each(ctx, h.o.page, keysOfUser(ctx, h.to, h.account, user), func(k *core.Key) error {
		ids = append(ids, ofKey(h.account, k.ID))
		return nil
	})
	return slices.ContainsFunc(ids, func(id core.CounterID) bool {
		if err != nil {
			return false
		}
		n := 0
		_, n, err = h.to.History(ctx, id, h.since, core.Page{Number: 1, Size: 1})
		return n > 0
	}), err
}
