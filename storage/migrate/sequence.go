package migrate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// sequence reads a history of the source from the oldest entry on. A store shows the newest
// first: the last page is read first. While nobody counts on the source the pages stay where
// they are, also when entries expire at the other end.
type sequence struct {
	from  core.Store
	of    core.CounterID
	since time.Time
	size  int // of a page

	left  int          // entries that are not read yet
	page  []core.Entry // those that were read, the oldest last
	head  *core.Entry  // the oldest that was not taken, nil at the end
	ready bool         // it is about to be taken
}

// advance goes on to the next entry.
func (q *sequence) advance(ctx context.Context) error {
	q.head, q.ready = nil, false
	if len(q.page) == 0 && q.left > 0 {
		if err := q.read(ctx); err != nil {
			return err
		}
	}
	if n := len(q.page); n > 0 {
		q.head, q.page = &q.page[n-1], q.page[:n-1]
	}
	return nil
}

// read reads the oldest page that is left.
func (q *sequence) read(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	before := (q.left - 1) / q.size * q.size // entries that are newer than the page
	page, _, err := q.from.History(ctx, q.of, q.since, core.Page{Number: before/q.size + 1, Size: q.size})
	if err != nil {
		return err
	}
	if len(page) != q.left-before {
		return fmt.Errorf("%w: the history of %s has got longer or shorter", ErrChanged, nameOf(q.of))
	}
	q.page, q.left = slices.Clip(page), before
	return nil
}
