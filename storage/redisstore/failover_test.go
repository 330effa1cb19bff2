package redisstore_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// failovers returns how often each test kills a master: REDISSTORE_FAILOVERS, by default 1. The figures in
// docs/distributed.md are measured with 5.
func failovers(t testing.TB) int {
	s := os.Getenv("REDISSTORE_FAILOVERS")
	if s == "" {
		return 1
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("REDISSTORE_FAILOVERS is %q, want a number from 1", s)
	}
	return n
}

// slotOf returns the Cluster slot of a user.
func (w *world) slotOf(t testing.TB, server *redistest.Server, user int64) int {
	t.Helper()
	slot, err := strconv.Atoi(server.Do(t, "CLUSTER", "KEYSLOT", fmt.Sprintf("{%s/%d}", w.account, user)))
	if err != nil {
		t.Fatal(err)
	}
	return slot
}

// useAllKeys sends a request with each key, so that all counters exist.
func (l *load) useAllKeys(t testing.TB) {
	t.Helper()
	for i := range l.w.keys {
		l.send(t, call{key: i})
	}
}

// outageTimes describes what callers notice of a failover.
type outageTimes struct {
	takeover, untilAllowed  time.Duration // until the replica took over; until a request to its slots was allowed
	failed, failedElsewhere int           // failed requests: to its slots, to others
	allowedElsewhere        int           // allowed requests to other slots
}

// String formats the times for the test log.
func (o outageTimes) String() string {
	return fmt.Sprintf("a replica took over after %v, slots were away for %v: %d of their requests failed; of other slots %d were allowed meanwhile, %d failed",
		o.takeover.Round(time.Millisecond), o.untilAllowed.Round(time.Millisecond), o.failed, o.allowedElsewhere, o.failedElsewhere)
}

// failOver kills the master of the first key under load. It waits until the replica has taken over and
// requests are allowed, then restarts the killed server.
func (l *load) failOver(t testing.TB, c *redistest.Cluster) (o outageTimes) {
	t.Helper()
	slot := l.w.slotOf(t, c.Nodes()[1], l.w.keys[0].UserID)
	master := c.MasterOf(slot)
	there := map[int]bool{}
	for i := range l.w.keys {
		there[i] = c.MasterOf(l.w.slotOf(t, c.Nodes()[1], l.w.keys[i].UserID)) == master
	}
	affected := func(c call) bool { return there[c.key] }
	others := func(c call) bool { return !there[c.key] }

	master.Kill()
	killed := time.Now()
	c.AwaitFailover(t, slot, master)
	o.takeover = time.Since(killed)
	if l.waits { // until then, the new master has no replica
		master.Restart()
	}
	o.untilAllowed = l.await(t, killed, outcomeAllowed, affected)
	back := killed.Add(o.untilAllowed)
	time.Sleep(2 * time.Second) // to catch late failures
	calls := filterCalls(l.callsSoFar(), after(killed))
	o.failed, o.failedElsewhere = len(filterCalls(calls, failed, affected)), len(filterCalls(calls, failed, others))
	o.allowedElsewhere = len(filterCalls(calls, outcomeAllowed, others, before(back)))
	if o.allowedElsewhere == 0 || o.failedElsewhere > o.allowedElsewhere/10 {
		t.Errorf("%d requests to other slots were allowed while one master was away, %d failed", o.allowedElsewhere, o.failedElsewhere)
	}
	if late := filterCalls(calls, failed, after(back.Add(5*time.Second))); len(late) > 0 {
		t.Errorf("%d requests failed 5 seconds after the replica has taken over: %v", len(late), late[0].err)
	}
	if !l.waits {
		master.Restart()
	}
	c.Await(t)
	return o
}

// partialCoverage lets a Cluster serve the remaining slots while a master is down. By default it serves
// none.
var partialCoverage = []string{"--cluster-require-full-coverage", "no"}

// clusterLoad opens a store on a Cluster and starts a load on all masters.
func clusterLoad(t testing.TB, c *redistest.Cluster, wait redisstore.Wait) *load {
	t.Helper()
	o := faulty(c.Addrs()...)
	o.Wait = wait
	w := newWorld(t, openFaulty(t, o), 9)
	l := w.startLoad(t, 8)
	l.waits = wait.Replicas > 0
	l.useAllKeys(t)
	return l
}

// When a Cluster master dies, its slots fail until its replica takes over. Other slots go on. No request
// counts twice. Requests answered just before may be lost; the test logs how many.
func TestClusterFailover(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, partialCoverage...)
	l := clusterLoad(t, c, redisstore.Wait{})
	for range failovers(t) {
		t.Log(l.failOver(t, c))
	}
	calls := l.stop()
	l.w.checkNoMore(t, calls)
	answered, lost := 0, 0
	for i, n := range countCalls(l.w, calls) {
		answered += n.answered
		lost += max(0, n.answered-l.w.used(t, l.w.keys[i].ID, 0))
	}
	t.Logf("without waiting for a replica %d of %d answered requests were forgotten in %d failovers, as far as requests that were not answered do not hide more",
		lost, answered, failovers(t))
}

// With wait_replicas 1, a failover loses no answered request: the promoted replica has confirmed it.
func TestClusterFailoverWaiting(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, partialCoverage...)
	l := clusterLoad(t, c, redisstore.Wait{Replicas: 1, Timeout: 500 * time.Millisecond})
	for range failovers(t) {
		t.Log(l.failOver(t, c))
	}
	calls := l.stop()
	l.w.checkBounds(t, calls)
	l.w.checkExact(t, calls)
	median, longest := latencies(filterCalls(calls, outcomeAllowed))
	t.Logf("of %d requests %d were answered, in %v (median), %v (longest)", len(calls), len(filterCalls(calls, outcomeAllowed)), median, longest)
}

// Behind Sentinel with wait_replicas 1, a failover loses no answered request.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	n := redistest.StartSentinel(t)
	o := faulty(n.Addrs()...)
	o.Sentinel, o.Wait = n.Name(), redisstore.Wait{Replicas: 1, Timeout: 500 * time.Millisecond}
	s := openFaulty(t, o)
	told := &watcher{}
	s.Watch(told)
	told.awaitTrust(t)
	w := newWorld(t, s, 2)
	l := w.startLoad(t, 8)
	l.useAllKeys(t)
	time.Sleep(500 * time.Millisecond)
	for i := range failovers(t) {
		losses, master := told.losses(), n.Master()
		master.Kill()
		killed := time.Now()
		// The promoted replica has no replica, so WAIT fails.
		time.Sleep(100 * time.Millisecond)
		until(t, "the end of trust", func() bool { return !told.trusts() })
		n.AwaitFailover(t, master)
		s.SetWait(redisstore.Wait{})
		t.Logf("away for %v", l.awaitAllowed(t, killed))
		told.awaitTrust(t)
		if told.losses() == losses {
			t.Error("the watcher was not told of possible losses after a failover")
		}
		w.checkAnswered(t, l.callsSoFar())
		if i+1 < failovers(t) {
			master.Restart()
			n.Await(t)
			s.SetWait(o.Wait)
			time.Sleep(time.Second)
		}
	}
	calls := l.stop()
	t.Logf("%d of %d requests failed", len(filterCalls(calls, failed)), len(calls))
	w.checkBounds(t, calls)
	w.checkExact(t, calls)
}
