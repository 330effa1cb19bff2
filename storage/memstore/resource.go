package memstore

import (
	"iter"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// get returns a copy of the resource that find returns, or the error missing instead of nil. The store is locked while find runs.
func get[T any](s *Store, missing error, find func() *T) (v *T, err error) {
	err = s.locked(func() error {
		found := find()
		if found == nil {
			return missing
		}
		v = copyOf(found)
		return nil
	})
	return v, err
}

// list returns a page of copies of the resources that all returns, and their number.
func list[T any](s *Store, p core.Page, all func() []*T) (items []*T, total int, err error) {
	err = s.locked(func() error {
		items, total = page(all(), p)
		return nil
	})
	return items, total, err
}

// update runs fn on a copy of the resource that find returns, stores the copy, and returns another one. audit adds the change to a, unless a is nil.
func update[T any](s *Store, missing error, find func() *T, fn func(*T) error, a *core.Auditing, audit func(a *core.Auditing, before, after *T)) (updated *T, err error) {
	err = s.locked(func() error {
		v := find()
		if v == nil {
			return missing
		}
		changed := copyOf(v)
		if err := fn(changed); err != nil {
			return err
		}
		s.append(a, true, func(a *core.Auditing) { audit(a, v, copyOf(changed)) })
		*v, updated = *copyOf(changed), copyOf(changed)
		return nil
	})
	return updated, err
}

// page returns copies of the items on one page, and the number of all items.
func page[T any](all []*T, p core.Page) ([]*T, int) {
	first := min(p.Offset(), len(all))
	last := first + min(p.Size, len(all)-first)
	items := make([]*T, 0, last-first)
	for _, item := range all[first:last] {
		items = append(items, copyOf(item))
	}
	return items, len(all)
}

// find returns the first item that matches, or nil.
func find[T any](all []*T, matches func(*T) bool) *T {
	if i := slices.IndexFunc(all, matches); i >= 0 {
		return all[i]
	}
	return nil
}

// filter returns the items that match.
func filter[T any](all iter.Seq[*T], matches func(*T) bool) (found []*T) {
	for item := range all {
		if matches(item) {
			found = append(found, item)
		}
	}
	return found
}

// copyOf returns a copy of a resource, as a database would return it.
func copyOf[T any](v *T) *T {
	text, err := record.Encode(v)
	if err != nil {
		panic(err) // no resource of core fails to encode
	}
	c, err := record.Decode[T](text)
	if err != nil {
		panic(err)
	}
	return c
}
