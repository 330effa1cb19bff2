package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// BenchmarkThresholds reads the first 10 and the first 100 counters over 80 per cent of a limit, among a million keys that have used up to 90 per cent of
// 1,000 requests a month, while 64 callers make requests for the duration of -sustained. rank-s is the time in which all counters are ranked after a start. Run it with
// -benchtime 1x.
func BenchmarkThresholds(b *testing.B) {
	s := open(b, filled(b, million), million, largeCache)
	_, err := s.service.UpdatePlan(b.Context(), account, largePlan(time.Now()).ID, core.PlanPatch{Limit: core.Some(int64(1000))})
	if err != nil {
		b.Fatal(err)
	}
	s.spend(b, 900)
	start := time.Now()
	if err := errors.Join(s.service.KeepRankings(b.Context()), s.service.RankAccounts(b.Context())); err != nil {
		b.Fatal(err)
	}
	ranked := time.Since(start)
	page := func(size int) time.Duration {
		start := time.Now()
		t, err := s.service.Thresholds(context.Background(), account, 80, "", core.Page{Number: 1, Size: size})
		if err != nil || !t.Complete || len(t.Counters) != size || t.Total < million/20 {
			b.Errorf("Thresholds: got %d of %d, complete %v, %v", len(t.Counters), t.Total, t.Complete, err)
		}
		return time.Since(start)
	}
	sizes := []int{service.DefaultPageSize, service.MaxPageSize}
	pages := map[int][]time.Duration{}
	var f figures
	var load sync.WaitGroup
	load.Go(func() { f = s.must(b, loadFor(*sustained)) })
	for end := time.Now().Add(*sustained); time.Now().Before(end) && !b.Failed(); time.Sleep(10 * time.Millisecond) {
		for _, size := range sizes {
			pages[size] = append(pages[size], page(size))
		}
	}
	load.Wait()
	f.report(b)
	b.ReportMetric(ranked.Seconds(), "rank-s")
	for _, size := range sizes {
		slices.Sort(pages[size])
		b.ReportMetric(float64(pages[size][len(pages[size])/2].Microseconds())/1000, fmt.Sprintf("page%d-p50-ms", size))
		b.ReportMetric(float64(pages[size][len(pages[size])*99/100].Microseconds())/1000, fmt.Sprintf("page%d-p99-ms", size))
	}
}

func loadFor(d time.Duration) load {
	return load{callers: 64, pick: uniform(million), want: service.Allowed, lasting: d}
}

// spend makes one request with each key, of a cost up to most.
func (s *bench) spend(b *testing.B, most int) {
	b.Helper()
	var callers sync.WaitGroup
	for caller := range 64 {
		callers.Go(func() {
			for i := caller; i < s.keys && !b.Failed(); i += 64 {
				r := request(secret(i))
				r.Cost = int64(i * 7919 % most)
				if d, err := s.service.Validate(context.Background(), account, r); err != nil || !d.Allowed() {
					b.Errorf("key %d: got %v, %v, want allowed", i, d.Outcome, err)
				}
			}
		})
	}
	callers.Wait()
}
