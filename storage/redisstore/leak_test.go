package redisstore_test

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// heap returns the bytes of live memory.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// goroutines returns the stacks of goroutines that work for a store.
func goroutines() []string {
	buf := make([]byte, 16<<20)
	var ours []string
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(stack, "redisstore.") && !strings.Contains(stack, "testing.tRunner") || strings.Contains(stack, "rueidis.") {
			ours = append(ours, stack)
		}
	}
	return ours
}

// Close leaves no goroutine behind, after any fault of the servers. A failed Open leaves none, either.
// Close does not wait for servers that do not answer.
func TestCloseLeavesNothing(t *testing.T) {
	cluster, server, sentinel := redistest.StartCluster(t), redistest.Start(t, "--requirepass", "secret"), redistest.StartSentinel(t)
	behind := faulty(sentinel.Addrs()...)
	behind.Sentinel = sentinel.Name()
	alone := faulty(server.Addr())
	alone.Password = "secret"
	wait := faulty(cluster.Addrs()...)
	wait.Wait = redisstore.Wait{Replicas: 1, Timeout: time.Second}
	for _, c := range []struct {
		name   string
		o      redisstore.Options
		faults func()
	}{
		{"cluster", wait, func() {}},
		{"sentinel", behind, func() {}},
		{"cut", alone, func() { server.CutConnections() }},
		{"paused", alone, server.Pause},
	} {
		t.Run(c.name, func(t *testing.T) {
			untilGone(t) // of earlier tests, and of the questions to the servers
			s := open(t, c.o)
			s.Watch(&watcher{})
			w := newWorld(t, s, 4)
			l := w.startLoad(t, 8)
			time.Sleep(200 * time.Millisecond)
			c.faults()
			time.Sleep(200 * time.Millisecond)
			closing := time.Now()
			if err := s.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			if took := time.Since(closing); took > 5*time.Second {
				t.Errorf("Close took %v", took)
			}
			l.stop()
			untilGone(t)
		})
	}
	server.Resume()
	for range 5 {
		if _, err := redisstore.Open(t.Context(), redisstore.Options{Addresses: []string{server.Addr()}, Password: "wrong"}); err == nil {
			t.Fatal("Open with a wrong password: no error")
		}
		if _, err := redisstore.Open(t.Context(), redisstore.Options{Addresses: []string{deadAddress(t)}}); err == nil {
			t.Fatal("Open without listener: no error")
		}
	}
	untilGone(t)
}

// untilGone waits until no goroutine works for a store. The client closes connections to former Cluster
// nodes after 5 seconds.
func untilGone(t testing.TB) {
	t.Helper()
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		left := goroutines()
		if len(left) == 0 {
			return
		}
		if time.Since(begun) > time.Minute {
			t.Fatalf("%d goroutines are left, one of them:\n%s", len(left), left[0])
		}
	}
}
