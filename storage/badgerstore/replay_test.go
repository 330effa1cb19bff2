package badgerstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// TestDatabaseBehind: the database lacks its newest records, as after a power cut. The replay restores them from the event
// log: keys, users, their usage, imported counts, and denials that the history omits.
func TestDatabaseBehind(t *testing.T) {
	for _, events := range []int{3, 5 * maxPendingEvents} {
		t.Run(fmt.Sprint(events), func(t *testing.T) {
			dir, after := t.TempDir(), t.TempDir()
			s := openAlone(t, dir, quiet)
			known(t, s, "key")
			consume(t, s, request("key", 1, 1<<20, noon))
			writeCheckpoint(t, s)
			copyDatabase(t, after, dir) // the database ends here
			addUserAndKey(t, s, 9, "late")
			addUserAndKey(t, s, 10, "imported")
			imported := core.Counter{LastUsedAt: noon}
			imported.Add(charge(7, noon))
			day := core.CounterDay{Date: core.DateOf(noon) - 3, Traffic: core.Traffic{Allowed: 5}}
			if err := firstOf(s.SetCounters(t.Context(), []core.CounterID{ofKey("imported")}, []core.Counter{imported}),
				s.SetDays(t.Context(), ofKey("imported"), []core.CounterDay{day})); err != nil {
				t.Fatal(err)
			}
			for range events {
				consume(t, s, shared(request("late", 1, 1<<20, noon)))
				consume(t, s, shared(request("key", 1, 1<<20, noon)))
				consume(t, s, shared(request("key", 9, 1<<20, noon)))
				consume(t, s, request("imported", 10, 1<<20, noon))
			}
			for range 100 { // more denials than the history records
				consume(t, s, request("late", 1, 1, noon))
			}
			writeCheckpoint(t, s)
			omitted := counterOf(t, s, ofKey("late")).DeniedOmitted
			if omitted == 0 {
				t.Error("the history omits no denials: the test does not cover them")
			}
			copyEventLog(t, after, dir)

			for range 2 {
				s = openAlone(t, after, quiet)
				wantUsed(t, s, ofKey("key"), int64(2*events+1))
				wantUsed(t, s, ofKey("late"), int64(events))
				if used := counterOf(t, s, ofKey("imported")).Requests[core.Month]; used != int64(events+7) {
					t.Errorf("imported key: got %d used, want %d", used, events+7)
				}
				if used := counterOf(t, s, ofUser(1)).Requests[core.Month]; used != int64(2*events) {
					t.Errorf("user: got %d used, want %d", used, 2*events)
				}
				if got := counterOf(t, s, ofKey("late")).DeniedOmitted; got != omitted {
					t.Errorf("omitted denials: got %d, want %d", got, omitted)
				}
				used := keyDay(core.DateOf(noon), 1)
				used.Traffic = core.Traffic{Allowed: int64(events + 7)}
				inHour := core.CounterDay{Date: core.HourOf(noon), Meters: []core.MeterDay{{Meter: core.MeterRequests, MeterTraffic: core.MeterTraffic{Allowed: int64(events)}}}}
				if d := cmp.Diff([]core.CounterDay{day, used, inHour}, daysAndHours(t, s, ofKey("imported"))); d != "" {
					t.Errorf("days and hours of the imported key (-want +got):\n%s", d)
				}
				writeCheckpoint(t, s)
				abandon(t, s)
			}
		})
	}
}

// shared makes the counter of the user decide a request.
func shared(c *core.Consumption) *core.Consumption {
	c.Shared = true
	return c
}

// addUserAndKey creates a user with an ID, and one key of the user.
func addUserAndKey(t *testing.T, s *Store, user int64, key string) {
	t.Helper()
	update(t, s, func(tx core.Tx) error {
		return firstOf(
			tx.PutUser(&core.User{AccountID: acct, ID: user, Name: "user"}),
			tx.PutKey(&core.Key{AccountID: acct, ID: key, UserID: user, Status: core.KeyActive, Digest: secrets.DigestOf(key)}))
	})
}

// TestReplayOfDeleted: the replay of the requests of a deleted key and user does not restore them. A later request with
// the number of the deleted key is refused.
func TestReplayOfDeleted(t *testing.T) {
	for _, events := range []int{3, 3 * maxPendingEvents} {
		dir := t.TempDir()
		s := openAlone(t, dir, Options{})
		known(t, s, "key")
		addUserAndKey(t, s, 9, "gone")
		gone := keyRef(t, s, "gone")
		for range events {
			consume(t, s, shared(request("gone", 9, endless, noon)))
		}
		update(t, s, func(tx core.Tx) error { return tx.DeleteUser(9) })
		abandon(t, s)
		for range 2 {
			s = openAlone(t, dir, Options{})
			c := request("gone", 9, endless, noon)
			c.KeySeq = gone.number
			if _, err := s.Consume(t.Context(), c); !errors.Is(err, core.ErrKeyNotFound) {
				t.Errorf("Consume after %d requests: got error %v, want %v", events, err, core.ErrKeyNotFound)
			}
			c = request("key", 9, endless, noon)
			if _, err := s.Consume(t.Context(), c); !errors.Is(err, core.ErrUserNotFound) {
				t.Errorf("Consume after %d requests, for the user: got error %v, want %v", events, err, core.ErrUserNotFound)
			}
			writeCheckpoint(t, s)
			abandon(t, s)
		}
	}
}

// TestKilledReplayOfDeletion: requests that were counted while their key was being deleted do not count after a crash,
// nor after a second crash during the replay. A failure means that no checkpoint can be written, because the first
// events of the deleted counter are missing.
func TestKilledReplayOfDeletion(t *testing.T) {
	for _, events := range []int{3, 3 * maxPendingEvents} {
		t.Run(fmt.Sprint(events), func(t *testing.T) {
			dir := t.TempDir()
			s := openAlone(t, dir, quiet)
			known(t, s, "key")
			addUserAndKey(t, s, 9, "gone")
			consume(t, s, shared(request("gone", 9, endless, noon)))
			deleted, before := make(chan error), s.events.Written()
			s.committing.Lock()
			go func() {
				deleted <- s.Update(context.Background(), acct, func(tx core.Tx) error { return tx.DeleteUser(9) })
			}()
			waitUntil(t, "the deletion is in the event log", func() bool { return s.events.Written() > before })
			for range 2 * events {
				consume(t, s, request("key", 1, endless, noon))
			}
			for range events {
				consume(t, s, shared(request("gone", 9, endless, noon)))
			}
			s.committing.Unlock()
			if err := <-deleted; err != nil {
				t.Fatal(err)
			}
			if err := s.syncEvents(); err != nil {
				t.Fatal(err)
			}
			half := killedCopy(t, dir)
			for range events {
				consume(t, s, request("key", 1, endless, noon))
			}
			abandon(t, s)
			var moments []string
			records := 0
			openAlone(t, dir, Options{Logger: quiet.Logger, pagesEvery: 320, failpoint: func(failpoint) {
				if records++; records%(events/3) == 0 {
					moments = append(moments, killedCopy(t, dir))
				}
			}})
			for _, dir := range append(moments, replayedOver(t, half, dir)) {
				s := openAlone(t, dir, quiet)
				wantUsed(t, s, ofKey("key"), int64(3*events))
				if _, err := s.Consume(t.Context(), request("gone", 9, endless, noon)); !errors.Is(err, core.ErrKeyNotFound) {
					t.Errorf("Consume: got error %v, want %v", err, core.ErrKeyNotFound)
				}
				writeCheckpoint(t, s)
				for _, problem := range audit(s) {
					t.Error(problem)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				if got := checkDamages(t, dir); len(got) > 0 {
					t.Errorf("check: got %q", got)
				}
			}
		})
	}
}

// replayedOver returns a store that was killed during the replay of the event log in dir. The directory half has the
// first part of that event log. The pages of the first part are written.
func replayedOver(t *testing.T, half, dir string) string {
	t.Helper()
	s := openAlone(t, half, Options{Logger: quiet.Logger, pagesEvery: 320})
	killed := killedCopy(t, half)
	abandon(t, s)
	copyEventLog(t, killed, dir)
	return killed
}

// TestRepeatedAnswerIsDurable: with Power, the answer to a repeated request comes after its event is synced, also when a
// process that was killed has written the event.
func TestRepeatedAnswerIsDurable(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		dir := t.TempDir()
		d := newLossyDisk()
		s := openAlone(t, dir, d.options(Options{}))
		known(t, s, "key")
		c := request("key", 1, endless, noon)
		c.RequestID = "id"
		consume(t, s, c)
		abandon(t, s)
		s = openAlone(t, dir, d.options(Options{Durability: Power}))
		if v, err := s.Consume(t.Context(), c); err != nil || v.FirstTerms == nil {
			t.Fatalf("Consume with the same id: got %+v, %v, want the first answer", v, err)
		}
		d.mu.Lock()
		left := d.cut(rand.New(rand.NewPCG(seed, 0)))
		d.mu.Unlock()
		abandon(t, s)
		s = openAlone(t, dir, left.options(Options{}))
		if v, err := s.Consume(t.Context(), c); err != nil || v.FirstTerms == nil || v.Usage.Used != 1 {
			t.Fatalf("Consume after a power cut: got %+v, %v, want the first answer", v, err)
		}
	}
}
