package eventlog

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkAppend appends records of 130 bytes and waits for each, with 1 and 64 callers.
func BenchmarkAppend(b *testing.B) {
	payload := bytes.Repeat([]byte("e"), 130)
	for _, power := range []bool{false, true} {
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprintf("power=%v/callers=%d", power, callers), func(b *testing.B) {
				var blocks atomic.Int64
				l := mustOpen(b, Options{Dir: b.TempDir(), Power: power, OnWrite: func(int, time.Duration) { blocks.Add(1) }})
				defer func() { _ = l.Close() }()
				b.ReportAllocs()
				b.ResetTimer()
				var group sync.WaitGroup
				for c := range callers {
					group.Go(func() {
						for i := c; i < b.N; i += callers {
							_, ticket, err := l.AppendAwaited(func(b []byte, _ int64) []byte { return append(b, payload...) }, Keep{})
							if err == nil {
								err = ticket.Wait()
							}
							if err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				group.Wait()
				b.ReportMetric(float64(b.N)/float64(blocks.Load()), "records/block")
			})
		}
	}
}

// BenchmarkRead reads records of 130 bytes at random positions of a log of 13 MB. BenchmarkReplay
// replays that log.
func BenchmarkRead(b *testing.B) {
	l, positions := filled(b)
	buf := make([]byte, 0, probe)
	for i := 0; b.Loop(); i++ {
		if _, err := l.Read(positions[i*7919%len(positions)], buf); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReplay(b *testing.B) {
	l, positions := filled(b)
	b.SetBytes(l.Written())
	for b.Loop() {
		n := 0
		if err := l.Replay(1, func(int64, []byte) error { n++; return nil }); err != nil || n != len(positions) {
			b.Fatal(n, err)
		}
	}
}

func filled(b *testing.B) (l *Log, positions []int64) {
	l = mustOpen(b, Options{Dir: b.TempDir()})
	b.Cleanup(l.Abandon)
	payload := bytes.Repeat([]byte("e"), 130)
	for i := range 100_000 {
		position, err := l.Append(func(b []byte, _ int64) []byte { return append(b, payload...) }, Keep{})
		if i%10 == 9 && err == nil {
			err = l.Flush()
		}
		if err != nil {
			b.Fatal(err)
		}
		positions = append(positions, position)
	}
	return l, positions
}
