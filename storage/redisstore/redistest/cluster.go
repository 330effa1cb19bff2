package redistest

import (
	"errors"
	"fmt"
	"testing"
)

const (
	masters = 3
	slots   = 16384 // of every cluster
)

// Cluster is a Redis cluster of three masters with a replica each.
type Cluster struct{ nodes []*Server }

// StartCluster runs a cluster until the end of the test and returns when it is whole, as
// Await says. A node that does not answer for a second is taken for dead. The arguments
// are options for every node, as of Start, and can say otherwise. What does not come
// about fails the test.
func StartCluster(tb testing.TB, args ...string) *Cluster {
	tb.Helper()
	return startCluster(tb, func(args []string) *Server { return Start(tb, args...) }, args)
}

// StartClusterTLS is StartCluster for nodes that listen with TLS too, as of StartTLS, and
// talk to each other with TLS only. All have the same certificate.
func StartClusterTLS(tb testing.TB, args ...string) *Cluster {
	tb.Helper()
	dir := tempDir(tb)
	if err := writeCertificates(dir); err != nil {
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
		"--cluster-allow-replica-migration", "no", // who belongs to whom stays as it is
		// A node lists a replica for clients once that has read something: a ping at least.
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

// Nodes returns all nodes. The first three are masters at the beginning, and the i-th
// after them is the replica of the i-th.
func (c *Cluster) Nodes() []*Server { return c.nodes }

// Addrs returns the addresses of Nodes.
func (c *Cluster) Addrs() []string { return addrs(c.nodes) }

// MasterOf returns the node that serves a slot, by what the first node says that answers.
// That may be a dead node, until AwaitFailover. No answer fails the test of the cluster.
func (c *Cluster) MasterOf(slot int) *Server { return c.find(isOfSlot(slot), 0) }

// ReplicaOf returns the replica of a master, by what the first node says that answers. A
// master without a replica that lives fails the test of the cluster.
func (c *Cluster) ReplicaOf(master *Server) *Server {
	return c.find(func(s shard) bool { return s.nodes[0] == master.Addr() }, 1)
}

// AwaitFailover waits until all nodes that run and are not paused agree that another than the
// given one serves a slot, and that the cluster does serve; it returns the new master. That
// they do not within 20 seconds fails the test.
func (c *Cluster) AwaitFailover(tb testing.TB, slot int, from *Server) *Server {
	tb.Helper()
	var master *Server
	await(tb, "failover of "+from.Addr(), c.nodes, func() error {
		master = nil
		for _, s := range c.nodes {
			if !s.canAnswer() {
				continue
			}
			is, err := c.servesFor(s, slot)
			if err != nil {
				return err
			}
			if is == from || master != nil && is != master {
				return fmt.Errorf("%s has %s for the master", s.Addr(), is.Addr())
			}
			master = is
		}
		if master == nil {
			return errors.New("no node can answer")
		}
		return nil
	})
	return master
}

// servesFor returns the node that serves a slot by what s says, when s serves itself.
func (c *Cluster) servesFor(s *Server, slot int) (*Server, error) {
	shards, err := s.servedShards()
	if err != nil {
		return nil, err
	}
	return c.node(shards, isOfSlot(slot), 0)
}

// Await waits until the cluster is whole: every node answers and serves, all say the
// same, every slot has a master, every master a replica, and every replica a link to its
// master. That it does not come about within 20 seconds fails the test.
func (c *Cluster) Await(tb testing.TB) {
	tb.Helper()
	await(tb, "cluster", c.nodes, c.isWhole)
}

// isWhole returns what is missing.
func (c *Cluster) isWhole() error {
	agreed := ""
	for _, s := range c.nodes {
		shards, err := s.servedShards()
		if err != nil {
			return err
		}
		if err := isServed(shards); err != nil {
			return fmt.Errorf("%s: %w", s.Addr(), err)
		}
		view := fmt.Sprint(shards)
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

func addrs(servers []*Server) []string {
	list := make([]string, len(servers))
	for i, s := range servers {
		list[i] = s.Addr()
	}
	return list
}
