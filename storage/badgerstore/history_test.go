package badgerstore

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
)

// TestHistoryOfAnUnsteadyClock: pages and total of a history are right wherever it is
// cut off, when times go back by a little all the time and by a lot now and then.
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
	for range 100 {
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

// TestHistoryFewLookUps: a page of a long history and its total take some dozens of
// look-ups, also the oldest page.
func TestHistoryFewLookUps(t *testing.T) {
	const entries = 1 << 20
	for _, since := range []time.Duration{-time.Second, entries / 2 * time.Second, (entries - 5) * time.Second} {
		lookUps := 0
		h := history{tally: tally{entries: entries}, since: noon.Add(since), read: func(number int64) ([]byte, error) {
			lookUps++
			e := core.Entry{At: noon.Add(time.Duration(number) * time.Second)}
			return append([]byte{0}, encodeEntry(&e, false)...), nil
		}}
		if err := h.divide(); err != nil {
			t.Fatalf("divide: %v", err)
		}
		last := core.Page{Number: (h.total() + 9) / 10, Size: 10}
		page, err := h.page(last)
		if want := entries - int(max(0, since)/time.Second); err != nil || h.total() != want || len(page) == 0 {
			t.Errorf("since %v: got %d, %v and a page of %d, want %d", since, h.total(), err, len(page), want)
		}
		if lookUps > 2*21+10 {
			t.Errorf("since %v: got %d look-ups, want %d at most", since, lookUps, 2*21+10)
		}
	}
}

// TestHistoryWithGaps: entries that have expired before others are left out, and
// nothing else.
func TestHistoryWithGaps(t *testing.T) {
	s := openIn(t, t.TempDir(), Options{})
	known(t, s, "key")
	for i := range 50 {
		consume(t, s, request("key", 1, 50, noon.Add(time.Duration(i)*time.Second)))
	}
	var number int64
	err := s.db.Update(func(txn *badger.Txn) error {
		c, err := snapshot{txn}.tally(ofKey("key"))
		for number = 1; number <= 10 && err == nil; number++ {
			err = txn.Delete(historyPath(c.history).number(number))
		}
		return firstOf(err, txn.Delete(historyPath(c.history).number(30)))
	})
	if err != nil {
		t.Fatalf("delete entries: %v", err)
	}
	page, total, err := s.History(t.Context(), ofKey("key"), time.Time{}, core.Page{Number: 1, Size: 100})
	if err != nil || total != 40 || len(page) != 39 {
		t.Errorf("History: got %d of %d entries, %v, want 39 of 40", len(page), total, err)
	}
}

// TestEntriesExpire: an entry is kept as long as its retention says by the clock of
// the machine, whatever the time of the request is, and not much longer.
func TestEntriesExpire(t *testing.T) {
	s := openIn(t, t.TempDir(), Options{})
	known(t, s, "key")
	before := time.Now()
	c := request("key", 1, 1, noon.AddDate(-50, 0, 0))
	c.Retention = 48 * time.Hour
	consume(t, s, c)
	err := s.db.View(func(txn *badger.Txn) error {
		for _, p := range stored(t, s, "H") {
			item, err := txn.Get([]byte(p))
			if err != nil {
				return err
			}
			ends := time.Unix(int64(item.ExpiresAt()), 0)
			if least, most := before.Add(c.Retention), time.Now().Add(c.Retention+keptLonger+time.Second); ends.Before(least) || ends.After(most) {
				t.Errorf("entry %q ends at %v, want between %v and %v", p, ends, least, most)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("read entries: %v", err)
	}
}

// TestSweep: nothing of the history of a deleted key stays on disk, and everything of
// other histories does. What was not swept before the store was closed is swept later.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir, Options{})
	withAccount(t, s)
	update(t, s, withKeys(1, 2))
	gone, kept := newKey(1, 0).ID, newKey(1, 1).ID
	for i := range 2*sweepAtOnce + 10 {
		consume(t, s, request(gone, 1, 1<<20, noon))
		if i < 20 {
			consume(t, s, request(kept, 1, 1<<20, noon))
		}
	}
	update(t, s, func(tx core.Tx) error { return tx.DeleteKey(gone) })
	stop := make(chan struct{})
	close(stop)
	if err := s.sweepAll(stop); err != errStopped {
		t.Errorf("sweepAll when stopped: got error %v, want %v", err, errStopped)
	}
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	s = openIn(t, dir, Options{})
	if err := s.sweepAll(nil); err != nil {
		t.Fatalf("sweepAll: %v", err)
	}
	wantUsed(t, s, ofKey(gone), 0)
	wantUsed(t, s, ofKey(kept), 20)
	if got := allowedIn(t, s, ofUser(1)); got != 2*sweepAtOnce+30 {
		t.Errorf("history of the user: got %d entries, want %d", got, 2*sweepAtOnce+30)
	}
	if entries, trash := len(stored(t, s, "H")), len(stored(t, s, "T")); entries != 2*sweepAtOnce+50 || trash != 0 {
		t.Errorf("on disk: got %d entries and %d histories to sweep, want %d and 0", entries, trash, 2*sweepAtOnce+50)
	}
}
