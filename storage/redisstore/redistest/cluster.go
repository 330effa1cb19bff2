package redistest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	masters = 3
	slots   = 16384 // number of slots of a cluster
)

// Cluster is a Redis cluster of three masters with one replica each.
type Cluster struct{ nodes []*Server }

// StartCluster runs a cluster until the end of the test. It returns when the cluster is complete, see
// Await. The nodes declare a node dead that has not answered for a second. args are options for every
// node, as for Start, and override that. A cluster that does not start fails the test.
func StartCluster(tb testing.TB, args ...string) *Cluster {
	tb.Helper()
	return startCluster(tb, func(args []string) *Server { return Start(tb, args...) }, args)
}

// StartClusterTLS is StartCluster for nodes that also listen with TLS, as for StartTLS. They talk to each
// other with TLS only, and share a certificate.
func StartClusterTLS(tb testing.TB, args ...string) *Cluster {
	tb.Helper()
	dir := tempDir(tb)
	if err := writeCertificate(dir); err != nil {
		tb.Fatal(err)
	}
	args = append([]string{"--tls-cluster", "yes", "--tls-replication", "yes"}, args...)
	return startCluster(tb, func(args []string) *Server { return startTLS(tb, dir, args...) }, args)
}

func startCluster(tb testing.TB, node func(args []string) *Server, args []string) *Cluster {
	tb.Helper()
	options := append([]string{
		"--cluster-enabled", "yes",
		"--cluster-config-file", "nodes.conf",
		"--cluster-node-timeout", "1000",
		"--cluster-allow-replica-migration", "no", // replicas keep their masters
		// A node announces a replica to clients after the replica has read something, such as a ping.
		"--repl-ping-replica-period", "1",
	}, args...)
	c := &Cluster{}
	for range 2 * masters {
		c.nodes = append(c.nodes, node(options))
	}
	c.join(tb)
	c.Await(tb)
	return c
}

// join makes a cluster of the nodes, as redis-cli --cluster create does. It introduces every node to every
// other, which is faster than to wait for gossip.
func (c *Cluster) join(tb testing.TB) {
	tb.Helper()
	for i, s := range c.nodes {
		s.Do(tb, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		if i < masters { // Redis before 7.0 lacks CLUSTER ADDSLOTSRANGE
			command := []string{"CLUSTER", "ADDSLOTS"}
			for slot := i * slots / masters; slot < (i+1)*slots/masters; slot++ {
				command = append(command, strconv.Itoa(slot))
			}
			s.Do(tb, command...)
		}
	}
	for i, s := range c.nodes {
		for _, other := range c.nodes[i+1:] {
			s.Do(tb, "CLUSTER", "MEET", loopback, strconv.Itoa(cmp.Or(other.tlsPort, other.port)))
		}
	}
	for _, s := range c.nodes {
		await(tb, "nodes that "+s.Addr()+" knows", c.nodes, func() error { return c.isKnown(s) })
	}
	for i, replica := range c.nodes[masters:] {
		replica.Do(tb, "CLUSTER", "REPLICATE", c.nodes[i].Do(tb, "CLUSTER", "MYID"))
	}
}

// isKnown returns an error unless s knows all other nodes and has shaken hands with them.
func (c *Cluster) isKnown(s *Server) error {
	reply, err := s.call(brief, "CLUSTER", "NODES")
	if err != nil {
		return err
	}
	list := strings.TrimSpace(text(reply))
	if strings.Count(list, "\n")+1 != len(c.nodes) || strings.Contains(list, "handshake") {
		return errors.New(list)
	}
	return nil
}

// Nodes returns all nodes. The first three start as masters; node i+3 starts as the replica of node i.
func (c *Cluster) Nodes() []*Server { return c.nodes }

// Addrs returns the addresses of Nodes.
func (c *Cluster) Addrs() []string { return addrs(c.nodes) }

// MasterOf returns the master of a slot according to the first node that answers. Until AwaitFailover it
// may be a dead node. It fails the test if no node answers.
func (c *Cluster) MasterOf(slot int) *Server {
	return firstNamed(c.nodes, func(s *Server) (*Server, error) {
		shards, err := s.shards()
		if err != nil {
			return nil, err
		}
		return c.masterIn(shards, slot)
	})
}

// AwaitFailover waits until all running nodes agree that another node than from serves a slot, and that
// the cluster serves requests. It returns the new master. It fails the test after 20 seconds.
func (c *Cluster) AwaitFailover(tb testing.TB, slot int, from *Server) *Server {
	tb.Helper()
	return awaitOther(tb, from, c.nodes, func() (*Server, error) {
		return agreed(c.nodes, func(s *Server) (*Server, error) {
			shards, err := s.servedShards()
			if err != nil {
				return nil, err
			}
			return c.masterIn(shards, slot)
		})
	})
}

// masterIn returns the master of a slot.
func (c *Cluster) masterIn(shards []shard, slot int) (*Server, error) {
	for _, one := range shards {
		if int64(slot) < one.first || int64(slot) > one.last {
			continue
		}
		for _, s := range c.nodes {
			if addr := one.nodes[0]; addr == s.Addr() || s.tlsPort != 0 && addr == address(s.tlsPort) {
				return s, nil
			}
		}
	}
	return nil, fmt.Errorf("slot %d has no master of this cluster among %v", slot, shards)
}

// Await waits until the cluster is complete: every node answers, all agree, every slot has a master, every
// master has a replica, and every replica is linked to its master. It fails the test after 20 seconds.
func (c *Cluster) Await(tb testing.TB) {
	tb.Helper()
	await(tb, "cluster", c.nodes, c.isWhole)
}

// isWhole returns the first condition of Await that does not hold.
func (c *Cluster) isWhole() error {
	agreed := ""
	for _, s := range c.nodes {
		shards, err := s.servedShards()
		if err != nil {
			return err
		}
		next := int64(0)
		for _, one := range shards {
			if one.first == next && len(one.nodes) > 1 {
				next = one.last + 1
			}
		}
		view := fmt.Sprint(shards)
		if next != slots {
			return fmt.Errorf("%s: slot %d is not served with a replica: %s", s.Addr(), next, view)
		}
		if agreed != "" && agreed != view {
			return fmt.Errorf("%s says %s, others %s", s.Addr(), view, agreed)
		}
		agreed = view
		if err := s.isLinked(); err != nil {
			return err
		}
	}
	return nil
}

// shard is a range of slots and the addresses of its nodes: the master, then replicas.
type shard struct {
	first, last int64
	nodes       []string
}

// servedShards returns the shards according to s, and an error unless s serves requests.
func (s *Server) servedShards() ([]shard, error) {
	info, err := s.info("CLUSTER", "INFO")
	if err != nil {
		return nil, err
	}
	if state := info["cluster_state"]; state != "ok" {
		return nil, fmt.Errorf("%s: cluster_state is %s", s.Addr(), state)
	}
	return s.shards()
}

// shards returns the shards according to s, in the order of slots.
func (s *Server) shards() (shards []shard, err error) {
	reply, err := s.call(brief, "CLUSTER", "SLOTS")
	if err != nil {
		return nil, err
	}
	rows, _ := reply.([]any)
	for _, row := range rows { // first slot, last slot, then nodes of host, port and more
		fields, _ := row.([]any)
		if len(fields) < 3 {
			return nil, fmt.Errorf("CLUSTER SLOTS: %v", row)
		}
		var one shard
		one.first, _ = fields[0].(int64)
		one.last, _ = fields[1].(int64)
		for _, f := range fields[2:] {
			node, _ := f.([]any)
			if len(node) < 2 {
				return nil, fmt.Errorf("CLUSTER SLOTS: %v", row)
			}
			port, _ := node[1].(int64)
			one.nodes = append(one.nodes, address(int(port)))
		}
		slices.Sort(one.nodes[1:])
		shards = append(shards, one)
	}
	slices.SortFunc(shards, func(a, b shard) int { return int(a.first - b.first) })
	return shards, nil
}
