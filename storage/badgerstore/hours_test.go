package badgerstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// TestHoursAcrossCheckpoints compares the hours and days of keys and of their user with the reference store. Between two requests there is a checkpoint,
// an eviction, a kill, or a request during a checkpoint. Some keys are created late, holds end hours after they were opened, and adjustments change meters
// without other usage. A failure means that a report or a chart has other numbers than the counters.
func TestHoursAcrossCheckpoints(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			testHours(t, rand.New(rand.NewPCG(seed, 0)))
		})
	}
}

func testHours(t *testing.T, r *rand.Rand) {
	var h hook
	dir, reference := t.TempDir(), memstore.New()
	s := openAlone(t, dir, Options{failpoint: h.step})
	known(t, s, "a", "b")
	inReference(t, reference, "a", "b")
	at, holds := midnight.Add(20*time.Hour), []string(nil)
	next := func() *core.Consumption {
		at = at.Add(time.Duration(r.IntN(50)) * time.Minute)
		c := request([]string{"a", "b"}[r.IntN(2)], 1, endless, at)
		if r.IntN(4) == 0 {
			c.Entry.At = at.Add(-time.Duration(r.IntN(6)) * time.Hour)
		}
		c.Shared = r.IntN(2) == 0
		switch r.IntN(8) {
		case 0, 1:
			c.Cost = r.Int64N(4)
			c.Costs = []core.MeterCost{{Meter: "tokens", Cost: 1 + r.Int64N(90)}}
		case 2:
			c.Limit = 0
		case 3:
			c.Hold = &core.NewHold{ID: core.NewHoldID(1), ExpiresAt: at.Truncate(time.Second).Add(core.MaxHoldTime)}
			holds = append(holds, c.Hold.ID)
		case 4:
			c.Cost, c.Entry.Cost = 0, 0
			c.Adjustment = &core.Adjustment{Meter: []string{core.MeterRequests, "tokens", "spend"}[r.IntN(3)], Value: r.Int64N(9) - 4, Reason: "a grant"}
		}
		c.Entry.Cost, c.Entry.Costs = c.Cost, c.Costs
		return c
	}
	both := func(do func(core.Store) (any, error)) {
		t.Helper()
		want, wantErr := do(reference)
		if got, err := do(s); err != wantErr || !cmp.Equal(want, got, cmpopts.EquateEmpty()) {
			t.Fatalf("got %+v, %v, want %+v, %v", got, err, want, wantErr)
		}
	}
	step := func() {
		if n := len(holds); n > 0 && r.IntN(5) == 0 {
			i := r.IntN(n)
			hold, err := reference.Hold(t.Context(), acct, holds[i])
			holds = slices.Delete(holds, i, i+1)
			if err != nil || hold.Status != core.HoldOpen {
				return
			}
			end := *hold.Settle(acct, core.HoldReleased, 0, nil, at, time.Hour)
			if r.IntN(2) == 0 {
				end = *hold.Settle(acct, core.HoldSettled, r.Int64N(4), []core.MeterCost{{Meter: "tokens", Cost: r.Int64N(50)}}, at, time.Hour)
			}
			both(func(s core.Store) (any, error) {
				c := end
				_, repeated, err := s.Settle(t.Context(), &c)
				return repeated, err
			})
			return
		}
		of := next()
		both(func(s core.Store) (any, error) {
			c := *of
			v, err := s.Consume(t.Context(), &c)
			return v.Allowed, err
		})
	}
	for range 100 {
		step()
		switch r.IntN(12) {
		case 0, 1:
			writeCheckpoint(t, s)
		case 2:
			h.once([]failpoint{failPages, failCommit, failCommitted, failMarked}[r.IntN(4)], step)
			writeCheckpoint(t, s)
		case 3:
			writeCheckpoint(t, s)
			step() // has an event after the page
			if err := s.events.Flush(); err != nil {
				t.Fatal(err)
			}
			evict(t, s, keyRef(t, s, "a"))
			evict(t, s, userRef(t, s, 1))
		case 4:
			if err := s.events.Flush(); err != nil {
				t.Fatal(err)
			}
			abandon(t, s)
			s = openAlone(t, dir, Options{failpoint: h.step})
		case 5: // import the exported days
			of := []core.CounterID{ofKey("a"), ofUser(1)}[r.IntN(2)]
			list := daysAndHours(t, s, of)
			if err := firstOf(s.SetDays(t.Context(), of, list), reference.SetDays(t.Context(), of, list)); err != nil {
				t.Fatal(err)
			}
		}
		for _, of := range []core.CounterID{ofKey("a"), ofKey("b"), ofUser(1)} {
			want, _ := reference.CounterDays(t.Context(), of)
			if d := cmp.Diff(want, daysAndHours(t, s, of), cmpopts.EquateEmpty()); d != "" {
				t.Fatalf("days and hours of %+v (-want +got):\n%s", of, d)
			}
		}
		for _, of := range []core.DaysFilter{{Account: acct}, {Account: acct, KeyID: "a"}} {
			last, hours := core.HourOf(at), core.Date(r.IntN(2)*30+3)
			both(func(s core.Store) (any, error) { return s.Days(t.Context(), of, last-hours, last) })
		}
	}
	if last := core.HourOf(at); len(archivedDates(t, s)) < 10 {
		t.Errorf("the archive has few records at %v: the test does not cover it", last)
	}
}

// inReference adds to a store what known adds.
func inReference(t *testing.T, s core.Store, keys ...string) {
	t.Helper()
	err := s.CreateAccount(t.Context(), &core.Account{ID: acct, Name: acct}, &core.OwnerKey{ID: "okey", AccountID: acct, Digest: secrets.DigestOf(acct)})
	err = firstOf(err, s.Update(t.Context(), acct, func(tx core.Tx) (err error) {
		for id := int64(1); id <= 8; id++ {
			err = firstOf(err, tx.PutUser(&core.User{AccountID: acct, ID: id, Name: "user"}))
		}
		for _, id := range keys {
			err = firstOf(err, tx.PutKey(&core.Key{AccountID: acct, ID: id, UserID: 1, Status: core.KeyActive, Digest: secrets.DigestOf(id)}))
		}
		return err
	}))
	if err != nil {
		t.Fatal(err)
	}
}

// TestSetDaysKeepsHours: SetDays keeps the last core.DaysKept days and the last core.HoursKept hours. A failure means that the import of a long list
// of hours removes days, or the reverse.
func TestSetDaysKeepsHours(t *testing.T) {
	s := openAlone(t, t.TempDir(), Options{})
	known(t, s, "key")
	var days, hours []core.CounterDay
	for date := today - core.DaysKept - 3; date <= today; date++ {
		days = append(days, keyDay(date, 3))
	}
	for date := hour - core.HoursKept - 3; date <= hour; date++ {
		hours = append(hours, core.CounterDay{Date: date, Meters: firstHour(keyDay(today, 3)).Meters})
	}
	setDays(t, s, slices.Concat(days, hours))
	for range 2 {
		if d := cmp.Diff(slices.Concat(days[4:], hours[4:]), daysAndHours(t, s, ofKey("key"))); d != "" {
			t.Errorf("days and hours (-want +got):\n%s", d)
		}
		writeCheckpoint(t, s)
	}
	deleted := core.CounterID{Account: acct}
	if err := s.SetDays(t.Context(), deleted, slices.Concat(days, hours)); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(slices.Concat(days[4:], hours[4:]), daysAndHours(t, s, deleted)); d != "" {
		t.Errorf("days and hours of the deleted users (-want +got):\n%s", d)
	}
}

// lateHour makes a request an hour before the latest one, so that the next checkpoint changes an hour that the archive has. It returns that hour.
func lateHour(t *testing.T, s *Store) core.Date {
	t.Helper()
	consume(t, s, request("key", 1, endless, noon))
	consume(t, s, request("key", 1, endless, noon.Add(time.Hour)))
	writeCheckpoint(t, s)
	late := request("key", 1, endless, noon)
	late.RequestID = "late"
	consume(t, s, late)
	return core.HourOf(noon)
}

// inHour returns the allowed requests of the key and of the user in an hour.
func inHour(s *Store, hour core.Date) (list []int64, err error) {
	for _, of := range []core.CounterID{ofKey("key"), ofUser(1)} {
		days, err := s.DaysOf(context.Background(), []core.CounterID{of}, hour, hour)
		if err != nil {
			return nil, err
		}
		for _, d := range days[0] {
			list = append(list, new(d.Totals(false)).Of(core.MeterRequests).Allowed)
		}
	}
	return list, nil
}

// TestHoursAfterFailedCheckpoint: a checkpoint commits the pages, but no request ids: the disk is full. A failure means that the next checkpoint adds
// late requests and ended holds to their hours and days again.
func TestHoursAfterFailedCheckpoint(t *testing.T) {
	s := openAlone(t, t.TempDir(), Options{})
	known(t, s, "key")
	hour := lateHour(t, s)
	n := 0
	s.commits(func() error {
		if n++; n > 1 {
			return errors.New("full")
		}
		return nil
	})
	if err := s.checkpoint(); err == nil || n != 2 {
		t.Fatalf("got error %v after %d commits, want an error of the second", err, n)
	}
	s.commits(func() error { return nil })
	for range 2 {
		if got, err := inHour(s, hour); err != nil || !slices.Equal(got, []int64{2, 2}) {
			t.Errorf("requests in the hour: got %v, %v, want 2 of the key and of the user", got, err)
		}
		writeCheckpoint(t, s)
	}
}

// TestHoursReadDuringCommit: hours are read while a checkpoint has committed a page and has not marked its counters yet. A failure means that a report, or the
// traffic that is kept of a deleted user, has late requests and ended holds twice.
func TestHoursReadDuringCommit(t *testing.T) {
	var h hook
	s := openAlone(t, t.TempDir(), Options{failpoint: h.step})
	known(t, s, "key")
	hour := lateHour(t, s)
	type read struct {
		requests []int64
		err      error
	}
	done := make(chan read, 1)
	h.once(failCommitted, func() {
		go func() {
			requests, err := inHour(s, hour)
			done <- read{requests, err}
		}()
		select { // a reader may wait for the checkpoint
		case r := <-done:
			done <- r
		case <-time.After(50 * time.Millisecond):
		}
	})
	writeCheckpoint(t, s)
	if got := <-done; got.err != nil || !slices.Equal(got.requests, []int64{2, 2}) {
		t.Errorf("requests in the hour: got %v, %v, want 2 of the key and of the user", got.requests, got.err)
	}
}

// TestHoursOfLateRequestDuringCheckpoint: a late request changes an hour while a checkpoint archives it, and its counter is loaded again during the next
// checkpoint. A failure means that the late request counts twice in its hour.
func TestHoursOfLateRequestDuringCheckpoint(t *testing.T) {
	var h hook
	s := openAlone(t, t.TempDir(), Options{failpoint: h.step})
	known(t, s, "key")
	send := func(at time.Time) { consume(t, s, request("key", 1, endless, at)) }
	send(noon)
	send(noon.Add(time.Hour))
	h.once(failPages, func() { send(noon) })
	writeCheckpoint(t, s)
	h.once(failPages, func() {
		evict(t, s, keyRef(t, s, "key"))
		evict(t, s, userRef(t, s, 1))
		send(noon.Add(time.Hour))
	})
	for range 3 {
		writeCheckpoint(t, s)
		if got, err := inHour(s, core.HourOf(noon)); err != nil || !slices.Equal(got, []int64{2, 2}) {
			t.Errorf("requests in the hour: got %v, %v, want 2 of the key and of the user", got, err)
		}
	}
}
