package store

import (
	"runtime"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// BenchmarkUsageFeed writes the events of an hour in which 100,000 of a million keys were used, each once, until all are written and delivered. write-s is the time of all
// calls of WriteUsage, slowest-s that of one call, and heap-MiB the growth of the heap, with garbage. Run it with -benchtime 1x.
func BenchmarkUsageFeed(b *testing.B) {
	s := open(b, filled(b, million), million, service.DefaultKeyCache)
	ctx := b.Context()
	w, err := s.service.CreateWebhook(ctx, account, core.WebhookPatch{URL: new("https://example.com/"), Events: core.Some([]string{core.EventUsage})})
	if err != nil {
		b.Fatal(err)
	}
	used := *s
	used.keys = million / 10
	used.spend(b, 2)
	later := service.New(s.store, service.Config{Clock: func() time.Time { return time.Now().Add(2 * time.Hour) }})
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	peak := watchHeap()
	var sum, slowest time.Duration
	events := 0
	for more := true; more; {
		start := time.Now()
		if more, err = later.WriteUsage(ctx, account); err != nil {
			b.Fatal(err)
		}
		took := time.Since(start)
		sum, slowest = sum+took, max(slowest, took)
		_, pending, err := later.PendingEvents(ctx, account, w.ID, 0, 0)
		if err != nil {
			b.Fatal(err)
		}
		events += pending
		if _, err := later.DropExcess(ctx, account, 0); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(events), "events")
	b.ReportMetric(sum.Seconds(), "write-s")
	b.ReportMetric(slowest.Seconds(), "slowest-s")
	b.ReportMetric(float64(peak()-before.HeapAlloc)/(1<<20), "heap-MiB")
}
