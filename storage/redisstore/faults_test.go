package redisstore_test

import (
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// faulty returns options for tests with faults: a short timeout, and histories that keep every entry.
func faulty(addresses ...string) redisstore.Options {
	return redisstore.Options{Addresses: addresses, Timeout: 500 * time.Millisecond, History: 1_000_000}
}

// openFaulty opens a store and closes it at the end of the test.
func openFaulty(t testing.TB, o redisstore.Options) *redisstore.Store {
	t.Helper()
	s := open(t, o)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// While a server is stopped (SIGSTOP), calls fail as unavailable: the first after the timeout, the others
// at once. They work again when it continues. Every answered request is counted, none twice.
func TestPausedServer(t *testing.T) {
	t.Parallel()
	const asleep = 5 * time.Second
	server := redistest.Start(t)
	w := newWorld(t, openFaulty(t, faulty(server.Addr())), 2)
	l := w.startLoad(t, 8)
	l.awaitAllowed(t, time.Now())

	server.Pause()
	stopped := time.Now()
	time.Sleep(asleep)
	resumed := time.Now()
	server.Resume()
	back := l.awaitAllowed(t, resumed)
	time.Sleep(500 * time.Millisecond)
	calls := l.stop()

	if median, longest := latencies(calls); longest > 4*time.Second {
		t.Errorf("a call took %v (median %v), want less than 4s", longest, median)
	}
	fast := filterCalls(calls, failed, after(stopped.Add(time.Second)), before(resumed))
	if len(fast) == 0 {
		t.Error("no call failed while the server was stopped")
	}
	if wrong := filterCalls(calls, outcomeAllowed, after(stopped.Add(100*time.Millisecond)), before(resumed)); len(wrong) > 0 {
		t.Errorf("%d calls were allowed by a stopped server", len(wrong))
	}
	median, longest := latencies(fast)
	_, held := latencies(calls)
	t.Logf("paused for %v: longest call %v; after the first second %d calls failed in %v (median), %v (longest); allowed again after %v",
		asleep, held, len(fast), median, longest, back)
	w.checkBounds(t, calls)
	w.checkExact(t, calls)
}

// A killed server with an append-only file loses no answered request. After its restart the store works at
// once, and loads its scripts again.
func TestKilledServer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	w := newWorld(t, openFaulty(t, faulty(server.Addr())), 2)
	l := w.startLoad(t, 8)
	l.awaitAllowed(t, time.Now())
	for range 3 {
		time.Sleep(300 * time.Millisecond)
		server.Kill()
		time.Sleep(300 * time.Millisecond)
		server.Restart()
		t.Logf("allowed again %v after the restart", l.awaitAllowed(t, time.Now()))
	}
	calls := l.stop()
	w.checkBounds(t, calls)
	w.checkExact(t, calls)
}

// SCRIPT FLUSH at any moment fails no request.
func TestFlushedScripts(t *testing.T) {
	server := redistest.Start(t)
	o := faulty(server.Addr())
	o.Timeout = 0 // that of open: no call may time out
	w := newWorld(t, openFaulty(t, o), 2)
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

// Cut connections leave some requests without answer, and none counted wrongly.
func TestCutConnections(t *testing.T) {
	server := redistest.Start(t)
	w := newWorld(t, openFaulty(t, faulty(server.Addr())), 2)
	l := w.startLoad(t, 8)
	for range 20 {
		cut := time.Now()
		server.CutConnections()
		l.awaitAllowed(t, cut)
	}
	calls := l.stop()
	if len(filterCalls(calls, failed)) == 0 {
		t.Error("no call failed")
	}
	w.checkBounds(t, calls)
	w.checkExact(t, calls)
}
