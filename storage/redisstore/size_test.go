package redisstore_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
	"github.com/limitkeeper/limitkeeper/storage/storetest"
)

// Keys, counters, days, entries and request ids take at most 1.5 times the memory that docs/distributed.md
// states. The figures are logged.
func TestSize(t *testing.T) {
	const keys, entries, ids = 5000, 200, 20_000
	server := redistest.Start(t)
	s := open(t, redisstore.Options{Addresses: []string{server.Addr()}})
	defer s.Close()
	if err := s.CreateAccount(t.Context(), &core.Account{ID: "acct_0123456789abcdefghij", Name: "size", CreatedAt: time.Now()},
		&core.OwnerKey{ID: "okey_1", AccountID: "acct_0123456789abcdefghij", CreatedAt: time.Now()}); err != nil {
		t.Fatal(err)
	}
	size := memoryTest{t: t, server: server, last: usedMemory(t, server)}

	_, made := storetest.Fill(t, s, "acct_0123456789abcdefghij", keys)
	size.record("a user with a key", keys, 3500)
	count := func(n int, of []*core.Key, id string) {
		var wg sync.WaitGroup
		for w := range 64 {
			wg.Go(func() {
				for i := w; i < n*len(of); i += 64 {
					k := of[i%len(of)]
					c := counted(k, i)
					if id != "" {
						c.RequestID = fmt.Sprintf("%s-%020d", id, i)
					}
					if _, err := s.Consume(t.Context(), c); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	count(1, made, "")
	size.record("the first request: both counters, both histories", keys, 1200)
	var days []core.CounterDay
	for date := core.DateOf(time.Now()) - core.DaysKept; len(days) < core.DaysKept; date++ {
		days = append(days, core.CounterDay{Date: date, Traffic: core.Traffic{Allowed: 1000}})
	}
	set := func(days []core.CounterDay) {
		for _, k := range made[:1000] {
			for _, id := range []core.CounterID{{Account: k.AccountID, KeyID: k.ID}, {Account: k.AccountID, UserID: k.UserID}} {
				if err := s.SetDays(t.Context(), id, days); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	set(days)
	size.record("a day of a user and its key", 1000*core.DaysKept, 20)
	last := core.HourOf(time.Now())
	for hour := last - core.HoursKept + 1; hour <= last; hour++ {
		days = append(days, core.CounterDay{Date: hour, Meters: []core.MeterDay{{Meter: core.MeterRequests, MeterTraffic: core.MeterTraffic{Allowed: 40}}}})
	}
	set(days)
	size.record("an hour of a user and its key", 1000*core.HoursKept, 15)
	count(entries, made[:100], "")
	size.record("a request in both histories", 100*entries, 300)
	count(ids, made[:1], "0123456789abcdef")
	size.record("a request with an id of 37 characters, in histories that are full", ids, 300)
}

// counted returns a typical request of a customer.
func counted(k *core.Key, i int) *core.Consumption {
	return &core.Consumption{Account: k.AccountID, KeyID: k.ID, KeySeq: k.Seq, UserID: k.UserID, Cost: 1,
		Terms:     core.Terms{PlanID: k.PlanID, PlanName: "Starter", Period: core.Month, Limit: core.MaxLimit},
		Retention: 30 * 24 * time.Hour,
		Entry: core.Entry{At: time.Now().Truncate(time.Millisecond), KeyID: k.ID, UserID: k.UserID, Cost: 1, Method: "GET",
			Endpoint: "/v1/customers/" + strconv.Itoa(i), IP: "203.0.113.7"}}
}

// memoryTest measures the growth of a server's memory.
type memoryTest struct {
	t      *testing.T
	server *redistest.Server
	last   int64
}

// record logs the bytes for each of n items, and fails the test if they are more than most.
func (z *memoryTest) record(what string, n, most int64) {
	z.t.Helper()
	now := usedMemory(z.t, z.server)
	each := (now - z.last) / n
	z.last = now
	z.t.Logf("%s: %d bytes", what, each)
	if each > most {
		z.t.Errorf("%s: got %d bytes, want %d at most", what, each, most)
	}
}

func usedMemory(t *testing.T, server *redistest.Server) int64 {
	t.Helper()
	for line := range strings.Lines(server.Do(t, "INFO", "memory")) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "used_memory:"); ok {
			n, err := strconv.ParseInt(v, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("INFO memory has no used_memory")
	return 0
}
