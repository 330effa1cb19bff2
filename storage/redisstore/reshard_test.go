package redisstore_test

import (
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// Moving slots to other masters under load loses no decision. Requests are answered, or fail as
// unavailable.
func TestResharding(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	for name, wait := range map[string]redisstore.Wait{
		"no wait_replicas": {},
		"wait_replicas 1":  {Replicas: 1, Timeout: 500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			l := clusterLoad(t, c, wait)
			for round := range 2 {
				for i := 0; i < len(l.w.keys); i += 6 {
					slot := l.w.slotOf(t, c.Nodes()[0], l.w.keys[i].UserID)
					from := c.MasterOf(slot)
					moveSlot(t, c, slot, from, c.Nodes()[(nodeOf(c, from)+1+round)%3])
				}
			}
			moved := time.Now()
			for i := range l.w.keys {
				l.await(t, moved, outcomeAllowed, func(c call) bool { return c.key == i })
			}
			calls := l.stop()
			if late := filterCalls(calls, failed, after(moved.Add(5*time.Second))); len(late) > 0 {
				t.Errorf("%d requests failed 5 seconds after all slots were moved: %v", len(late), late[0].err)
			}
			l.w.checkExact(t, calls)
		})
	}
}

func nodeOf(c *redistest.Cluster, s *redistest.Server) int {
	for i, n := range c.Nodes() {
		if n == s {
			return i
		}
	}
	return -1
}

// moveSlot moves a slot as redis-cli does, key by key. During the move the keys of a slot are on two
// masters.
func moveSlot(t testing.TB, c *redistest.Cluster, slot int, from, to *redistest.Server) {
	t.Helper()
	if from == to {
		return
	}
	n := strconv.Itoa(slot)
	fromID, toID := from.Do(t, "CLUSTER", "MYID"), to.Do(t, "CLUSTER", "MYID")
	to.Do(t, "CLUSTER", "SETSLOT", n, "IMPORTING", fromID)
	from.Do(t, "CLUSTER", "SETSLOT", n, "MIGRATING", toID)
	host, port, err := net.SplitHostPort(to.Addr())
	if err != nil {
		t.Fatal(err)
	}
	for {
		keys := from.Do(t, "CLUSTER", "GETKEYSINSLOT", n, "10")
		if keys == "" {
			break
		}
		for key := range strings.SplitSeq(keys, "\n") {
			from.Do(t, "MIGRATE", host, port, key, "0", "5000")
			time.Sleep(5 * time.Millisecond)
		}
	}
	for _, s := range []*redistest.Server{to, from, c.Nodes()[0], c.Nodes()[1], c.Nodes()[2]} {
		s.Do(t, "CLUSTER", "SETSLOT", n, "NODE", toID)
	}
}
