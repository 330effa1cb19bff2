package store

import (
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
)

// backlog is the peak size of the event log ahead of the checkpoint.
type backlog struct {
	stop   func()
	halves [2]int64 // peak bytes in the first and the second half of a load
}

// watch samples the store every 100 ms until stop. lasting is the duration of the load.
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
			b.halves[half] = max(b.halves[half], stats().PendingBytes)
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

// report reports the peaks in MiB, the checkpoints, and the requests that waited for one.
func (k *backlog) report(b *testing.B, before, after badgerstore.Stats) {
	b.ReportMetric(float64(k.halves[0])/(1<<20), "backlog-first-MiB")
	b.ReportMetric(float64(k.halves[1])/(1<<20), "backlog-second-MiB")
	b.ReportMetric(float64(after.Checkpoints-before.Checkpoints), "checkpoints")
	b.ReportMetric(float64(after.Waits-before.Waits), "waits")
}
