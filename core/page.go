package core

import "math"

// The bounds of a page.
const (
	DefaultPageSize = 10
	MaxPageSize     = 100
)

// Page asks for one page of a list.
type Page struct {
	Number int // from 1
	Size   int // entries on a page, from 1
}

// Offset returns how many entries lie before the page. It never overflows.
func (p Page) Offset() int {
	if p.Number <= 1 {
		return 0
	}
	if p.Number-1 > math.MaxInt/max(p.Size, 1) {
		return math.MaxInt
	}
	return (p.Number - 1) * p.Size
}
