package redisstore

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// at sends an allowed request with the key of user 1 at a time.
func (m *moveTest) at(at time.Time, cost int64, costs ...core.MeterCost) {
	m.t.Helper()
	v, err := m.s.Consume(m.t.Context(), &core.Consumption{Account: moveAccount, KeyID: "key_1", KeySeq: 1, UserID: 1, Shared: true, Cost: cost, Costs: costs,
		Terms: core.Terms{Period: core.Year, Limit: 1 << 40}, Entry: core.Entry{At: at, KeyID: "key_1", UserID: 1, Cost: cost, Costs: costs}})
	if err != nil || !v.Allowed {
		m.t.Fatalf("Consume: %+v, %v; want an allowed request", v, err)
	}
}

// hours returns the hours of the key that have traffic, with the cost of its requests, as in "12 3, 13 -1".
func (m *moveTest) hours(of core.DaysFilter, day time.Time) string {
	m.t.Helper()
	of.Account = moveAccount
	first := core.HourOf(core.DateOf(day).Start())
	list, err := m.s.Days(m.t.Context(), of, first, first+23)
	if err != nil {
		m.t.Fatalf("Days: %v", err)
	}
	var out []string
	for i := range list {
		if d := &list[i]; len(d.Meters) > 0 || d.Traffic != (core.Traffic{}) {
			out = append(out, strconv.Itoa(d.Date.Start().Hour())+" "+strconv.FormatInt(d.Of(core.MeterRequests).Allowed, 10))
		}
	}
	return strings.Join(out, ", ")
}

var ofKey1 = core.DaysFilter{KeyID: "key_1"}

func (m *moveTest) wantHours(day time.Time, want string) {
	m.t.Helper()
	for _, of := range []core.DaysFilter{ofKey1, {UserID: 1}} {
		if got := m.hours(of, day); got != want {
			m.t.Errorf("hours of %+v on %v: got %q, want %q", of, core.DateOf(day), got, want)
		}
	}
}

// A clock that steps back by hours counts in the hour of its time, and its requests take no more memory. Requests in one hour of a day only write
// no hours.
func TestHoursOfEarlierClock(t *testing.T) {
	m := newMoveTest(t)
	ended := m.s.o.usage(moveAccount, 1).hours("1")
	m.at(noon, 3)
	m.at(noon.AddDate(0, 0, 1), 4)
	if got := m.server.Do(t, "EXISTS", ended, m.s.o.usage(moveAccount, 1).hours(userField)); got != "0" {
		t.Errorf("%s lists of hours, want none after traffic in one hour of each day", got)
	}
	tomorrow := noon.AddDate(0, 0, 1)
	m.at(tomorrow.Add(2*time.Hour), 5)
	size := 0
	for i := range 100 {
		m.at(tomorrow.Add(-time.Hour), 2)
		m.at(tomorrow.Add(2*time.Hour), 1)
		if n := len(m.server.Do(t, "LRANGE", ended, "0", "-1")); i == 10 {
			size = n
		} else if i > 10 && n > size+4 { // a number may need more bytes
			t.Fatalf("the hours take %d bytes after %d late requests, %d after 10", n, i, size)
		}
	}
	m.at(noon, 1) // counts in the first hour of the later day
	m.wantHours(noon, "12 3")
	m.wantHours(tomorrow, "0 1, 11 200, 12 4, 14 105")
}

// The hours are kept for 168 hours, in a list that expires when there is no traffic. Then they are not known, and the days are. The next hours are.
func TestHoursExpire(t *testing.T) {
	m := newMoveTest(t)
	n := m.s.o.usage(moveAccount, 1)
	const days = 12
	for i := range days * 24 {
		m.at(noon.Add(time.Duration(i)*time.Hour), 1, core.MeterCost{Meter: "tokens", Cost: 1000})
	}
	last := noon.Add((days*24 - 1) * time.Hour)
	for _, field := range []string{"1", userField} {
		if got := m.server.Do(t, "LLEN", n.hours(field)); got != strconv.Itoa(hourDays) {
			t.Errorf("the list has %s days, want %d", got, hourDays)
		}
		ms, err := strconv.ParseInt(m.server.Do(t, "PTTL", n.hours(field)), 10, 64)
		if lives := time.Duration(ms) * time.Millisecond; err != nil || lives < core.HoursKept*time.Hour || lives > 11*24*time.Hour {
			t.Errorf("hours live for %v, %v; want some days more than %d hours", lives, err, core.HoursKept)
		}
	}
	list, err := m.s.Days(t.Context(), core.DaysFilter{Account: moveAccount, KeyID: "key_1"}, core.HourOf(last)-core.HoursKept+1, core.HourOf(last))
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		if got := list[i].Of("tokens").Allowed; got != 1000 || list[i].Requests().Allowed != 1 {
			t.Fatalf("hour %v: %+v, want a request of 1000 tokens", list[i].Date, list[i])
		}
	}
	all, err := m.s.CounterDays(t.Context(), core.CounterID{Account: moveAccount, KeyID: "key_1"})
	if hours := slices.IndexFunc(all, func(d core.CounterDay) bool { return d.Date.IsHour() }); err != nil || hours != days+1 || len(all)-hours != core.HoursKept {
		t.Errorf("CounterDays: %d days, %d hours, %v; want %d and %d", hours, len(all)-hours, err, days+1, core.HoursKept)
	}

	m.server.Do(t, "DEL", n.hours("1"), n.hours(userField))
	m.wantHours(last, "")
	m.wantHours(last.AddDate(0, 0, -1), "")
	m.wantDays(ofKey1, core.Traffic{Allowed: 12}, core.Traffic{Allowed: 24})
	m.at(last.Add(time.Hour), 1)
	m.wantHours(last, "")
	next := core.DateOf(last).Start().AddDate(0, 0, 10)
	m.at(next.Add(time.Hour), 1)
	m.at(next.Add(2*time.Hour), 2)
	m.wantHours(next, "1 1, 2 2")
	m.wantHours(last, "")
}

// Hours move with a key, and are deleted with it.
func TestHoursMove(t *testing.T) {
	m := newMoveTest(t)
	for i := range 3 {
		m.at(noon.Add(time.Duration(i)*time.Hour), int64(i)+1)
	}
	const want = "12 1, 13 2, 14 3"
	m.moveTo(2)
	if got := m.hours(ofKey1, noon); got != want {
		t.Errorf("hours after a move: got %q, want %q", got, want)
	}
	for _, name := range m.names(t) {
		if strings.HasSuffix(name, "/1}e:1") {
			t.Errorf("hours are left in the old slot: %s", name)
		}
	}
	if got := m.hours(core.DaysFilter{UserID: 1}, noon); got != want {
		t.Errorf("hours of the old user: got %q, want %q", got, want)
	}
	m.server.Do(t, "DEL", m.s.o.usage(moveAccount, 2).hours("1"))
	if got := m.hours(ofKey1, noon); got != "" {
		t.Errorf("hours of the key that have expired: %q", got)
	}
	m.update(func(tx core.Tx) error { return tx.DeleteKey("key_1") })
	if got := m.hours(ofKey1, noon); got != "" {
		t.Errorf("hours of a deleted key: %q", got)
	}
	for user := range int64(2) {
		if left := m.server.Do(t, "HKEYS", m.s.o.usage(moveAccount, 1+user).counters()); strings.Contains(left, "e1") {
			t.Errorf("fields of user %d that are left: %q", 1+user, left)
		}
	}
}

// An import replaces the hours. Traffic of imported days belongs to no hour unless the import says so.
func TestHoursImported(t *testing.T) {
	m := newMoveTest(t)
	id := core.CounterID{Account: moveAccount, KeyID: "key_1"}
	hour := core.HourOf(noon)
	want := record.Days{}
	for i, date := range []core.Date{core.DateOf(noon) - 2, core.DateOf(noon)} {
		*want.Number(date, record.DayAllowed) = int64(10 + i)
		*want.Number(date, record.DayDenied) = 5
		*want.MeterNumber(date, "tokens", record.DayAllowed) = -1 << 20
	}
	*want.MeterNumber(hour-49, core.MeterRequests, record.DayAllowed) = 4
	*want.MeterNumber(hour-1, core.MeterRequests, record.DayDenied) = 300
	*want.MeterNumber(hour-1, "tokens", record.DayAdjusted) = -1 << 40
	*want.MeterNumber(hour, "tokens", record.DayAllowed) = 70_000
	given := want.List()
	m.at(noon, 7)
	m.at(noon.Add(time.Hour), 7)
	if err := m.s.SetCounters(t.Context(), []core.CounterID{id}, []core.Counter{{At: noon.Unix(), Today: 11}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := m.s.SetDays(t.Context(), id, given); err != nil {
			t.Fatal(err)
		}
		got, err := m.s.CounterDays(t.Context(), id)
		if diff := cmp.Diff(given, got); err != nil || diff != "" {
			t.Errorf("CounterDays after SetDays: %v (-want +got):\n%s", err, diff)
		}
	}
	m.at(noon.Add(time.Hour), 2, core.MeterCost{Meter: "tokens", Cost: 3})
	if got := m.hours(ofKey1, noon); got != "11 0, 12 0, 13 2" {
		t.Errorf("hours after the next request: got %q", got)
	}
	list, err := m.s.Days(t.Context(), core.DaysFilter{Account: moveAccount, KeyID: "key_1"}, hour, hour+1)
	if err != nil || list[0].Of("tokens").Allowed != 70_000 || list[1].Of("tokens").Allowed != 3 {
		t.Errorf("hours of tokens: %+v, %v; want 70000 and 3", list, err)
	}
	if err := m.s.SetDays(t.Context(), id, given[:1]); err != nil {
		t.Fatal(err)
	}
	if got := m.hours(ofKey1, noon); got != "" {
		t.Errorf("hours after an import without hours: %q", got)
	}
}

// The deletion of a user adds its hours to the deleted users, and removes hours there that are too old.
func TestHoursOfDeletedUsers(t *testing.T) {
	m := newMoveTest(t)
	whole := core.DaysFilter{}
	for i := range 2 {
		m.at(noon.Add(time.Duration(i)*time.Hour), int64(i)+1)
	}
	m.update(func(tx core.Tx) error { return tx.DeleteUser(1) })
	if got := m.hours(whole, noon); got != "12 1, 13 2" {
		t.Errorf("hours after the deletion: got %q", got)
	}
	later := noon.AddDate(0, 0, 20)
	if _, err := m.s.Consume(t.Context(), &core.Consumption{Account: moveAccount, UserID: 2, Shared: true, Cost: 5,
		Terms: core.Terms{Period: core.Year, Limit: 100}, Entry: core.Entry{At: later, UserID: 2, Cost: 5}}); err != nil {
		t.Fatal(err)
	}
	m.update(func(tx core.Tx) error { return tx.DeleteUser(2) })
	if got := m.hours(whole, later); got != "12 5" {
		t.Errorf("hours after the second deletion: got %q", got)
	}
	if got := m.hours(whole, noon); got != "" {
		t.Errorf("hours that are too old: %q", got)
	}
	m.wantDays(whole, core.Traffic{Allowed: 3})
}

// Damaged hours are an error.
func TestDamagedHours(t *testing.T) {
	entry := appendHour(nil, dayNumber{1, "tokens", record.DayAllowed}, 3, 1<<20)
	for n := range len(entry) {
		b := string(record.AppendUint(nil, 3, 20_000)) + string(entry[:n])
		if err := (latestHours{}).addTo(record.Days{}, []string{b}, ""); (err == nil) != (n == 0) {
			t.Errorf("%d of %d bytes of an entry: %v", n, len(entry), err)
		}
	}
}
