package badgerstore

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// TestHistoryOfAnUnsteadyClock: the pages and the total of a history are right for every start time, although the times
// of its entries often go back by minutes, and once by 90 minutes.
func TestHistoryOfAnUnsteadyClock(t *testing.T) {
	const entries = 600
	s := openIn(t, t.TempDir(), Options{})
	known(t, s, "key")
	random := rand.New(rand.NewPCG(1, 2))
	var times []time.Time
	for i := range entries {
		at := noon.Add(time.Duration(i)*time.Minute - time.Duration(random.IntN(300))*time.Second)
		if i > 200 && i < 260 {
			at = at.Add(-90 * time.Minute)
		}
		times = append(times, at)
		consume(t, s, request("key", 1, entries, at))
	}
	for range 40 {
		since := noon.Add(time.Duration(random.IntN(entries+20)-10) * time.Minute)
		var want []time.Time
		for _, at := range slices.Backward(times) {
			if at.After(since) {
				want = append(want, at)
			}
		}
		wantHistory(t, s, since, want, 1+random.IntN(90))
	}
}

// wantHistory fails unless a history has entries with exactly these times.
func wantHistory(t *testing.T, s *Store, since time.Time, want []time.Time, size int) {
	t.Helper()
	var got []time.Time
	for n := 1; n <= len(want)/size+1; n++ {
		page, total, err := s.History(t.Context(), ofKey("key"), since, core.Page{Number: n, Size: size})
		if err != nil || total != len(want) {
			t.Fatalf("since %v: got total %d, %v, want %d", since, total, err, len(want))
		}
		for _, e := range page {
			got = append(got, e.At)
		}
	}
	if !slices.EqualFunc(got, want, time.Time.Equal) {
		t.Errorf("since %v in pages of %d: got %v, want %v", since, size, got, want)
	}
}
