package badgerstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/storetest"
)

// BenchmarkConsume counts requests of keys that are drawn uniformly. Every key has a
// user of its own.
func BenchmarkConsume(b *testing.B) {
	for _, keys := range []int{10_000, 1_000_000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			s := openIn(b, b.TempDir(), Options{CounterCache: 3 * keys})
			ids := numbered("key_01234567890123", keys)
			makeKnown(b, s, ids)
			warm(b, s, ids)
			for _, d := range []Durability{Process, Power} {
				s.SetDurability(d)
				for _, callers := range []int{1, 64} {
					b.Run(fmt.Sprintf("%v/callers=%d", d, callers), func(b *testing.B) {
						benchmarkConsume(b, s, callers, ids)
					})
				}
			}
		})
	}
}

// makeKnown does what known does for so many keys that it would take minutes: it writes
// only what Consume asks for.
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
		if err := s.store(w); err != nil {
			b.Fatalf("store: %v", err)
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

func benchmarkConsume(b *testing.B, s *Store, callers int, ids []string) {
	var left atomic.Int64
	left.Store(int64(b.N))
	b.ReportAllocs()
	b.ResetTimer()
	before, blocks := cpuTime(), s.ledger.blocks.Load()
	var group sync.WaitGroup
	for range callers {
		group.Go(func() {
			c := core.Consumption{Account: acct, Terms: core.Terms{Period: core.Month, Limit: core.MaxLimit}, Cost: 1,
				Retention: core.DefaultRetention,
				Entry:     core.Entry{Endpoint: "/v1/things/17", Method: "GET", IP: "192.0.2.17", Cost: 1}}
			for left.Add(-1) >= 0 {
				i := rand.IntN(len(ids))
				c.KeyID, c.KeySeq, c.UserID = ids[i], int64(i+1), int64(i+1)
				c.Entry.KeyID, c.Entry.UserID, c.Entry.At = c.KeyID, c.UserID, time.Now()
				if v, err := s.Consume(context.Background(), &c); err != nil || !v.Allowed {
					b.Errorf("Consume: got %v, %v, want allowed", v.Allowed, err)
					return
				}
			}
		})
	}
	group.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
	b.ReportMetric(float64(b.N)/float64(s.ledger.blocks.Load()-blocks), "decisions/block")
	b.ReportMetric(float64((cpuTime()-before).Nanoseconds())/1000/float64(b.N), "cpu-µs/op")
}

// cpuTime returns the processor time that the process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkDenied decides requests of one key whose quota is used up.
func BenchmarkDenied(b *testing.B) {
	s := openIn(b, b.TempDir(), Options{})
	known(b, s, "key")
	c := core.Consumption{Account: acct, KeyID: "key", KeySeq: 1, UserID: 1, Cost: 1, Entry: core.Entry{At: time.Now(), KeyID: "key", UserID: 1}}
	b.ReportAllocs()
	for b.Loop() {
		if v, err := s.Consume(context.Background(), &c); err != nil || v.Allowed {
			b.Fatalf("Consume: got %v, %v, want denied", v.Allowed, err)
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
	k := &core.OwnerKey{ID: "okey", AccountID: "acct", Digest: core.DigestOf("acct")}
	if err := s.CreateAccount(t.Context(), a, k); err != nil {
		t.Fatalf("CreateAccount: %v", err)
	}
	storetest.Fill(t, s, "acct", n)
}

// BenchmarkFold folds the counters of so many keys and users, of which each has a
// request.
func BenchmarkFold(b *testing.B) {
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
					if d.role == leadNow {
						_ = s.ledger.await(d.block, d.role)
					}
				}
				before := cpuTime()
				b.StartTimer()
				if err := s.fold(); err != nil {
					b.Fatalf("fold: %v", err)
				}
				b.ReportMetric(float64((cpuTime()-before).Nanoseconds())/1000/float64(2*keys), "cpu-µs/counter")
			}
		})
	}
}
