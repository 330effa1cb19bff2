package badgerstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// today is the day of noon.
var today = core.DateOf(noon)

// daysAndHours returns the days and the hours of a key or user.
func daysAndHours(t testing.TB, s *Store, id core.CounterID) []core.CounterDay {
	t.Helper()
	list, err := s.CounterDays(context.Background(), id)
	if err != nil {
		t.Fatalf("CounterDays of %+v: %v", id, err)
	}
	return list
}

// daysOf returns the days of a key or user, without the hours.
func daysOf(t testing.TB, s *Store, id core.CounterID) []core.CounterDay {
	t.Helper()
	return slices.DeleteFunc(daysAndHours(t, s, id), func(d core.CounterDay) bool { return d.Date.IsHour() })
}

// archivedDates returns how many records of the archive have a date, for each day and hour.
func archivedDates(t testing.TB, s *Store) map[core.Date]int {
	t.Helper()
	dates := map[core.Date]int{}
	for _, p := range stored(t, s, string(kindDay)) {
		dates[dateIn(path(p))]++
	}
	return dates
}

// wantTraffic checks the days and the hours of a key or user. All its traffic was in the first hours of the days.
func wantTraffic(t testing.TB, s *Store, id core.CounterID, want ...core.CounterDay) {
	t.Helper()
	for _, d := range want {
		want = append(want, firstHour(d))
	}
	if d := cmp.Diff(want, daysAndHours(t, s, id)); d != "" {
		t.Errorf("days and hours of %+v (-want +got):\n%s", id, d)
	}
}

// firstHour returns the first hour of a day that has all traffic of the day.
func firstHour(d core.CounterDay) core.CounterDay {
	of := func(t core.Traffic) core.MeterTraffic { return core.MeterTraffic{Allowed: t.Allowed, Denied: t.Denied} }
	cost := core.MeterDay{Meter: core.MeterRequests, MeterTraffic: of(d.Traffic), Shared: of(d.Shared)}
	return core.CounterDay{Date: core.HourOf(d.Date.Start()), Meters: []core.MeterDay{cost}}
}

func wantDays(t testing.TB, s *Store, id core.CounterID, want ...core.CounterDay) {
	t.Helper()
	if d := cmp.Diff(want, daysOf(t, s, id), cmpopts.EquateEmpty()); d != "" {
		t.Errorf("days of %+v (-want +got):\n%s", id, d)
	}
}

// consumeOn makes n requests on a day. The first request is denied.
func consumeOn(t testing.TB, s *Store, date core.Date, key string, n int) {
	t.Helper()
	for i := range n {
		c := shared(request(key, 1, endless, date.Start().Add(time.Duration(i)*time.Second)))
		if i == 0 {
			c.Limit = 0
		}
		consume(t, s, c)
	}
}

// keyDay and userDay return the expected day of a key, and of user 1 with one key, after consumeOn.
func keyDay(date core.Date, n int64) core.CounterDay {
	return core.CounterDay{Date: date, Traffic: core.Traffic{Allowed: n - 1, Denied: 1}}
}

func userDay(date core.Date, n int64) core.CounterDay {
	d := keyDay(date, n)
	d.Shared = d.Traffic
	return d
}

// TestDaysAcrossCheckpoints: the days of a counter are the same before and after a checkpoint, and when the counter is in
// memory, evicted, or read again after a kill. A checkpoint archives each ended day, in one record for all counters of a
// page.
func TestDaysAcrossCheckpoints(t *testing.T) {
	for _, checkpoints := range []bool{false, true} {
		for _, evicts := range []bool{false, true} {
			t.Run(fmt.Sprintf("checkpoints=%t/evicts=%t", checkpoints, evicts), func(t *testing.T) {
				dir := t.TempDir()
				s := openAlone(t, dir, Options{})
				known(t, s, "key", "other")
				var key, user []core.CounterDay
				check := func() {
					t.Helper()
					wantTraffic(t, s, ofKey("key"), key...)
					wantTraffic(t, s, ofUser(1), user...)
				}
				for i := range 6 {
					date, n := today+core.Date(i*i), 3+i
					consumeOn(t, s, date, "key", n)
					key, user = append(key, keyDay(date, int64(n))), append(user, userDay(date, int64(n)))
					check()
					if checkpoints {
						writeCheckpoint(t, s)
						check()
					}
					if evicts && s.events.Flush() == nil {
						evict(t, s, keyRef(t, s, "key"))
						evict(t, s, userRef(t, s, 1))
						check()
					}
				}
				abandon(t, s)
				s = openAlone(t, dir, Options{})
				check()
				writeCheckpoint(t, s)
				writeCheckpoint(t, s)
				check()
				archived := map[core.Date]int{}
				for _, d := range key[:len(key)-1] {
					archived[d.Date], archived[firstHour(d).Date] = 2, 2 // of the key and of the user
				}
				if d := cmp.Diff(archived, archivedDates(t, s)); d != "" {
					t.Errorf("records in the archive (-want +got):\n%s", d)
				}
			})
		}
	}
}

// TestDaysKilledDuringCheckpoint: after a kill at any failpoint of a checkpoint, each day is counted once, also when
// requests are counted during the checkpoint.
func TestDaysKilledDuringCheckpoint(t *testing.T) {
	for _, at := range []failpoint{failCheckpoint, failPages, failCommit, failCommitted, failPagesWritten, failMarked} {
		var h hook
		dir, after := t.TempDir(), t.TempDir()
		s := openAlone(t, dir, Options{failpoint: h.step})
		known(t, s, "key")
		consumeOn(t, s, today, "key", 3)
		writeCheckpoint(t, s)
		consumeOn(t, s, today+1, "key", 4)
		h.once(at, func() {
			copyDatabase(t, after, dir)
			copyEventLog(t, after, dir)
			consumeOn(t, s, today+2, "key", 5)
		})
		writeCheckpoint(t, s)
		want := []core.CounterDay{userDay(today, 3), userDay(today+1, 4), userDay(today+2, 5)}
		wantTraffic(t, s, ofUser(1), want...)
		writeCheckpoint(t, s)
		wantTraffic(t, s, ofUser(1), want...)

		s = openAlone(t, after, Options{})
		wantTraffic(t, s, ofUser(1), want[:2]...)
		wantTraffic(t, s, ofKey("key"), keyDay(today, 3), keyDay(today+1, 4))
		writeCheckpoint(t, s)
		wantTraffic(t, s, ofUser(1), want[:2]...)
	}
}

// TestDaysOfBusyCounter: the days of a counter that changes during every checkpoint do not accumulate in memory.
func TestDaysOfBusyCounter(t *testing.T) {
	var h hook
	s := openAlone(t, t.TempDir(), Options{failpoint: h.step})
	known(t, s, "key")
	var want []core.CounterDay
	for i := range 5 {
		date := today + core.Date(i)
		consumeOn(t, s, date, "key", 3)
		h.once(failPages, func() { consumeOn(t, s, date, "key", 2) })
		writeCheckpoint(t, s)
		want = append(want, core.CounterDay{Date: date, Traffic: core.Traffic{Allowed: 3, Denied: 2}})
	}
	wantTraffic(t, s, ofKey("key"), want...)
	of := keyRef(t, s, "key")
	if _, ended := s.counters.shard(of).peekLocked(of).forPage(kindKey); ended.list != nil {
		t.Errorf("not in the archive: got %+v, want nothing", ended)
	}
}

// TestOmittedDenialsOfDays: denials that the history omits are in the days of the key and of its user, also after a
// checkpoint and a kill.
func TestOmittedDenialsOfDays(t *testing.T) {
	const n = 5 * core.DeniedPerSecond
	dir := t.TempDir()
	s := openAlone(t, dir, Options{})
	known(t, s, "key")
	var key, user []core.CounterDay
	for _, date := range []core.Date{today, today + 1} {
		for range n {
			consume(t, s, shared(request("key", 1, 0, date.Start())))
		}
		traffic := core.Traffic{Denied: n}
		key = append(key, core.CounterDay{Date: date, Traffic: traffic})
		user = append(user, core.CounterDay{Date: date, Traffic: traffic, Shared: traffic})
	}
	wantTraffic(t, s, ofKey("key"), key...)
	writeCheckpoint(t, s)
	abandon(t, s)
	s = openAlone(t, dir, Options{})
	wantTraffic(t, s, ofKey("key"), key...)
	wantTraffic(t, s, ofUser(1), user...)
}

// TestDaysOfReusedNumber: a key or user that gets the number of a deleted one starts without days, with checkpoints at
// any moment. The days of the deleted one are removed from the archive.
func TestDaysOfReusedNumber(t *testing.T) {
	t.Parallel()
	for _, checkpoints := range []string{"", "before", "between", "after", "before between after", "before after"} {
		for _, used := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/used=%t", checkpoints, used), func(t *testing.T) {
				dir := t.TempDir()
				s := openAlone(t, dir, Options{})
				at := func(when string) {
					if strings.Contains(checkpoints, when) {
						writeCheckpoint(t, s)
					}
				}
				known(t, s, "key", "other")
				for i := range core.Date(4) {
					consumeOn(t, s, today+i, "key", 3)
				}
				writeCheckpoint(t, s)
				consumeOn(t, s, today+4, "other", 3)
				at("before")
				update(t, s, func(tx core.Tx) error { return tx.DeleteUser(1) })
				wantTraffic(t, s, ofKey("key"))
				wantTraffic(t, s, ofUser(1))
				addUserAndKey(t, s, 9, "later")
				consume(t, s, request("later", 9, endless, (today+5).Start()))
				at("between")
				update(t, s, func(tx core.Tx) error {
					return firstOf(tx.PutUser(&core.User{AccountID: acct, ID: 1, Name: "again"}),
						tx.PutKey(&core.Key{AccountID: acct, ID: "again", Seq: 1, UserID: 1, Status: core.KeyActive, Digest: secrets.DigestOf("again")}))
				})
				wantTraffic(t, s, ofKey("again"))
				wantTraffic(t, s, ofUser(1))
				var want, wantUser []core.CounterDay
				if used {
					consumeOn(t, s, today+6, "again", 3)
					consumeOn(t, s, today+7, "again", 3)
					want, wantUser = append(want, keyDay(today+6, 3), keyDay(today+7, 3)), append(want, userDay(today+6, 3), userDay(today+7, 3))
				}
				at("after")
				for range 2 {
					wantTraffic(t, s, ofKey("again"), want...)
					wantTraffic(t, s, ofUser(1), wantUser...)
					abandon(t, s)
					s = openAlone(t, dir, Options{})
				}
				for range 2 { // the second checkpoint follows a mark after the deletion
					consume(t, s, request("later", 9, endless, (today+8).Start()))
					writeCheckpoint(t, s)
				}
				wantTraffic(t, s, ofKey("again"), want...)
				wantTraffic(t, s, ofUser(1), wantUser...)
				wanted := map[core.Date]int{today + 5: 2, core.HourOf((today + 5).Start()): 2}
				if used {
					wanted[today+6], wanted[core.HourOf((today+6).Start())] = 2, 2
				}
				if d := cmp.Diff(wanted, archivedDates(t, s)); d != "" {
					t.Errorf("records in the archive (-want +got):\n%s", d)
				}
			})
		}
	}
}

// TestSetDaysKilledDuringCheckpoint: imported days survive a kill at any failpoint of the checkpoint that writes them.
func TestSetDaysKilledDuringCheckpoint(t *testing.T) {
	ctx := context.Background()
	for _, at := range []failpoint{failPages, failCommit, failCommitted, failpoints} {
		var h hook
		dir, after := t.TempDir(), t.TempDir()
		s := openAlone(t, dir, Options{failpoint: h.step})
		known(t, s, "key")
		before := []core.CounterDay{userDay(today, 3), userDay(today+1, 4), userDay(today+2, 5)}
		for i := range before {
			consumeOn(t, s, before[i].Date, "key", 3+i)
			if i == 1 {
				writeCheckpoint(t, s)
			}
		}
		set := []core.CounterDay{userDay(today-30, 7), userDay(today+1, 8), userDay(today+2, 5)}
		copied := func() {
			copyDatabase(t, after, dir)
			copyEventLog(t, after, dir)
		}
		if err := s.SetDays(ctx, ofUser(1), set); err != nil {
			t.Fatalf("SetDays: %v", err)
		}
		h.once(at, copied)
		writeCheckpoint(t, s)
		wantDays(t, s, ofUser(1), set...)
		wantDays(t, s, ofKey("key"), keyDay(today, 3), keyDay(today+1, 4), keyDay(today+2, 5))
		if at == failpoints {
			copied()
		}

		s = openAlone(t, after, Options{})
		wantDays(t, s, ofUser(1), set...)
		wantDays(t, s, ofKey("key"), keyDay(today, 3), keyDay(today+1, 4), keyDay(today+2, 5))
		consumeOn(t, s, today+3, "key", 3)
		writeCheckpoint(t, s)
		wantDays(t, s, ofUser(1), append(set, userDay(today+3, 3))...)
	}
}

// TestSetDaysTooOld: SetDays leaves out days that are older than core.DaysKept. A failure means that these days are never
// removed.
func TestSetDaysTooOld(t *testing.T) {
	s := openAlone(t, t.TempDir(), Options{})
	known(t, s, "key")
	var list []core.CounterDay
	for date := today - 3*core.DaysKept; date <= today; date++ {
		list = append(list, core.CounterDay{Date: date, Traffic: core.Traffic{Denied: 1}})
	}
	if err := s.SetDays(t.Context(), ofKey("key"), list); err != nil {
		t.Fatalf("SetDays: %v", err)
	}
	wantDays(t, s, ofKey("key"), list[len(list)-core.DaysKept:]...)
}

// TestSetDaysOfWrongClock: SetDays keeps the days before a day in the distant future. A failure means that a backup cannot be
// restored if the clock was ever wrong: the import compares the days, and reports that some are missing.
func TestSetDaysOfWrongClock(t *testing.T) {
	s := openAlone(t, t.TempDir(), Options{})
	known(t, s, "key")
	var list []core.CounterDay
	for _, date := range []core.Date{today - 1, today, today + 10*core.DaysKept} {
		list = append(list, core.CounterDay{Date: date, Traffic: core.Traffic{Denied: 1}})
	}
	if err := s.SetDays(t.Context(), ofKey("key"), list); err != nil {
		t.Fatalf("SetDays: %v", err)
	}
	wantDays(t, s, ofKey("key"), list...)
	writeCheckpoint(t, s)
	wantDays(t, s, ofKey("key"), list...)
}

// TestDeleteManyUsers: one transaction deletes more users than fit into one read of their days. The days of the account stay as they were.
func TestDeleteManyUsers(t *testing.T) {
	const users = 3*deletedAtOnce + 7
	s := openAlone(t, t.TempDir(), Options{})
	known(t, s, "key")
	var ids []int64
	update(t, s, func(tx core.Tx) error {
		for range users {
			u := &core.User{AccountID: acct, Name: "user"}
			if err := tx.PutUser(u); err != nil {
				return err
			}
			ids = append(ids, u.ID)
		}
		return nil
	})
	for i, id := range ids {
		c := shared(request("", id, endless, (today + core.Date(i%40)).Start()))
		c.Costs = []core.MeterCost{{Meter: "tokens", Cost: int64(1 + i)}}
		consume(t, s, c)
	}
	days := func() []core.DayTotals {
		list, err := s.Days(t.Context(), core.DaysFilter{Account: acct}, today, today+40)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	want := days()
	update(t, s, func(tx core.Tx) (err error) {
		for _, id := range ids {
			err = firstOf(err, tx.DeleteUser(id))
		}
		return err
	})
	if d := cmp.Diff(want, days()); d != "" || len(want[0].Meters) == 0 {
		t.Errorf("days of the account (-want +got):\n%s", d)
	}
}
