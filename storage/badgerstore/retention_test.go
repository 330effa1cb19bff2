package badgerstore

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/archive"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// consumeN makes n requests with a key.
func consumeN(t *testing.T, s *Store, key string, n int) {
	t.Helper()
	for range n {
		consume(t, s, request(key, 1, core.MaxLimit, noon))
	}
}

func mustTrim(t *testing.T, s *Store, now time.Time) {
	t.Helper()
	if err := s.removeHistory(now); err != nil {
		t.Fatalf("trim: %v", err)
	}
}

// A restore that would lose the oldest histories to max_history soon after fails, and says so. Segments with keys alone are no history.
func TestRestoreBeyondMaxHistory(t *testing.T) {
	from := openAlone(t, t.TempDir(), quiet)
	svc := service.New(from, service.Config{})
	a, _, _, err := svc.CreateAccount(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	plan, _ := svc.CreatePlan(t.Context(), a.ID, core.PlanPatch{Name: new("free"), Limit: core.Null[int64]()})
	user, err := svc.CreateUser(t.Context(), a.ID, core.UserPatch{Name: new("u"), PlanID: core.Some(plan.ID)})
	if err != nil {
		t.Fatal(err)
	}
	_, secret, err := svc.CreateKey(t.Context(), a.ID, core.KeyPatch{Name: new("key"), UserID: &user.ID})
	if err != nil {
		t.Fatal(err)
	}
	validate := func(n int) {
		for range n {
			if _, err := svc.Validate(t.Context(), a.ID, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 1}); err != nil {
				t.Fatal(err)
			}
		}
	}
	restore := func(most int64, want error) {
		to := openAlone(t, t.TempDir(), Options{Logger: quiet.Logger, segmentSize: 4 << 10, MaxHistory: most})
		_, err := archive.Import(t.Context(), to, archive.FromStore(from, archive.ExportOptions{}), archive.ImportOptions{EmptyOnly: true, Retention: time.Hour})
		if !errors.Is(err, want) || want != nil && !strings.Contains(err.Error(), "raise max_history") {
			t.Errorf("a max_history of %d bytes: got %v, want %v", most, err, want)
		}
	}
	validate(100)
	for range 500 {
		if _, _, err := svc.CreateKey(t.Context(), a.ID, core.KeyPatch{Name: new("key"), UserID: &user.ID}); err != nil {
			t.Fatal(err)
		}
	}
	restore(64<<10, nil)
	validate(3000)
	restore(64<<10, archive.ErrDiffers)
	restore(32<<20, nil)
}

// entriesOf returns the number of entries of a history.
func entriesOf(t *testing.T, s *Store, of core.CounterID) int {
	t.Helper()
	_, n, err := s.History(t.Context(), of, time.Time{}, core.Page{Number: 1, Size: 1})
	if err != nil {
		t.Fatalf("History: %v", err)
	}
	return n
}

// TestMaxHistory: the store removes the oldest segments when the event log is larger than max_history, but only segments
// in the checkpoint: counters stay exact, also after a kill. It logs the removal once. A failure means that the history
// of one customer fills the disk of all.
func TestMaxHistory(t *testing.T) {
	const most, segment, requests = 32 << 10, 4 << 10, 2000
	var logged bytes.Buffer
	dir := t.TempDir()
	o := Options{segmentSize: segment, MaxHistory: most, Logger: slog.New(slog.NewTextHandler(&logged, nil))}
	s := openAlone(t, dir, o)
	known(t, s, "key")
	for round := range 3 {
		consumeN(t, s, "key", requests)
		before := s.historyBytes()
		mustTrim(t, s, time.Now())
		if got := s.historyBytes(); got < before-most && got < requests*50 {
			t.Errorf("before the checkpoint: got %d of %d bytes, want all bytes after the checkpoint", got, before)
		}
		flushCheckpoint(t, s)
		mustTrim(t, s, time.Now())
		if got := s.historyBytes(); got > most || got < most-2*segment {
			t.Errorf("round %d: got %d bytes of %d, want %d and not much less", round, got, before, most)
		}
		if n := entriesOf(t, s, ofKey("key")); n < 200 || n > requests {
			t.Errorf("round %d: the history has %d entries, want 200 to %d", round, n, requests)
		}
		abandon(t, s)
		s = openAlone(t, dir, o)
		if used := counterOf(t, s, ofKey("key")).Requests[core.Month]; used != int64((round+1)*requests) {
			t.Errorf("round %d: got %d used, want %d", round, used, (round+1)*requests)
		}
	}
	// Once for each opening of the store.
	if n := strings.Count(logged.String(), "before its retention is over"); n != 3 {
		t.Errorf("logged %d times, want 3:\n%s", n, logged.String())
	}
	s.SetMaxHistory(2 * segment)
	mustTrim(t, s, time.Now())
	if got := s.historyBytes(); got > 2*segment {
		t.Errorf("with a smaller max_history: got %d bytes, want %d at most", got, 2*segment)
	}
	if cut, err := s.HistoryCut(t.Context(), ofKey("key")); !cut || err != nil {
		t.Errorf("HistoryCut: got %v, %v, want true", cut, err)
	}
}

// TestMaxHistoryKeepsRequestIDs: a segment with a remembered request id stays, even beyond max_history, also after the
// store is opened again. A failure means that a repeated request counts twice.
func TestMaxHistoryKeepsRequestIDs(t *testing.T) {
	dir := t.TempDir()
	o := Options{segmentSize: 4 << 10, MaxHistory: 1, Logger: quiet.Logger}
	s := openAlone(t, dir, o)
	known(t, s, "key")
	consumeN(t, s, "key", 200)
	named := request("key", 1, core.MaxLimit, noon)
	named.RequestID = "id"
	consume(t, s, named)
	position := s.counters.shard(keyRef(t, s, "key")).requestIDs.positions[requestKey{keyRef(t, s, "key"), "id"}]
	consumeN(t, s, "key", 200)
	flushCheckpoint(t, s)
	remembered := func(when string) {
		t.Helper()
		mustTrim(t, s, time.Now().Add(core.RequestIDRetention))
		v, err := s.Consume(t.Context(), named)
		if err != nil || v.FirstTerms == nil {
			t.Errorf("%s: got %+v, %v, want the first answer again", when, v, err)
		}
	}
	before := s.historyBytes()
	remembered("at once")
	if s.historyBytes() == before {
		t.Error("no segment was removed, want the segments before the request id removed")
	}
	abandon(t, s)
	s = openAlone(t, dir, o)
	remembered("after reopening")

	mustTrim(t, s, time.Now().Add(idRetention+time.Hour+time.Minute)) // segments round their retention up to hours
	if _, err := s.events.Read(position, nil); !errors.Is(err, eventlog.ErrGone) {
		t.Errorf("Read after the id was forgotten: got error %v, want %v", err, eventlog.ErrGone)
	}
	if used := counterOf(t, s, ofKey("key")).Requests[core.Month]; used != 401 {
		t.Errorf("got %d used, want 401", used)
	}
}

// TestFullDiskRemovesHistory: on a full disk, the store removes the oldest history before it refuses a request. A failure
// means that one customer can fill the history and stop every account.
func TestFullDiskRemovesHistory(t *testing.T) {
	s := openAlone(t, t.TempDir(), Options{segmentSize: 4 << 10, Logger: quiet.Logger})
	known(t, s, "key")
	consumeN(t, s, "key", 1000)
	flushCheckpoint(t, s)
	wanted := uint64(s.space.Enough())
	disk := int64(wanted) + s.historyBytes() - 10_000 // the history is 10,000 bytes too large
	free := func() (uint64, error) { return uint64(disk - s.historyBytes()), nil }
	makeSpace := func() {
		s.space.Space = func(string) (uint64, uint64, error) {
			n, err := free()
			return n, 1 << 40, err
		}
		mustTrim(t, s, time.Now())
	}
	makeSpace()
	if _, err := s.Consume(t.Context(), request("key", 1, core.MaxLimit, noon)); err != nil {
		t.Errorf("Consume on a disk with history to remove: %v", err)
	}
	if n, _ := free(); n < wanted || n > wanted+8<<10 {
		t.Errorf("got %d bytes free, want %d and not much more", n, wanted)
	}
	disk -= 1 << 20
	makeSpace()
	setFull(s, true)
	if _, err := s.Consume(t.Context(), request("key", 1, core.MaxLimit, noon)); !isUnavailable(err) {
		t.Errorf("Consume on a disk that another program has filled: got error %v, want unavailable", err)
	}
	if used := counterOf(t, s, ofKey("key")).Requests[core.Month]; used != 1001 {
		t.Errorf("got %d used, want 1001", used)
	}
	s.space.Space = func(string) (uint64, uint64, error) { return 0, 0, errMedium }
	if err := s.removeHistory(time.Now()); !errors.Is(err, errMedium) {
		t.Errorf("removeHistory: got error %v, want %v", err, errMedium)
	}
}

// TestReadDuringRemoval: reads of counters, histories and sums succeed and are exact while the store writes checkpoints
// and removes segments.
func TestReadDuringRemoval(t *testing.T) {
	t.Parallel()
	const rounds, each = 60, 20
	s := openAlone(t, t.TempDir(), Options{segmentSize: 1 << 10, MaxHistory: 1, Logger: quiet.Logger})
	keys := numbered("key", 8)
	known(t, s, keys...)
	update(t, s, func(tx core.Tx) (err error) {
		for _, key := range keys {
			err = firstOf(err, tx.PutKey(&core.Key{AccountID: acct, ID: key, UserID: 1, PlanID: "plan", Status: core.KeyActive, Digest: secrets.DigestOf(key)}))
		}
		return err
	})
	stop := make(chan struct{})
	var group sync.WaitGroup
	for _, key := range keys {
		of := keyRef(t, s, key)
		group.Go(func() {
			for i := 1; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				v, err := s.Consume(t.Context(), request(key, 1, core.MaxLimit, noon))
				if err != nil || v.Usage.Used != int64(i) {
					t.Errorf("Consume: got %d used, %v, want %d", v.Usage.Used, err, i)
					return
				}
				sh := s.counters.shard(of)
				sh.mu.Lock()
				if c := sh.peekLocked(of); c != nil && c.evictable(s.events.Written()) {
					if c.dirty {
						sh.pending[of] = pendingEvents{position: c.applied, events: 1}
					}
					sh.removeLocked(c)
				}
				sh.mu.Unlock()
				if i%each > 0 {
					continue
				}
				_, _, err = s.History(t.Context(), ofKey(key), time.Time{}, core.Page{Number: 1, Size: 10})
				_, totalsErr := s.PlanUsed(t.Context(), acct, "plan", core.Month, noon)
				if err := errors.Join(err, totalsErr); err != nil {
					t.Errorf("History and PlanUsed: %v", err)
					return
				}
			}
		})
	}
	for range rounds {
		if err := firstOf(s.checkpoint(), s.removeHistory(time.Now())); err != nil {
			t.Errorf("checkpoint and trim: %v", err)
			break
		}
	}
	close(stop)
	group.Wait()
}

// TestDenialsPerDay: a key over its quota sends 12 requests a second with paths of 2,040 bytes for a day. The event log
// grows by at most DeniedPerDay entries of MaxEntrySize bytes, instead of 1.9 GB. All other denials count as omitted.
func TestDenialsPerDay(t *testing.T) {
	const perSecond, seconds = 12, 24 * 60 * 60
	now := core.DateOf(noon).Start()
	s := openAlone(t, t.TempDir(), Options{segmentSize: 1 << 20})
	svc := service.New(s, service.Config{Clock: func() time.Time { return now }})
	account, secret, key := overQuota(t, svc)
	before := s.events.End()
	r := service.Request{Secret: secret, Endpoint: "/" + strings.Repeat("x", 2039), Method: "GET", IP: "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", Cost: 1}
	for i := range seconds {
		now = core.DateOf(noon).Start().Add(time.Duration(i) * time.Second)
		for range perSecond {
			if d, err := svc.Validate(t.Context(), account, r); err != nil || d.Outcome != service.Denied {
				t.Fatalf("Validate: got %v, %v, want denied", d.Outcome, err)
			}
		}
		if err := s.events.Flush(); err != nil { // as the store does every second
			t.Fatal(err)
		}
	}
	written := s.events.End() - before
	t.Logf("%d denied requests have written %d bytes", perSecond*seconds, written)
	if written > core.DeniedPerDay*core.MaxEntrySize {
		t.Errorf("got %d bytes, want %d at most", written, core.DeniedPerDay*core.MaxEntrySize)
	}
	of := core.CounterID{Account: account, KeyID: key}
	if n := entriesOf(t, s, of); n > core.DeniedPerDay+1 {
		t.Errorf("the history has %d entries, want %d of denials at most", n, core.DeniedPerDay)
	}
	c := counterOf(t, s, of)
	if _, recorded := c.DeniedOn(); c.DeniedOmitted+int64(recorded) != perSecond*seconds {
		t.Errorf("got %d recorded and %d omitted, want %d in all", recorded, c.DeniedOmitted, perSecond*seconds)
	}
}

// overQuota creates a key and uses up its quota.
func overQuota(t *testing.T, s *service.Service) (account, secret, key string) {
	t.Helper()
	ctx := t.Context()
	a, _, _, err := s.CreateAccount(ctx, "account")
	if err != nil {
		t.Fatal(err)
	}
	plan, err := s.CreatePlan(ctx, a.ID, core.PlanPatch{Name: new("plan"), Limit: core.Some(int64(1)), Period: new("year")})
	if err != nil {
		t.Fatal(err)
	}
	u, err := s.CreateUser(ctx, a.ID, core.UserPatch{Name: new("user"), PlanID: core.Some(plan.ID)})
	if err != nil {
		t.Fatal(err)
	}
	k, secret, err := s.CreateKey(ctx, a.ID, core.KeyPatch{Name: new("key"), UserID: &u.ID})
	if err != nil {
		t.Fatal(err)
	}
	d, err := s.Validate(ctx, a.ID, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 1})
	if err != nil || !d.Allowed() {
		t.Fatalf("Validate: got %v, %v, want allowed", d.Outcome, err)
	}
	return a.ID, secret, k.ID
}

// TestDenialsPerDaySurvive: the number of recorded denials of a day survives the eviction of its counter, before and after
// a checkpoint, and a kill. A failure means that a key can record DeniedPerDay more denials after each of these.
func TestDenialsPerDaySurvive(t *testing.T) {
	dir := t.TempDir()
	s := openAlone(t, dir, Options{})
	known(t, s, "key")
	n := 0
	deny := func(times int) {
		t.Helper()
		for range times {
			if consume(t, s, request("key", 1, 0, noon.Add(time.Duration(n/core.DeniedPerSecond)*time.Second))) {
				t.Fatal("got allowed, want denied")
			}
			n++
		}
		if err := s.events.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	recorded := func(when string) {
		t.Helper()
		c := counterOf(t, s, ofKey("key"))
		if day, got := c.DeniedOn(); got != n || day != core.DateOf(noon) {
			t.Errorf("%s: got %d denials on %v, want %d on %v", when, got, day, n, core.DateOf(noon))
		}
	}
	deny(500)
	evict(t, s, keyRef(t, s, "key"))
	recorded("evicted")
	deny(500)
	writeCheckpoint(t, s)
	evict(t, s, keyRef(t, s, "key"))
	recorded("evicted after a checkpoint")
	for i := range 3 {
		deny(500)
		if i == 1 {
			writeCheckpoint(t, s)
		}
		abandon(t, s)
		s = openAlone(t, dir, Options{})
		recorded(fmt.Sprint("killed ", i+1, " times"))
	}
}
