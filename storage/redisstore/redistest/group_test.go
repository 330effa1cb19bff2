package redistest

import (
	"fmt"
	"net"
	"slices"
	"testing"
	"time"
)

// send sends bytes and returns the first bytes of the answer.
func send(t *testing.T, conn net.Conn, request string) string {
	t.Helper()
	_ = conn.SetDeadline(time.Now().Add(limit))
	if _, err := conn.Write([]byte(request)); err != nil {
		t.Fatal(err)
	}
	reply := make([]byte, 100)
	n, err := conn.Read(reply)
	if err != nil {
		t.Fatal(err)
	}
	return string(reply[:n])
}

// want returns an error unless a command has the given reply.
func want(s *Server, reply string, args ...string) error {
	got, err := s.Try(args...)
	if err == nil && got != reply {
		err = fmt.Errorf("%s: %q, want %q", args, got, reply)
	}
	return err
}

// A cluster serves every slot. The replica of a killed master takes over. The killed master returns as its
// replica.
func TestCluster(t *testing.T) {
	t.Parallel()
	c := StartCluster(t)
	if n := len(c.Addrs()); n != 6 {
		t.Errorf("%d addresses, want 6", n)
	}
	for i, slot := range []int{0, 8000, 16383} {
		if got, want := c.MasterOf(slot), c.Nodes()[i]; got != want {
			t.Errorf("the master of slot %d is %s, want %s", slot, got.Addr(), want.Addr())
		}
	}
	const slot = 12182 // of key "foo"
	master, replica := c.Nodes()[2], c.Nodes()[2+masters]
	master.Do(t, "SET", "foo", "bar")
	if n := master.Do(t, "WAIT", "1", "0"); n != "1" {
		t.Errorf("%s replicas have the key, want 1", n)
	}

	master.Kill()
	if got := c.AwaitFailover(t, slot, master); got != replica {
		t.Errorf("%s took over, want the replica %s", got.Addr(), replica.Addr())
	}
	if got := replica.Do(t, "GET", "foo"); got != "bar" {
		t.Errorf("GET = %q after the failover", got)
	}
	master.Restart()
	c.Await(t)
	if got := c.MasterOf(slot); got != replica || master.has("role", "slave", "INFO", "replication") != nil {
		t.Errorf("the master is %s, want that the master of old %s is a replica", got.Addr(), master.Addr())
	}
}

// A paused master is replaced. The cluster is complete when the process continues.
func TestClusterPause(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, "--cluster-node-timeout", "500")
	master, replica := c.Nodes()[0], c.Nodes()[masters]
	master.Pause()
	if got := c.AwaitFailover(t, 0, master); got != replica {
		t.Errorf("%s took over, want the replica %s", got.Addr(), replica.Addr())
	}
	master.Resume()
	c.Await(t)
}

// When a master is killed, the sentinels promote its replica.
func TestSentinel(t *testing.T) {
	t.Parallel()
	n := StartSentinel(t)
	if len(n.Addrs()) != 3 || slices.Contains(n.Addrs(), n.Master().Addr()) {
		t.Errorf("the sentinels are %v, want three that are not the master %s", n.Addrs(), n.Master().Addr())
	}
	master := n.Master()
	if master != n.Servers()[0] {
		t.Errorf("the master is %s, want the first server", master.Addr())
	}
	master.Kill()
	if got, want := n.AwaitFailover(t, master), n.Servers()[1]; got != want || n.Master() != want {
		t.Errorf("%s took over, want the replica %s", got.Addr(), want.Addr())
	}
}
