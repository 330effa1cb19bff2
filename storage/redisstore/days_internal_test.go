package redisstore

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// noon is on a past day: the retention of days does not depend on the current time.
var noon = time.Date(2021, time.March, 12, 12, 0, 0, 0, time.UTC)

// count sends a request with the key, after days after noon. Limit 0 denies it.
func (m *moveTest) count(user int64, after int, cost, limit int64) {
	m.t.Helper()
	_, err := m.s.Consume(m.t.Context(), &core.Consumption{Account: moveAccount, KeyID: "key_1", KeySeq: 1, UserID: user, Shared: true, Cost: cost,
		Terms: core.Terms{Period: core.Year, Limit: limit}, Entry: core.Entry{At: noon.AddDate(0, 0, after), KeyID: "key_1", UserID: user, Cost: cost}})
	if err != nil {
		m.t.Fatalf("Consume: %v", err)
	}
}

// wantDays fails the test unless the allowed and denied requests are as given on noon's day and the days
// after it.
func (m *moveTest) wantDays(of core.DaysFilter, want ...core.Traffic) {
	m.t.Helper()
	of.Account = moveAccount
	first := core.DateOf(noon)
	days, err := m.s.Days(m.t.Context(), of, first, first+core.Date(len(want)-1))
	if err != nil {
		m.t.Fatalf("Days: %v", err)
	}
	var got []core.Traffic
	for _, d := range days {
		got = append(got, d.Traffic)
	}
	if !slices.Equal(got, want) {
		m.t.Errorf("days of %+v: got %v, want %v", of, got, want)
	}
}

// Past days move with a key exactly once, even if a slow process runs the move again after others have
// finished it.
func TestDaysMove(t *testing.T) {
	m := newMoveTest(t)
	key := core.DaysFilter{KeyID: "key_1"}
	for i := range 3 {
		m.count(1, i, int64(i+1), 100)
		m.count(1, i, 10, 0)
	}
	first := task{kind: moveKeyCounter, seq: 1, from: 1, to: 2, move: 1}
	left, err := m.s.atSource(t.Context(), moveBeginScript, moveAccount, first)
	if err != nil {
		t.Fatal(err)
	}
	m.moveTo(2)
	m.wantDays(key, core.Traffic{Allowed: 1, Denied: 10}, core.Traffic{Allowed: 2, Denied: 10}, core.Traffic{Allowed: 3, Denied: 10}, core.Traffic{})
	m.count(2, 3, 4, 100)
	m.count(2, 2, 20, 0)
	want := []core.Traffic{{Allowed: 1, Denied: 10}, {Allowed: 2, Denied: 10}, {Allowed: 3, Denied: 30}, {Allowed: 4}}
	for range 2 {
		m.wantDays(key, want...)
		if err := m.s.copyMoved(t.Context(), moveAccount, first, left); err != nil {
			t.Fatal(err)
		}
		m.wantDays(key, want...)
		if _, err := m.s.atSource(t.Context(), moveEndScript, moveAccount, first); err != nil {
			t.Fatal(err)
		}
	}
	m.wantDays(key, want...)
	m.wantDays(core.DaysFilter{UserID: 1}, core.Traffic{Allowed: 1, Denied: 10}, core.Traffic{Allowed: 2, Denied: 10}, core.Traffic{Allowed: 3, Denied: 10}, core.Traffic{})
	m.wantDays(core.DaysFilter{UserID: 2}, core.Traffic{}, core.Traffic{}, core.Traffic{Denied: 20}, core.Traffic{Allowed: 4})
	if names := m.names(t); slices.ContainsFunc(names, func(name string) bool { return strings.HasSuffix(name, "/1}t:1") }) {
		t.Errorf("days are left in the old slot: %q", names)
	}
}

// Deletion removes days. A key that is created again with the same Seq starts without days.
func TestDaysDeleted(t *testing.T) {
	m := newMoveTest(t)
	use := func() {
		for i := range 2 {
			m.count(1, i, 1, 100)
			m.count(1, i, 1, 0)
		}
	}
	use()
	m.update(func(tx core.Tx) error { return tx.DeleteKey("key_1") })
	counters := m.s.o.usage(moveAccount, 1).counters()
	if left := strings.Fields(m.server.Do(t, "HKEYS", counters)); !slices.Equal(slices.Sorted(slices.Values(left)), []string{"au", "du", "su", "u"}) {
		t.Errorf("fields that are left: %q, want those of the user", left)
	}
	m.update(func(tx core.Tx) error {
		return tx.PutKey(&core.Key{AccountID: moveAccount, ID: "key_1", Seq: 1, UserID: 1, Digest: secrets.DigestOf("1")})
	})
	m.wantDays(core.DaysFilter{KeyID: "key_1"}, core.Traffic{}, core.Traffic{})
	m.count(1, 1, 5, 100)
	m.wantDays(core.DaysFilter{KeyID: "key_1"}, core.Traffic{}, core.Traffic{Allowed: 5})
	use()
	m.update(func(tx core.Tx) error { return tx.DeleteUser(1) })
	for _, name := range m.names(t) {
		if strings.Contains(name, "/1}") && !strings.Contains(name, "}x") {
			t.Errorf("the user was deleted, %s is left", name)
		}
	}
}

// Past days expire some time after their retention, and never earlier, whatever the clock of the requests
// shows.
func TestPastDaysExpire(t *testing.T) {
	m := newMoveTest(t)
	key := m.s.o.usage(moveAccount, 1).pastDays("1")
	lives := func() {
		t.Helper()
		if ms, err := strconv.ParseInt(m.server.Do(t, "PTTL", key), 10, 64); err != nil || time.Duration(ms)*time.Millisecond < core.DaysKept*24*time.Hour {
			t.Errorf("days live for %d ms, %v; want %d days", ms, err, core.DaysKept)
		}
	}
	size := 0
	for i := range 3 * core.DaysKept {
		m.count(1, i, 1, math.MaxInt64>>10)
		if i > core.DaysKept {
			size = max(size, len(m.server.Do(t, "GET", key)))
		}
	}
	lives()
	if most := 5 * (core.DaysKept + 2); size > most {
		t.Errorf("days take %d bytes, want %d at most", size, most)
	}
	id := core.CounterID{Account: moveAccount, KeyID: "key_1"}
	days, err := m.s.CounterDays(t.Context(), id)
	hours := slices.IndexFunc(days, func(d core.CounterDay) bool { return d.Date.IsHour() })
	if err != nil || hours < core.DaysKept || hours > core.DaysKept+2 {
		t.Errorf("CounterDays: %d days, %v; want about %d", hours, err, core.DaysKept)
	}
	if n := len(days) - hours; n != core.HoursKept {
		t.Errorf("CounterDays: %d hours; want %d", n, core.HoursKept)
	}
	m.server.Do(t, "PERSIST", key)
	if err := m.s.SetDays(t.Context(), id, days); err != nil {
		t.Fatal(err)
	}
	lives()
	if encoding := m.server.Do(t, "OBJECT", "ENCODING", m.s.o.usage(moveAccount, 1).counters()); encoding != "listpack" && encoding != "ziplist" {
		t.Errorf("the hash of counters has the encoding %s, want a listpack", encoding)
	}
}

// The encoding of past days is reversible.
func TestPastDays(t *testing.T) {
	want := record.Days{}
	var b []byte
	for i, used := range []int64{1, 1<<8 - 1, 1 << 8, 1<<16 - 1, 1 << 16, maxUsed} {
		for number := range 4 {
			date := core.Date(20_000 + i)
			b = appendPast(b, number, core.WindowUsage{Start: date.Start().Unix(), Used: used})
			*want.Number(date, number) = used
		}
	}
	got := record.Days{}
	if err := addPast(got, nil, string(b)); err != nil {
		t.Fatal(err)
	}
	for date, d := range want {
		if got[date] == nil || got[date].Traffic != d.Traffic || got[date].Shared != d.Shared {
			t.Errorf("%v: got %+v, want %+v", date, got[date], d)
		}
	}
	if err := addPast(got, nil, string(b[:len(b)-1])); !errors.Is(err, record.ErrDamaged) {
		t.Errorf("truncated days: %v, want ErrDamaged", err)
	}
}
