package badgerstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
	"github.com/limitkeeper/limitkeeper/storage/record"
	"github.com/limitkeeper/limitkeeper/storage/storetest"
)

// makeKnown is a fast version of known for a million keys: it writes only the records that Consume reads.
func makeKnown(b *testing.B, s *Store, keys []string) {
	b.Helper()
	known(b, s)
	seq := int64(0)
	for some := range slices.Chunk(keys, maxWrites/2) {
		w := newWrites()
		for _, id := range some {
			seq++
			w.put(keyIDPath(acct, id), encodeNumber(seq))
			w.put(userPath(acct, seq), []byte("{}"))
		}
		w.put(lastPath(acct, kindKey), encodeNumber(seq))
		w.put(lastPath(acct, kindUser), encodeNumber(seq))
		if err := s.commit(w); err != nil {
			b.Fatalf("commit: %v", err)
		}
	}
}

// warm reads all counters into memory.
func warm(b *testing.B, s *Store, ids []string) {
	b.Helper()
	for i, id := range ids {
		c := core.Consumption{Account: acct, KeyID: id, KeySeq: int64(i + 1), UserID: int64(i + 1), Terms: core.Terms{Limit: 1}, Entry: core.Entry{At: noon}}
		if v, err := s.Consume(context.Background(), &c); err != nil || !v.Allowed {
			b.Fatalf("Consume: got %v, %v, want allowed", v.Allowed, err)
		}
	}
}

// BenchmarkUsers reads a page of 10 users and their total.
func BenchmarkUsers(b *testing.B) {
	for _, n := range []int{100, 100_000} {
		s := openIn(b, b.TempDir(), Options{})
		fill(b, s, n)
		for name, p := range map[string]core.Page{"first": {Number: 1, Size: 10}, "deepest": {Number: n / 10, Size: 10}} {
			b.Run(strconv.Itoa(n)+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					list, total, err := s.Users(context.Background(), "acct", core.UserFilter{}, p)
					if err != nil || total != n || len(list) != 10 {
						b.Fatalf("Users: got %d of %d, %v, want 10 of %d", len(list), total, err, n)
					}
				}
			})
		}
	}
}

// fill makes an account with n users, each with a key.
func fill(t testing.TB, s *Store, n int) {
	t.Helper()
	a := &core.Account{ID: "acct", Name: "acct", CreatedAt: time.Now()}
	k := &core.OwnerKey{ID: "okey", AccountID: "acct", Digest: secrets.DigestOf("acct")}
	if err := s.CreateAccount(t.Context(), a, k); err != nil {
		t.Fatalf("CreateAccount: %v", err)
	}
	storetest.Fill(t, s, "acct", n)
}

// BenchmarkCreateKey creates keys in an account that has many, each in a transaction of its own.
func BenchmarkCreateKey(b *testing.B) {
	for _, n := range []int{100, 1_000_000} {
		s := openIn(b, b.TempDir(), Options{Logger: quiet.Logger})
		fill(b, s, n)
		created := 0
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			b.ReportAllocs()
			before := s.events.Written()
			for b.Loop() {
				created++
				id := fmt.Sprint("another_", created)
				k := &core.Key{AccountID: acct, ID: id, UserID: 1 + int64(created%n), PlanID: "plan", Status: core.KeyActive, Digest: secrets.DigestOf(id), CreatedAt: noon}
				if err := s.Update(b.Context(), acct, func(tx core.Tx) error { return tx.PutKey(k) }); err != nil {
					b.Fatalf("Update: %v", err)
				}
			}
			b.ReportMetric(float64(s.events.Written()-before)/float64(b.N), "log-bytes/op")
		})
	}
}

// BenchmarkCheckpoint writes checkpoints with a changed counter for each key and user.
func BenchmarkCheckpoint(b *testing.B) {
	for _, keys := range []int{100_000, 1_000_000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			s, err := open(b.TempDir(), Options{CounterCache: 3 * keys})
			if err != nil {
				b.Fatalf("open: %v", err)
			}
			defer func() { _ = s.Close() }()
			ids := numbered("key_01234567890123", keys)
			makeKnown(b, s, ids)
			warm(b, s, ids)
			for b.Loop() {
				b.StopTimer()
				for i, id := range ids {
					c := core.Consumption{Account: acct, KeyID: id, KeySeq: int64(i + 1), UserID: int64(i + 1), Cost: 1,
						Terms: core.Terms{Limit: core.MaxLimit}, Entry: core.Entry{At: noon}}
					d := s.decide(&c, ref{c.KeySeq, 1, kindKey}, ref{c.UserID, 1, kindUser}, lookedUp{})
					if d.err != nil || d.absent {
						b.Fatalf("decide: got %+v", d)
					}
					_ = d.ticket.Wait()
				}
				b.StartTimer()
				if err := s.checkpoint(); err != nil {
					b.Fatalf("checkpoint: %v", err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(2*keys), "ns/counter")
		})
	}
}

// BenchmarkSnapshot makes snapshots of a store with a million keys, while 4 goroutines make requests. It logs the slowest
// requests: without other work, during checkpoints, during a scrub, and during snapshots, which begin with a checkpoint. It reports the
// live memory of an open snapshot, and the memory that making it allocates.
func BenchmarkSnapshot(b *testing.B) {
	const keys, callers = 1_000_000, 4
	s := openIn(b, b.TempDir(), Options{CounterCache: 3 * keys})
	ids := numbered("key_01234567890123", keys)
	makeKnown(b, s, ids)
	consumeNumber := func(i int) {
		c := core.Consumption{Account: acct, KeyID: ids[i], KeySeq: int64(i + 1), UserID: int64(i + 1), Cost: 1, Terms: core.Terms{Limit: core.MaxLimit},
			Retention: time.Hour, Entry: core.Entry{At: noon, KeyID: ids[i], Endpoint: "/"}}
		if _, err := s.Consume(context.Background(), &c); err != nil {
			b.Error(err)
		}
	}
	for i := range ids {
		consumeNumber(i)
	}
	if err := s.checkpoint(); err != nil {
		b.Fatal(err)
	}
	var mu sync.Mutex
	var latencies []time.Duration
	var stopped atomic.Bool
	var group sync.WaitGroup
	for range callers {
		group.Go(func() {
			for !stopped.Load() {
				began := time.Now()
				consumeNumber(rand.IntN(keys))
				mu.Lock()
				latencies = append(latencies, time.Since(began))
				mu.Unlock()
				time.Sleep(500 * time.Microsecond)
			}
		})
	}
	defer group.Wait()
	defer stopped.Store(true)
	report := func(when string) {
		mu.Lock()
		defer mu.Unlock()
		n := len(latencies)
		slices.Sort(latencies)
		b.Logf("%s: %d requests, p50 %v, p99 %v, p99.9 %v, max %v", when, n, latencies[n/2], latencies[n*99/100], latencies[n*999/1000], latencies[n-1])
		latencies = nil
	}
	memory := func() (m runtime.MemStats) {
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m
	}
	time.Sleep(5 * time.Second)
	report("without other work")
	for range 5 {
		if err := s.checkpoint(); err != nil {
			b.Fatal(err)
		}
	}
	report("during checkpoints")
	s.background.ctx = b.Context()
	if _, err := s.scrub(s.background.pace()); err != nil {
		b.Fatal(err)
	}
	report("during a scrub, which writes an image")
	var during []time.Duration
	for b.Loop() {
		b.StopTimer()
		before := memory()
		mu.Lock()
		latencies = nil
		mu.Unlock()
		b.StartTimer()
		c := mustSnapshot(b, s)
		b.StopTimer()
		mu.Lock()
		during = append(during, latencies...)
		mu.Unlock()
		after := memory()
		closeSnapshot(b, c)
		closed := memory()
		b.ReportMetric(float64(int64(after.HeapAlloc-closed.HeapAlloc))/(1<<20), "MiB-live")
		b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/(1<<20), "MiB-allocated")
		b.StartTimer()
	}
	mu.Lock()
	latencies = during
	mu.Unlock()
	report("during snapshots")
}

// BenchmarkDays sums the days of a plan with 10,000 keys, and of an account with 100,000 users. It measures a store with
// a warm cache, and a store that was just opened.
func BenchmarkDays(b *testing.B) {
	const keys, users = 10_000, 100_000
	outer, dir := b, b.TempDir()
	s := openAlone(outer, dir, Options{memtable: table.DefaultMemtable})
	fill(b, s, users)
	for some := range slices.Chunk(numbered("key_of_plan", keys), 1000) {
		update(b, s, func(tx core.Tx) (err error) {
			for _, id := range some {
				err = firstOf(err, tx.PutKey(&core.Key{AccountID: acct, ID: id, UserID: 1, PlanID: "large", Status: core.KeyActive, Digest: secrets.DigestOf(id)}))
			}
			return err
		})
	}
	wholePlan, wholeAccount := core.DaysFilter{Account: acct, PlanID: "large"}, core.DaysFilter{Account: acct}
	makeDays(b, s, wholePlan)
	makeDays(b, s, wholeAccount)
	for _, c := range []struct {
		name string
		of   core.DaysFilter
		want int64
		days core.Date
	}{{"plan/days=1", wholePlan, keys, 1}, {"plan/days=30", wholePlan, keys, 30}, {"plan/days=400", wholePlan, keys, core.DaysKept},
		{"account/days=1", wholeAccount, users, 1}, {"account/days=30", wholeAccount, users, 30}} {
		days := func() {
			list, err := s.Days(context.Background(), c.of, today-c.days+1, today)
			if err != nil || list[0].Traffic != (core.Traffic{Allowed: 1000 * c.want, Denied: c.want}) {
				b.Fatalf("Days: got %+v, %v, want 1000 and 1 for each of %d", list, err, c.want)
			}
		}
		b.Run(c.name+"/open", func(b *testing.B) {
			for b.Loop() {
				days()
			}
		})
		b.Run(c.name+"/opened", func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
				s = openAlone(outer, dir, Options{memtable: table.DefaultMemtable})
				b.StartTimer()
				days()
			}
		})
	}
}

// makeDays writes days to the archive as if all counters of a filter had been used on each of the last core.DaysKept
// days.
func makeDays(b *testing.B, s *Store, of core.DaysFilter) {
	b.Helper()
	var all []cells
	err := s.readEntered(func(r view) (err error) {
		all, err = s.cellsFor(r, of)
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	for _, p := range all {
		a := archiveUpdate{page: p.page}
		for cell := range byte(pageCells) {
			if p.mask&(1<<cell) == 0 {
				continue
			}
			for date := today - core.DaysKept + 1; date <= today; date++ {
				a.put = append(a.put, cellDay{cell, dayNumber{date, record.DayAllowed, 1000}}, cellDay{cell, dayNumber{date, record.DayDenied, 1}})
			}
		}
		for done := false; !done; {
			err := s.commitTxn(func(txn *badger.Txn) (err error) {
				_, done, err = a.write(txn)
				return err
			})
			if err != nil {
				b.Fatal(err)
			}
		}
	}
}
