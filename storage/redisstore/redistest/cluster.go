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
	return startCluster(tb, args, func(*Server) []string { return nil })
}

// StartClusterTLS is StartCluster for nodes that also listen with TLS, as for StartTLS. They talk to each
// other with TLS only, and share a certificate.
func StartClusterTLS(tb testing.TB, args ...string) *Cluster {
	tb.Helper()
	pem := newCertificate(tb)
	return startCluster(tb, args, func(s *Server) []string {
		return append(s.listenTLS(pem), "--tls-cluster", "yes", "--tls-replication", "yes")
	})
}

func startCluster(tb testing.TB, args []string, extra func(*Server) []string) *Cluster {
	tb.Helper()
	c := &Cluster{}
	for range 2 * masters {
		s := newServer(tb)
		s.setOptions(slices.Concat(extra(s), []string{
			"--cluster-enabled", "yes",
			"--cluster-config-file", nodesFile,
			"--cluster-node-timeout", "1000",
			"--cluster-allow-replica-migration", "no", // replicas keep their masters
			// A node announces a replica to clients after the replica has read something, such as a ping.
			"--repl-ping-replica-period", "1",
		}, args))
		c.nodes = append(c.nodes, s)
	}
	for _, s := range c.nodes {
		s.write(nodesFile, c.config(s))
		s.launch()
	}
	c.Await(tb)
	return c
}

// nodesFile is the file of a node with its view of the cluster.
const nodesFile = "nodes.conf"

// config returns the first nodesFile of a node: all nodes, their slots and masters. So the nodes need not be introduced.
func (c *Cluster) config(of *Server) string {
	var b strings.Builder
	for i, s := range c.nodes {
		role, master, slotRange := "master", "-", ""
		if i < masters {
			slotRange = fmt.Sprintf("%d-%d", i*slots/masters, (i+1)*slots/masters-1)
		} else {
			role, master = "slave", nodeID(i-masters)
		}
		if s == of {
			role = "myself," + role
		}
		addr := address(cmp.Or(s.tlsPort, s.port))
		fmt.Fprintf(&b, "%s %s %s %s 0 0 %d connected %s\n", nodeID(i), addr, role, master, i%masters+1, slotRange)
	}
	fmt.Fprintf(&b, "vars currentEpoch %d lastVoteEpoch 0\n", masters)
	return b.String()
}

// nodeID returns the id of a node at the other nodes.
func nodeID(i int) string { return fmt.Sprintf("%040x", i+1) }

// Nodes returns all nodes. The first three start as masters; node i+3 starts as the replica of node i.
func (c *Cluster) Nodes() []*Server { return c.nodes }

// Addrs returns the addresses of Nodes.
func (c *Cluster) Addrs() []string { return addrs(c.nodes) }

// MasterOf returns the master of a slot, as soon as all running nodes agree. Until AwaitFailover it
// may be a dead node. It fails the test after 20 seconds.
func (c *Cluster) MasterOf(slot int) *Server {
	tb := c.nodes[0].tb
	tb.Helper()
	return awaitMaster(tb, c.nodes, nil, func(by *Server) (*Server, error) { return c.masterOf(slot, by) })
}

// AwaitFailover waits until all running nodes agree that another node than from serves a slot, and that
// the cluster serves requests. It returns the new master. It fails the test after 20 seconds.
func (c *Cluster) AwaitFailover(tb testing.TB, slot int, from *Server) *Server {
	tb.Helper()
	return awaitMaster(tb, c.nodes, from, func(by *Server) (*Server, error) {
		if err := by.serves(); err != nil {
			return nil, err
		}
		return c.masterOf(slot, by)
	})
}

// masterOf returns the master of a slot according to a node.
func (c *Cluster) masterOf(slot int, by *Server) (*Server, error) {
	members, err := by.members()
	if err != nil {
		return nil, err
	}
	for _, m := range members {
		for _, served := range m.slots {
			first, last := -1, -1
			if n, _ := fmt.Sscanf(served, "%d-%d", &first, &last); n == 1 {
				last = first
			}
			if node, err := strconv.ParseUint(m.id, 16, 64); err == nil && first <= slot && slot <= last {
				return c.nodes[node-1], nil
			}
		}
	}
	return nil, fmt.Errorf("%s: slot %d has no master", by.Addr(), slot)
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
		members, err := s.members()
		view := fmt.Sprint(members)
		err = errors.Join(err, s.has("cluster_slots_ok", strconv.Itoa(slots), "CLUSTER", "INFO"), s.serves(), s.isLinked())
		for _, m := range members {
			if m.fails || m.master == "-" && strings.Count(view, m.id) == 1 {
				err = errors.Join(err, fmt.Errorf("%s has failed, or has no replica", m.id))
			}
		}
		if err != nil || agreed != "" && agreed != view {
			return errors.Join(err, fmt.Errorf("%s says %s, others %s", s.Addr(), view, agreed))
		}
		agreed = view
	}
	return nil
}

// serves returns an error unless the cluster serves requests according to a node.
func (s *Server) serves() error { return s.has("cluster_state", "ok", "CLUSTER", "INFO") }

// member is a node according to another one.
type member struct {
	id, master string // master is "-" for a master
	fails      bool
	slots      []string // "first-last", or a single one
}

// members returns the nodes according to s, in the order of ids.
func (s *Server) members() (all []member, err error) {
	reply, err := s.call(brief, "CLUSTER", "NODES")
	for line := range strings.Lines(text(reply)) { // id, address, flags, master, two times, epoch, link, slots
		if f := strings.Fields(line); len(f) >= 8 {
			all = append(all, member{f[0], f[3], strings.Contains(f[2], "fail"), f[8:]})
		}
	}
	slices.SortFunc(all, func(a, b member) int { return strings.Compare(a.id, b.id) })
	return all, err
}
