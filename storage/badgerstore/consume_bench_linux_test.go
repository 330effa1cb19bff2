package badgerstore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
)

// BenchmarkConsume counts requests of 1,000 keys from concurrent callers. It reports the processor time of a request.
func BenchmarkConsume(b *testing.B) {
	for _, run := range []struct {
		d       Durability
		callers int
	}{{Process, 1}, {Process, 64}, {Power, 64}} {
		b.Run(fmt.Sprintf("%v/callers=%d", run.d, run.callers), func(b *testing.B) {
			s := openIn(b, b.TempDir(), Options{Durability: run.d})
			ids := numbered("key_01234567890123", 1000)
			makeKnown(b, s, ids)
			warm(b, s, ids)
			var next atomic.Int64
			var group sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			before := processorTime(b)
			for range run.callers {
				group.Go(func() {
					for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
						i := n * 67 % int64(len(ids)) // consecutive requests use different pages
						c := core.Consumption{Account: acct, KeyID: ids[i], KeySeq: i + 1, UserID: i + 1, Cost: 1, Terms: core.Terms{Limit: core.MaxLimit},
							Entry: core.Entry{At: noon, Endpoint: "/v1/items", Method: "GET", IP: "203.0.113.7"}}
						if v, err := s.Consume(context.Background(), &c); err != nil || !v.Allowed {
							b.Errorf("Consume: got %+v, %v, want allowed", v, err)
							return
						}
					}
				})
			}
			group.Wait()
			b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

// processorTime returns the processor time of the process in nanoseconds.
func processorTime(b *testing.B) int64 {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return r.Utime.Nano() + r.Stime.Nano()
}
