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
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// noon is that of a day long ago: how long days are kept does not depend on the clock.
var noon = time.Date(2021, time.March, 12, 12, 0, 0, 0, time.UTC)

// spend asks a request with the key so many days after noon, which is denied when the limit
// is 0.
func (m *moving) spend(user int64, after int, cost, limit int64) {
	m.t.Helper()
	_, err := m.s.Consume(m.t.Context(), &core.Consumption{Account: movingAccount, KeyID: "key_1", KeySeq: 1, UserID: user, Shared: true, Cost: cost,
		Terms: core.Terms{Period: core.Year, Limit: limit}, Entry: core.Entry{At: noon.AddDate(0, 0, after), KeyID: "key_1", UserID: user, Cost: cost}})
	if err != nil {
		m.t.Fatalf("Consume: %v", err)
	}
}

// wantDays fails the test unless the key, or a user, was allowed and denied so much on the
// days from noon on.
func (m *moving) wantDays(of core.DaysFilter, want ...core.Traffic) {
	m.t.Helper()
	of.Account = movingAccount
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

// Days that are over go with a key, once, also when who moves it is slow and does it again
// after others have.
func TestDaysMove(t *testing.T) {
	m := newMoving(t)
	key := core.DaysFilter{KeyID: "key_1"}
	for i := range 3 {
		m.spend(1, i, int64(i+1), 100)
		m.spend(1, i, 10, 0)
	}
	first := chore{kind: moveKey, seq: 1, from: 1, to: 2, move: 1}
	left, err := m.s.leave(t.Context(), movingAccount, first)
	if err != nil {
		t.Fatal(err)
	}
	m.to(2)
	m.wantDays(key, core.Traffic{Allowed: 1, Denied: 10}, core.Traffic{Allowed: 2, Denied: 10}, core.Traffic{Allowed: 3, Denied: 10}, core.Traffic{})
	m.spend(2, 3, 4, 100)
	m.spend(2, 2, 20, 0)
	want := []core.Traffic{{Allowed: 1, Denied: 10}, {Allowed: 2, Denied: 10}, {Allowed: 3, Denied: 30}, {Allowed: 4}}
	for range 2 {
		m.wantDays(key, want...)
		if err := m.s.arrive(t.Context(), movingAccount, first, left); err != nil {
			t.Fatal(err)
		}
		m.wantDays(key, want...)
		if err := m.s.depart(t.Context(), movingAccount, first); err != nil {
			t.Fatal(err)
		}
	}
	m.wantDays(key, want...)
	m.wantDays(core.DaysFilter{UserID: 1}, core.Traffic{Allowed: 1, Denied: 10}, core.Traffic{Allowed: 2, Denied: 10}, core.Traffic{Allowed: 3, Denied: 10}, core.Traffic{})
	m.wantDays(core.DaysFilter{UserID: 2}, core.Traffic{}, core.Traffic{}, core.Traffic{Denied: 20}, core.Traffic{Allowed: 4})
	if names := m.names(t); slices.ContainsFunc(names, func(name string) bool { return strings.HasSuffix(name, "/1}t:1") }) {
		t.Errorf("the days are also where the key was: %q", names)
	}
}

// What is deleted takes its days along, and a key that is put again has none.
func TestDaysDeleted(t *testing.T) {
	m := newMoving(t)
	use := func() {
		for i := range 2 {
			m.spend(1, i, 1, 100)
			m.spend(1, i, 1, 0)
		}
	}
	use()
	m.update(func(tx core.Tx) error { return tx.DeleteKey("key_1") })
	counters := m.s.o.usage(movingAccount, 1).counters()
	if left := strings.Fields(m.server.Do(t, "HKEYS", counters)); !slices.Equal(slices.Sorted(slices.Values(left)), []string{"a", "d", "s", "u"}) {
		t.Errorf("fields that are left: %q, want those of the user", left)
	}
	m.update(func(tx core.Tx) error {
		return tx.PutKey(&core.Key{AccountID: movingAccount, ID: "key_1", Seq: 1, UserID: 1, Digest: core.DigestOf("1")})
	})
	m.wantDays(core.DaysFilter{KeyID: "key_1"}, core.Traffic{}, core.Traffic{})
	m.spend(1, 1, 5, 100)
	m.wantDays(core.DaysFilter{KeyID: "key_1"}, core.Traffic{}, core.Traffic{Allowed: 5})
	use()
	m.update(func(tx core.Tx) error { return tx.DeleteUser(1) })
	for _, name := range m.names(t) {
		if strings.Contains(name, "/1}") && !strings.Contains(name, "}x") {
			t.Errorf("the user was deleted, %s is left", name)
		}
	}
}

// Days that are over are forgotten some time after they need not be kept any more, and last
// as long as they must, whatever the clock of the requests says.
func TestDaysEnd(t *testing.T) {
	m := newMoving(t)
	key := m.s.o.usage(movingAccount, 1).tallies("1")
	lives := func() {
		t.Helper()
		if ms, err := strconv.ParseInt(m.server.Do(t, "PTTL", key), 10, 64); err != nil || time.Duration(ms)*time.Millisecond < core.DaysKept*24*time.Hour {
			t.Errorf("days live for %d ms, %v; want %d days", ms, err, core.DaysKept)
		}
	}
	size := 0
	for i := range 3 * core.DaysKept {
		m.spend(1, i, 1, math.MaxInt64>>10)
		if i > core.DaysKept {
			size = max(size, len(m.server.Do(t, "GET", key)))
		}
	}
	lives()
	if most := 5 * (core.DaysKept + 2); size > most {
		t.Errorf("days take %d bytes, want %d at most", size, most)
	}
	id := core.CounterID{Account: movingAccount, KeyID: "key_1"}
	days, err := m.s.CounterDays(t.Context(), id)
	if err != nil || len(days) < core.DaysKept || len(days) > core.DaysKept+2 {
		t.Errorf("CounterDays: %d days, %v; want about %d", len(days), err, core.DaysKept)
	}
	m.server.Do(t, "PERSIST", key)
	if err := m.s.SetDays(t.Context(), id, days); err != nil {
		t.Fatal(err)
	}
	lives()
	if encoding := m.server.Do(t, "OBJECT", "ENCODING", m.s.o.usage(movingAccount, 1).counters()); encoding != "listpack" && encoding != "ziplist" {
		t.Errorf("the counters are kept as %s, want them in one piece", encoding)
	}
}

// Numbers of days that are over come back as they went in.
func TestDaysOver(t *testing.T) {
	want := daily{}
	var b []byte
	for i, used := range []int64{1, 1<<8 - 1, 1 << 8, 1<<16 - 1, 1 << 16, maxUsed} {
		for number := range 4 {
			date := core.Date(20_000 + i)
			b = appendOver(b, number, core.WindowUsage{Start: date.Start().Unix(), Used: used})
			want.set(number, date, used)
		}
	}
	got := daily{}
	if err := got.addOver(string(b)); err != nil {
		t.Fatal(err)
	}
	for date, d := range want {
		if got[date] == nil || *got[date] != *d {
			t.Errorf("%v: got %+v, want %+v", date, got[date], d)
		}
	}
	if err := got.addOver(string(b[:len(b)-1])); !errors.Is(err, record.ErrDamaged) {
		t.Errorf("days that are cut off: %v, want ErrDamaged", err)
	}
}
