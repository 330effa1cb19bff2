package ranking

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// A list has the same items in the same order as a slice that is sorted again after each change.
func TestList(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var l list
	var want []item
	check := func() {
		t.Helper()
		slices.SortFunc(want, item.compare)
		if got := slices.Collect(l.after(0)); !slices.Equal(got, want) || l.len() != len(want) {
			t.Fatalf("got %d items, want %d: %v", l.len(), len(want), got)
		}
		n := random.IntN(len(want) + 3)
		if got := slices.Collect(l.after(n)); !slices.Equal(got, want[min(n, len(want)):]) {
			t.Fatalf("after %d: got %d items, want %d", n, len(got), max(0, len(want)-n))
		}
		score, higher := random.Int64N(22)-1, 0
		for _, it := range want {
			if it.score >= score {
				higher++
			}
		}
		if got := l.atLeast(score); got != higher {
			t.Fatalf("at least the score %d: got %d items, want %d", score, got, higher)
		}
		if last, ok := l.last(); ok != (len(want) > 0) || ok && last != want[len(want)-1] {
			t.Fatalf("last: got %v, %t", last, ok)
		}
	}
	check()
	for i := range 6000 {
		it := item{random.Int64N(20), fmt.Sprint(random.IntN(4000))}
		switch at := slices.Index(want, it); {
		case at < 0 && i < 4000:
			l.put(it)
			want = append(want, it)
		case at >= 0:
			l.remove(it)
			want = slices.Delete(want, at, at+1)
		default:
			l.remove(it) // a missing one
		}
		if i%50 == 0 {
			check()
		}
	}
	for len(want) > 0 {
		l.remove(want[len(want)-1])
		want = want[:len(want)-1]
	}
	check()
}
