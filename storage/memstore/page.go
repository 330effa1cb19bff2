package memstore

import (
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// page returns copies of the items on one page.
func page[T any](all []T, p core.Page, clone func(T) T) []T {
	first := min(p.Offset(), len(all))
	last := first + min(p.Size, len(all)-first)
	items := make([]T, 0, last-first)
	for _, item := range all[first:last] {
		items = append(items, clone(item))
	}
	return items
}

// normalTime returns a time as the store returns it: in UTC, without a monotonic reading.
func normalTime(t time.Time) time.Time { return t.Round(0).UTC() }

func normalTimePtr(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	return new(normalTime(*t))
}

// copied returns a pointer to a copy of *p, or nil.
func copied[T any](p *T) *T {
	if p == nil {
		return nil
	}
	return new(*p)
}
