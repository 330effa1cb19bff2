package badgerstore

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// aheadStore is a store whose database has the pages of a checkpoint, but not its mark. The pages include events of some
// segments after the last mark.
type aheadStore struct {
	dir       string
	files     []string // names of the segments; the second one has the mark
	histories map[core.CounterID][]core.Entry
}

// count makes requests until the event log has n segments.
func (a *aheadStore) count(t *testing.T, s *Store, n int) {
	t.Helper()
	for len(s.events.Segments()) < n {
		a.request(t, s, "key", 1, "")
		a.request(t, s, "other", 2, "")
	}
}

// request makes a request. Its endpoint is the index of the segment with its event.
func (a *aheadStore) request(t *testing.T, s *Store, key string, user int64, id string) {
	t.Helper()
	c := shared(request(key, user, endless, noon))
	list := append(s.events.Segments(), eventlog.Segment{})
	n := max(0, len(list)-2)
	if list[n].End-list[n].Base >= damagedOptions.segmentSize {
		n++
	}
	c.Entry.Endpoint, c.RequestID = fmt.Sprint("/", n), id
	consume(t, s, c)
}

func newAheadStore(t *testing.T) aheadStore {
	t.Helper()
	var h hook
	o := damagedOptions
	o.failpoint = h.step
	a := aheadStore{dir: t.TempDir(), histories: map[core.CounterID][]core.Entry{}}
	dir := t.TempDir()
	s := openAlone(t, dir, o)
	known(t, s, "key", "other")
	a.count(t, s, 2)
	flushCheckpoint(t, s)
	a.count(t, s, 5)
	a.request(t, s, "key", 1, "id")
	a.request(t, s, "other", 2, "")
	h.once(failPagesWritten, func() { // the pages are committed, the mark is not
		syncLog(t, s)
		copyKilled(t, a.dir, s.dir)
	})
	writeCheckpoint(t, s)
	for _, of := range digested {
		a.histories[of] = historyOf(t, s, of)
	}
	abandon(t, s)
	for _, path := range segmentFiles(t, a.dir) {
		a.files = append(a.files, filepath.Base(path))
	}
	if len(a.files) != 5 {
		t.Fatalf("segments: got %v, want 5", a.files)
	}
	return a
}

// syncLog syncs the event log, as a store does every second. Damage before its end is no torn write from then on.
func syncLog(t *testing.T, s *Store) {
	t.Helper()
	if err := s.events.Sync(); err != nil {
		t.Error(err)
	}
}

// TestRepairBehindPages: a repair cuts off events that pages already include. New events count. Histories show every kept
// event.
func TestRepairBehindPages(t *testing.T) {
	t.Parallel()
	a := newAheadStore(t)
	for name, c := range map[string]struct {
		damage     func([]byte) []byte // see damageFile
		segments   []int
		first, end int // the segments that are kept
	}{
		"flip in the last segment":        {flip(segmentData + 5), []int{4}, 0, 4},
		"flip in the segment of the mark": {flip(-2), []int{1}, 0, 1},
		"last segment cut in half":        {func(b []byte) []byte { return b[:segmentData+(len(b)-segmentData)/2] }, []int{4}, 0, 4},
		"last segment deleted":            {deleted, []int{4}, 0, 4},
		"middle segment deleted":          {deleted, []int{3}, 0, 3},
		"segment of the mark deleted":     {deleted, []int{1}, 1, 1}, // back to an image, without a history
		"segments after the mark gone":    {deleted, []int{2, 3, 4}, 0, 2},
		"first segment deleted":           {deleted, []int{0}, 1, 5},
		"first and last segments deleted": {deleted, []int{0, 4}, 1, 4},
		"all segments deleted":            {deleted, []int{0, 1, 2, 3, 4}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			dir := copyOf(t, a.dir)
			for _, i := range c.segments {
				damageFile(t, filepath.Join(dir, eventLogDir, a.files[i]), c.damage)
			}
			a.repair(t, dir, c.first, c.end)
		})
	}
}

// kept returns the number of entries in the segments from first to end-1.
func kept(list []core.Entry, first, end int) (n int) {
	for _, e := range list {
		var segment int
		if _, err := fmt.Sscanf(e.Endpoint, "/%d", &segment); err == nil && segment >= first && segment < end {
			n++
		}
	}
	return n
}

func (a *aheadStore) repair(t *testing.T, dir string, first, end int) {
	t.Helper()
	if got := checkDamages(t, dir); len(got) == 0 {
		t.Fatal("the event log is whole")
	}
	if _, err := Repair(dir, func([]string) bool { return true }); err != nil {
		t.Fatalf("Repair: %v", err)
	}
	if got := checkDamages(t, copyOf(t, dir)); len(got) > 0 {
		t.Errorf("check after the repair: %q", got)
	}
	used, histories := map[core.CounterID]int64{}, map[core.CounterID][]core.Entry{}
	s := openAlone(t, dir, damagedOptions)
	for _, of := range digested {
		histories[of] = historyOf(t, s, of)
		got, all := histories[of], a.histories[of]
		used[of] = counterOf(t, s, of).Requests[core.Month] // an image may include more than the kept events
		if least := int64(len(got) + kept(all, 0, first)); used[of] < least || used[of] > int64(len(all)) {
			t.Errorf("%+v: got %d used, want %d to %d", of, used[of], least, len(all))
		}
		if len(got) < kept(all, first, end) || len(got) > kept(all, first, end+1) {
			t.Errorf("history of %+v: got %d entries, want %d kept entries, or some more of segment %d", of, len(got), kept(all, first, end), end)
		}
		for i, e := range got {
			if want := all[len(all)-kept(all, 0, first)-len(got)+i]; e.Endpoint != want.Endpoint || !e.At.Equal(want.At) {
				t.Fatalf("history of %+v: entry %d: got %+v, want %+v", of, i, e, want)
			}
		}
	}
	for round := range 2 {
		for i, key := range []string{"key", "other"} {
			c := shared(request(key, int64(i+1), endless, noon.Add(time.Minute)))
			c.Entry.Endpoint = fmt.Sprint("/new", round)
			consume(t, s, c)
			for _, of := range []core.CounterID{ofKey(key), ofUser(int64(i + 1))} {
				used[of]++
				histories[of] = slices.Insert(histories[of], 0, historyOf(t, s, of)[0])
			}
		}
		abandon(t, s)
		s = openAlone(t, dir, damagedOptions)
		for of, want := range used {
			if got := counterOf(t, s, of).Requests[core.Month]; got != want {
				t.Errorf("round %d: %+v: got %d used, want %d", round, of, got, want)
			}
			if got, want := historyOf(t, s, of), histories[of]; fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("round %d: history of %+v: got %d other entries, want %d", round, of, len(got), len(want))
			}
		}
		if round == 0 {
			flushCheckpoint(t, s)
		}
	}
	a.request(t, s, "key", 1, "id") // counts again if its event was cut off
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := checkDamages(t, dir); len(got) > 0 {
		t.Errorf("check: %q", got)
	}
}

// historyOf returns all entries of a history, and fails if its total differs.
func historyOf(t *testing.T, s *Store, of core.CounterID) []core.Entry {
	t.Helper()
	list, total, err := s.History(t.Context(), of, time.Time{}, everything)
	if err != nil || total != len(list) {
		t.Fatalf("history of %+v: got %d of %d entries, %v", of, len(list), total, err)
	}
	return list
}

// TestRepairBehindTransactions: a repair cuts off a transaction that the tables have. No index lacks a key, and no key has
// the number of another one. A transaction of another account runs all the while.
func TestRepairBehindTransactions(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(b []byte, cut int64) []byte{
		"flip":      func(b []byte, cut int64) []byte { b[cut+30] ^= 1; return b },
		"truncated": func(b []byte, cut int64) []byte { return b[:cut] },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := openAlone(t, t.TempDir(), damagedOptions)
			known(t, s, "key")
			id := "slow"
			slow, ownerKey := &core.Account{ID: id, Name: "slow"}, &core.OwnerKey{ID: "slow", AccountID: id, Digest: secrets.DigestOf("slow")}
			if err := s.CreateAccount(t.Context(), slow, ownerKey); err != nil {
				t.Fatal(err)
			}
			flushCheckpoint(t, s)
			commitSlow := beginSlow(t, s, id)
			known(t, s, "kept")
			cut := segmentData + s.events.End() - firstPosition
			known(t, s, "cut off")
			consume(t, s, request("cut off", 1, endless, noon))
			syncLog(t, s)
			copyKilled(t, dir, s.dir)
			commitSlow()
			damageFile(t, segmentFiles(t, dir)[0], func(b []byte) []byte { return damage(b, cut) })
			if got := checkDamages(t, dir); len(got) == 0 {
				t.Fatal("the event log is whole")
			}
			if _, err := Repair(dir, func([]string) bool { return true }); err != nil {
				t.Fatal(err)
			}
			if got := checkDamages(t, copyOf(t, dir)); len(got) > 0 {
				t.Errorf("check after the repair: %q", got)
			}
			s = openAlone(t, dir, damagedOptions)
			known(t, s, "new")
			consume(t, s, request("new", 1, endless, noon))
			abandon(t, s)
			s = openAlone(t, dir, damagedOptions)
			consume(t, s, request("new", 1, endless, noon))
			for i, key := range []string{"key", "kept", "new"} {
				if got := keyRef(t, s, key).number; got != int64(i+1) {
					t.Errorf("%s: got number %d, want %d", key, got, i+1)
				}
			}
			wantUsed(t, s, ofKey("new"), 2)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if got := checkDamages(t, dir); len(got) > 0 {
				t.Errorf("check: %q", got)
			}
		})
	}
}

// beginSlow begins a transaction that creates a user, and returns the function that commits it.
func beginSlow(t *testing.T, s *Store, account string) (commit func()) {
	t.Helper()
	begun, end, done := make(chan bool), make(chan bool), make(chan error)
	go func() {
		done <- s.Update(t.Context(), account, func(tx core.Tx) error {
			close(begun)
			<-end
			return tx.PutUser(&core.User{AccountID: account, Name: "user"})
		})
	}()
	<-begun
	return func() {
		t.Helper()
		close(end)
		if err := <-done; err != nil {
			t.Errorf("Update of %s: %v", account, err)
		}
	}
}

// TestRepairBehindHalf: a repair cuts off the end of a large transaction that has parts in the tables. No key of the
// transaction passes: it is not whole.
func TestRepairBehindHalf(t *testing.T) {
	var h hook
	o := quiet
	o.failpoint = h.step
	dir := t.TempDir()
	s := openAlone(t, t.TempDir(), o)
	known(t, s, "key")
	flushCheckpoint(t, s)
	begin := segmentData + s.events.End() - firstPosition
	commits := 0
	h.fn.Store(new(func(at failpoint) {
		if at != failCommitted {
			return
		}
		if commits++; commits == 3 {
			h.fn.Store(nil)
			syncLog(t, s)
			copyKilled(t, dir, s.dir)
		}
	}))
	update(t, s, withKeys(11, 2*many))
	if commits < 3 {
		t.Fatalf("got %d commits, want at least 3", commits)
	}
	damageFile(t, segmentFiles(t, dir)[0], func(b []byte) []byte { b[begin+200] ^= 1; return b })
	if _, err := Repair(dir, consent); err != nil {
		t.Fatal(err)
	}
	s = openAlone(t, dir, quiet)
	if _, n, err := s.Keys(t.Context(), acct, core.KeyFilter{}, everything); err != nil || n != 1 {
		t.Errorf("got %d keys, %v, want 1", n, err)
	}
	if k, err := s.KeyByDigest(t.Context(), newKey(11, 0).Digest); !errors.Is(err, core.ErrKeyNotFound) {
		t.Errorf("got the key %+v, %v, whose transaction the repair has cut off", k, err)
	}
}

// TestRenewBehindRepair: tables may have records that a repair has cut off from the event log. So the event log alone cannot
// rebuild the database: Open refuses, until an image after the repair is written.
func TestRenewBehindRepair(t *testing.T) {
	d := storeToDamage(t, true)
	changeByte(t, filepath.Join(d.dir, eventLogDir, d.files[3]), segmentData+9000)
	if _, err := Repair(d.dir, consent); err != nil {
		t.Fatal(err)
	}
	lost := copyOf(t, d.dir)
	remove(t, glob(t, lost, "*.sst"))
	if _, err := Open(lost, quiet); err == nil || !strings.Contains(err.Error(), "restore a backup") {
		t.Errorf("without an image: got %v, want that a backup is to be restored", err)
	}
	s := openAlone(t, d.dir, damagedOptions)
	consume(t, s, request("key", 1, endless, noon))
	writeCheckpoint(t, s)
	if !s.imageDue() {
		t.Error("no image is due after a repair")
	}
	mustImage(t, s)
	consume(t, s, request("key", 1, endless, noon))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	want := dumpOf(t, d.dir)
	remove(t, glob(t, d.dir, "*.sst"))
	wantDump(t, d.dir, want)
}
