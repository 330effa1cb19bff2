package service

import (
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
)

// A deletion between the binary search and the read of the page leaves no item out.
func TestItemsAfter(t *testing.T) {
	var all []int64
	for i := range int64(1200) {
		all = append(all, i+1)
	}
	list := func(p core.Page) ([]int64, int, error) {
		if p.Size == feedBatch { // a user is deleted just before
			all = append(all[:3:3], all[4:]...)
		}
		from := min((p.Number-1)*p.Size, len(all))
		return append([]int64{}, all[from:min(from+p.Size, len(all))]...), len(all), nil
	}
	items, err := itemsAfter(500, func(n int64) int64 { return n }, list)
	if err != nil || items[0] != 501 {
		t.Errorf("the first user after 500: got %d, %v", items[0], err)
	}
}
