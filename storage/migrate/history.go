package migrate

import (
	"context"
	"fmt"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
)

// copyHistories copies the history of each user and key of an account.
func (m *migration) copyHistories(ctx context.Context, account string) error {
	return m.parallelCounters(ctx, account, func(ctx context.Context, of core.CounterID) error {
		n, same, err := m.sameHistory(ctx, of)
		if err != nil {
			return err
		}
		keep := n.Source
		if m.toCap > 0 {
			keep = min(keep, int64(m.toCap))
		}
		m.progress.entries(0, keep)
		if same {
			m.progress.entries(keep, 0)
		} else if err := m.copyHistory(ctx, of, n.Source, keep); err != nil {
			return fmt.Errorf("the history of %s: %w", nameOf(of), err)
		}
		m.progress.done(&m.progress.now.Histories, 1)
		return nil
	})
}

// copyHistory replaces a history of the target by the newest entries of the history in the source: keep of total
// entries. A store lists the newest entries first, so copyHistory begins with the last page. Entries that expire
// during the copy are on that page, and do not move the other pages.
func (m *migration) copyHistory(ctx context.Context, of core.CounterID, total, keep int64) error {
	write, size, left := m.to.SetHistory, m.o.read, int(keep)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		newer := max(0, left-1) / size * size
		entries, now, err := m.from.History(ctx, of, m.since, core.Page{Number: newer/size + 1, Size: size})
		if err != nil {
			return err
		}
		if int64(now) > total || len(entries) < left-newer {
			return ErrChanged
		}
		entries = slices.Clone(entries[:left-newer])
		slices.Reverse(entries)
		if err := write(ctx, of, entries, m.o.Retention); err != nil {
			return err
		}
		m.progress.entries(int64(len(entries)), 0)
		if newer == 0 {
			return nil
		}
		write, left = m.to.AppendHistory, newer
	}
}

// sameHistory returns the number of entries of a history in both stores. same means that the target has all entries
// of the source that it can keep, and that the newest entry is the same.
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

// historyCut reports whether a store may have dropped entries of a history because of their size.
func historyCut(ctx context.Context, s core.Store, of core.CounterID) (bool, error) {
	if c, ok := s.(core.CappedHistory); ok {
		return c.HistoryCut(ctx, of)
	}
	return false, nil
}
