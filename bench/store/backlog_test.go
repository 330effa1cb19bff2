package store

import (
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
)

// backlog watches how much of the event log waits to be folded.
type backlog struct {
	stop   func()
	halves [2]int64 // the most that waited, in the first and the second half
}

// watch looks at the store until it is told to stop. Its halves are those of lasting.
func watch(stats func() badgerstore.Stats, lasting time.Duration) *backlog {
	b, done := new(backlog), make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		start, ticks := time.Now(), time.NewTicker(100*time.Millisecond)
		defer ticks.Stop()
		for {
			half := 0
			if time.Since(start) > lasting/2 {
				half = 1
			}
			b.halves[half] = max(b.halves[half], stats().UnfoldedBytes)
			select {
			case <-done:
				return
			case <-ticks.C:
			}
		}
	})
	b.stop = func() { close(done); group.Wait() }
	return b
}

// report reports the halves, in MiB, and how often the store was folded and someone had
// to wait for it, since before.
func (k *backlog) report(b *testing.B, before, after badgerstore.Stats) {
	b.ReportMetric(float64(k.halves[0])/(1<<20), "unfolded-first-MiB")
	b.ReportMetric(float64(k.halves[1])/(1<<20), "unfolded-second-MiB")
	b.ReportMetric(float64(after.Folds-before.Folds), "folds")
	b.ReportMetric(float64(after.Waits-before.Waits), "waits")
}
