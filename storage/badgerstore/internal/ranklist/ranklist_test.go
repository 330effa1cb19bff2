package ranklist

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// A List has the same items in the same order as a slice that is sorted again after each change.
func TestList(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var l List
	var want []Item
	check := func() {
		t.Helper()
		slices.SortFunc(want, Item.compare)
		if got := slices.Collect(l.After(0)); !slices.Equal(got, want) || l.Len() != len(want) {
			t.Fatalf("got %d items, want %d: %v", l.Len(), len(want), got)
		}
		n := random.IntN(len(want) + 3)
		if got := slices.Collect(l.After(n)); !slices.Equal(got, want[min(n, len(want)):]) {
			t.Fatalf("after %d: got %d items, want %d", n, len(got), max(0, len(want)-n))
		}
		score, higher := random.Int64N(22)-1, 0
		for _, it := range want {
			if it.Score >= score {
				higher++
			}
		}
		if got := l.From(score); got != higher {
			t.Fatalf("from the score %d: got %d items, want %d", score, got, higher)
		}
		if last, ok := l.Last(); ok != (len(want) > 0) || ok && last != want[len(want)-1] {
			t.Fatalf("last: got %v, %t", last, ok)
		}
	}
	check()
	for i := range 6000 {
		it := Item{random.Int64N(20), fmt.Sprint(random.IntN(4000))}
		switch at := slices.Index(want, it); {
		case at < 0 && i < 4000:
			l.Put(it)
			want = append(want, it)
		case at >= 0:
			l.Remove(it)
			want = slices.Delete(want, at, at+1)
		default:
			l.Remove(it) // a missing one
		}
		if i%50 == 0 {
			check()
		}
	}
	for len(want) > 0 {
		l.Remove(want[len(want)-1])
		want = want[:len(want)-1]
	}
	check()
}
