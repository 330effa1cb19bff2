package badgerstore

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/storetest"
)

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
				b.StartTimer()
				if err := s.fold(); err != nil {
					b.Fatalf("fold: %v", err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(2*keys), "ns/counter")
		})
	}
}
