package core

import (
	"context"
	"math"
)

// Page asks for one page of a list.
type Page struct {
	Number int // from 1
	Size   int // entries on a page, from 1
}

// Offset returns the number of entries before the page. It never overflows.
func (p Page) Offset() int {
	if p.Number <= 1 {
		return 0
	}
	if p.Number-1 > math.MaxInt/max(p.Size, 1) {
		return math.MaxInt
	}
	return (p.Number - 1) * p.Size
}

// ReadSize is how many resources a reader of a whole list asks for at a time.
const ReadSize = 1000

// Each calls fn with each item of a list, and reads size items at a time. It ends with the first error.
func Each[T any](ctx context.Context, size int, list func(Page) ([]T, int, error), fn func(T) error) error {
	return EachPage(ctx, size, list, func(items []T) error {
		for _, item := range items {
			if err := fn(item); err != nil {
				return err
			}
		}
		return nil
	})
}

// EachPage calls fn with the pages of a list, size items each. It ends with the first error.
func EachPage[T any](ctx context.Context, size int, list func(Page) ([]T, int, error), fn func([]T) error) error {
	for p := (Page{Number: 1, Size: size}); ; p.Number++ {
		if err := ctx.Err(); err != nil { // the caller is gone
			return err
		}
		items, _, err := list(p)
		if err != nil {
			return err
		}
		if err := fn(items); err != nil {
			return err
		}
		if len(items) < size {
			return nil
		}
	}
}
