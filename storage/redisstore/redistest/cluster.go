package redistest

import (
	"errors"
	"fmt"
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

// Nodes returns all nodes. The first three start as masters; node i+3 starts as the replica of node i.
func (c *Cluster) Nodes() []*Server { return c.nodes }

// Addrs returns the addresses of Nodes.
func (c *Cluster) Addrs() []string { return addrs(c.nodes) }

// MasterOf returns the master of a slot according to the first node that answers. Until AwaitFailover it
// may be a dead node. It fails the test if no node answers.
func (c *Cluster) MasterOf(slot int) *Server { return c.find(isOfSlot(slot), 0) }

// ReplicaOf returns the replica of a master according to the first node that answers. It fails the test if
// the master has no live replica.
func (c *Cluster) ReplicaOf(master *Server) *Server {
	return c.find(func(s shard) bool { return s.nodes[0] == master.Addr() }, 1)
}

// AwaitFailover waits until all running nodes agree that another node than from serves a slot, and that
// the cluster serves requests. It returns the new master. It fails the test after 20 seconds.
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
				return fmt.Errorf("%s has the master %s", s.Addr(), is.Addr())
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

// servesFor returns the master of a slot according to s, and an error unless s serves requests.
func (c *Cluster) servesFor(s *Server, slot int) (*Server, error) {
	shards, err := s.servedShards()
	if err != nil {
		return nil, err
	}
	return c.node(shards, isOfSlot(slot), 0)
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
