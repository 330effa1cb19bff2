package redisstore_test

import (
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// faulty returns options for a server with which something happens: calls are not waited
// for long, and histories keep all that a test asks.
func faulty(addresses ...string) redisstore.Options {
	return redisstore.Options{Addresses: addresses, Timeout: 500 * time.Millisecond, History: 1_000_000}
}

// opened opens a store that is closed at the end of the test.
func openFaulty(t testing.TB, o redisstore.Options) *redisstore.Store {
	t.Helper()
	s := open(t, o)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// A server that stands still holds nobody up: calls fail as unavailable, soon at once, and
// work again when it goes on. What was answered is counted, and nothing is counted twice.
func TestPausedServer(t *testing.T) {
	t.Parallel()
	const asleep = 5 * time.Second
	server := redistest.Start(t)
	w := newWorld(t, openFaulty(t, faulty(server.Addr())), 2)
	l := w.startLoad(t, 8)
	l.awaitAllowed(t, time.Now(), 10*time.Second)

	server.Pause()
	stopped := time.Now()
	time.Sleep(asleep)
	resumed := time.Now()
	server.Resume()
	back := l.awaitAllowed(t, resumed, 5*time.Second)
	time.Sleep(500 * time.Millisecond)
	calls := l.stop()

	if median, longest := latencies(calls); longest > 4*time.Second {
		t.Errorf("a call took %v (median %v), want less than 4s", longest, median)
	}
	fast := filterCalls(calls, failed, after(stopped.Add(time.Second)), before(resumed))
	if len(fast) == 0 {
		t.Error("no call failed while the server stood still")
	}
	if wrong := filterCalls(calls, outcomeAllowed, after(stopped.Add(100*time.Millisecond)), before(resumed)); len(wrong) > 0 {
		t.Errorf("%d calls were allowed by a server that stood still", len(wrong))
	}
	median, longest := latencies(fast)
	_, held := latencies(calls)
	t.Logf("paused for %v: longest call %v; after the first second %d calls failed in %v (median), %v (longest); allowed again after %v",
		asleep, held, len(fast), median, longest, back)
	w.checkBounds(t, calls)
	w.checkExact(t, calls)
}

// A server that was killed and keeps an append-only file has forgotten nothing that was
// answered, and works again at once when it is back. Its scripts are gone, and nobody
// notices.
func TestKilledServer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	w := newWorld(t, openFaulty(t, faulty(server.Addr())), 2)
	l := w.startLoad(t, 8)
	l.awaitAllowed(t, time.Now(), 10*time.Second)
	for range 3 {
		time.Sleep(300 * time.Millisecond)
		server.Kill()
		time.Sleep(300 * time.Millisecond)
		server.Restart()
		t.Logf("allowed again %v after the restart", l.awaitAllowed(t, time.Now(), 5*time.Second))
	}
	calls := l.stop()
	w.checkBounds(t, calls)
	w.checkExact(t, calls)
}

// Scripts that are flushed again and again are no fault to anyone.
func TestFlushedScripts(t *testing.T) {
	server := redistest.Start(t)
	w := newWorld(t, openFaulty(t, faulty(server.Addr())), 2)
	l := w.startLoad(t, 8)
	for range 100 {
		server.Do(t, "SCRIPT", "FLUSH")
		time.Sleep(10 * time.Millisecond)
	}
	calls := l.stop()
	if wrong := filterCalls(calls, failed); len(wrong) > 0 {
		t.Errorf("%d of %d calls failed: %v", len(wrong), len(calls), wrong[0].err)
	}
	w.checkExact(t, calls)
}

// Connections that are cut again and again leave some requests unanswered, and none
// counted wrong.
func TestCutConnections(t *testing.T) {
	server := redistest.Start(t)
	w := newWorld(t, openFaulty(t, faulty(server.Addr())), 2)
	l := w.startLoad(t, 8)
	for range 20 {
		cut := time.Now()
		server.CutConnections()
		l.awaitAllowed(t, cut, 5*time.Second)
	}
	calls := l.stop()
	if len(filterCalls(calls, failed)) == 0 {
		t.Error("no call failed")
	}
	w.checkBounds(t, calls)
	w.checkExact(t, calls)
}
