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

// TestAdjustmentKilled: an adjustment that was answered survives a kill, before and after a checkpoint, once.
func TestAdjustmentKilled(t *testing.T) {
	dir := t.TempDir()
	s := openAlone(t, dir, quiet)
	known(t, s, "key_1")
	consume(t, s, request("key_1", 1, 1<<20, noon))
	of := map[core.CounterID]*core.Consumption{}
	for _, id := range []core.CounterID{ofKey("key_1"), ofUser(1)} {
		c := request("key_1", 1, 0, noon.Add(time.Minute))
		c.Terms, c.Cost, c.RequestID = core.Terms{}, 0, "an adjustment"
		c.Adjustment = &core.Adjustment{Meter: "tokens", Value: 5, Reason: "a grant"}
		if id.KeyID == "" {
			c.KeyID, c.KeySeq, c.Entry.KeyID, c.Shared = "", 0, "", true
		}
		of[id] = c
	}
	for _, when := range []string{"adjusted", "after a checkpoint", "killed", "killed after a checkpoint"} {
		switch when {
		case "after a checkpoint":
			writeCheckpoint(t, s)
		case "killed after a checkpoint":
			writeCheckpoint(t, s)
			fallthrough
		case "killed":
			abandon(t, s)
			s = openAlone(t, dir, quiet)
		}
		for id, c := range of {
			v, err := s.Consume(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if (v.FirstTerms != nil) != (when != "adjusted") {
				t.Errorf("%s: %+v: got %+v, want a repeat after the first", when, id, v)
			}
			counter := counterOf(t, s, id)
			if got := counter.Usage("tokens", core.Month, nil, noon).Used; got != 5 {
				t.Errorf("%s: %+v: got %d tokens, want 5", when, id, got)
			}
		}
		entries, n, err := s.History(t.Context(), ofUser(1), time.Time{}, core.Page{Number: 1, Size: 9})
		if err != nil || n != 3 || entries[2].Adjustment != nil || entries[0].Adjustment == nil || entries[0].Adjustment.Reason != "a grant" {
			t.Errorf("%s: history: got %d entries, %+v, %v", when, n, entries, err)
		}
	}
}
