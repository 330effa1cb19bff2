package redisstore_test

import (
	"sync/atomic"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
	"github.com/limitkeeper/limitkeeper/storage/storetest"
)

// BenchmarkConsume counts requests of 64 callers with a thousand keys, and says what
// processor time the server takes for each. bench/run redis measures it beside others.
func BenchmarkConsume(b *testing.B) {
	server := redistest.Start(b)
	s := open(b, redisstore.Options{Addresses: []string{server.Addr()}})
	defer s.Close()
	if err := s.CreateAccount(b.Context(), &core.Account{ID: "acct_bench", Name: "bench"},
		&core.OwnerKey{ID: "okey_1", AccountID: "acct_bench"}); err != nil {
		b.Fatal(err)
	}
	_, keys := storetest.Fill(b, s, "acct_bench", 1000)
	for i, k := range keys {
		if _, err := s.Consume(b.Context(), counted(k, i)); err != nil {
			b.Fatal(err)
		}
	}
	var next atomic.Int64
	b.SetParallelism(32)
	b.ReportAllocs()
	before := server.CPU()
	b.ResetTimer()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			i := int(next.Add(1))
			if _, err := s.Consume(b.Context(), counted(keys[i%len(keys)], i)); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64((server.CPU()-before).Microseconds())/float64(b.N), "server-µs/op")
}
