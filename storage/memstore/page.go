package memstore

import (
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
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
