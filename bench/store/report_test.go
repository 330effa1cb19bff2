package store

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/limitkeeper/limitkeeper/adminapi"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
)

// reportMonth is the month of BenchmarkReport: the days before the present month.
func reportMonth() (first, last core.Date) {
	now := time.Now().UTC()
	last = core.DateOf(time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)) - 1
	y, m, _ := last.Start().Date()
	return core.DateOf(time.Date(y, m, 1, 0, 0, 0, 0, time.UTC)), last
}

// BenchmarkReport streams the report of a month as CSV. A million keys of 100,000 users were used on each day. heap-MiB is the highest heap during the report, with
// garbage. The reports under load run one after the other while 64 callers make requests with 100,000 of the keys for the duration of -sustained; their heap-MiB is
// the highest heap minus that of the same load before. Run it with -benchtime 1x.
func BenchmarkReport(b *testing.B) {
	first, last := reportMonth()
	dir := fixture(b, "month-"+first.String(), func(dir string) error {
		return errors.Join(copyDir(dir, filled(b, million)), useEachDay(dir, first, last))
	})
	s := open(b, dir, million, service.DefaultKeyCache)
	runtime.GC()
	for name, q := range map[string]service.ReportQuery{
		"user,meter": {User: true, Meter: true}, "key,meter": {Key: true, Meter: true}, "plan,day": {Plan: true, Day: true},
	} {
		q.First, q.Last = first, last
		b.Run(name, func(b *testing.B) {
			for range b.N {
				var out countingWriter
				peak := watchHeap()
				w := bufio.NewWriterSize(&out, 64<<10)
				if err := errors.Join(adminapi.WriteReport(b.Context(), s.service, account, q, true, w), w.Flush()); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(peak())/(1<<20), "heap-MiB")
				b.ReportMetric(float64(out.lines), "rows")
			}
			status, err := os.ReadFile("/proc/self/status")
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(numberAfter(string(status), "RssAnon:"))/1024, "anonymous-MiB")
		})
	}
	b.Run("user,meter/under load", func(b *testing.B) {
		q := service.ReportQuery{First: first, Last: last, User: true, Meter: true}
		var f figures
		var load sync.WaitGroup
		load.Go(func() {
			l := loadFor(*sustained)
			l.pick = uniform(100_000)
			f = s.must(b, l)
		})
		time.Sleep(*sustained / 4) // the caches are full
		before := watchHeap()
		time.Sleep(*sustained / 4)
		without, peak := before(), watchHeap()
		var slowest time.Duration
		for end := time.Now().Add(*sustained / 4); time.Now().Before(end) && !b.Failed(); {
			start := time.Now()
			if err := adminapi.WriteReport(b.Context(), s.service, account, q, true, io.Discard); err != nil {
				b.Error(err)
			}
			slowest = max(slowest, time.Since(start))
		}
		b.ReportMetric((float64(peak())-float64(without))/(1<<20), "heap-MiB")
		load.Wait()
		f.report(b)
		b.ReportMetric(slowest.Seconds(), "slowest-s")
	})
}

// watchHeap starts to watch the size of the heap, and returns a function that ends the watch and returns the highest size.
func watchHeap() func() uint64 {
	var peak atomic.Uint64
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for m := (runtime.MemStats{}); ; {
			runtime.ReadMemStats(&m)
			peak.Store(max(peak.Load(), m.HeapAlloc))
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	return func() uint64 { close(stop); <-done; return peak.Load() }
}

// countingWriter counts lines.
type countingWriter struct{ lines int }

func (w *countingWriter) Write(b []byte) (int, error) {
	for _, c := range b {
		if c == '\n' {
			w.lines++
		}
	}
	return len(b), nil
}

var _ io.Writer = (*countingWriter)(nil)

// useEachDay gives each key and each user traffic on each day. It closes the store after every 100,000 keys: a close writes their days to the database, in bounded time.
func useEachDay(dir string, first, last core.Date) error {
	days := func(times int64) (list []core.CounterDay) {
		for d := first; d <= last; d++ {
			list = append(list, core.CounterDay{Date: d, Traffic: core.Traffic{Allowed: times * (40 + int64(d)%7), Denied: times}})
		}
		return list
	}
	ofKey, ofUser := days(1), days(keysPerUser)
	for from := 0; from < million; from += million / 10 {
		s, err := badgerstore.Open(dir, quiet)
		if err != nil {
			return err
		}
		err = atOnce(64, from, from+million/10, func(i int) error {
			err := s.SetDays(context.Background(), core.CounterID{Account: account, KeyID: keyID(i)}, ofKey)
			if err == nil && i%keysPerUser == 0 {
				err = s.SetDays(context.Background(), core.CounterID{Account: account, UserID: int64(i/keysPerUser + 2)}, ofUser)
			}
			return err
		})
		if err := errors.Join(err, s.Close()); err != nil {
			return err
		}
	}
	return nil
}

// atOnce calls fn with each number from first to before end, in so many goroutines, until an error.
func atOnce(goroutines, first, end int, fn func(int) error) error {
	var next atomic.Int64
	next.Store(int64(first))
	var group errgroup.Group
	for range goroutines {
		group.Go(func() error {
			for i := int(next.Add(1)) - 1; i < end; i = int(next.Add(1)) - 1 {
				if err := fn(i); err != nil {
					next.Store(int64(end))
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}
