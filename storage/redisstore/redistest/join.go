package redistest

import (
	"cmp"
	"errors"
	"strconv"
	"strings"
	"testing"
)

// join makes a cluster of the nodes, as redis-cli --cluster create does. It introduces every node to every
// other, which is faster than to wait for gossip.
func (c *Cluster) join(tb testing.TB) {
	tb.Helper()
	for i, s := range c.nodes {
		s.Do(tb, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		if i < masters {
			first, last := i*slots/masters, (i+1)*slots/masters-1
			s.addSlots(tb, first, last)
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

// addSlots gives slots to a node. Redis before 7.0 lacks CLUSTER ADDSLOTSRANGE.
func (s *Server) addSlots(tb testing.TB, first, last int) {
	tb.Helper()
	command := []string{"CLUSTER", "ADDSLOTS"}
	for slot := first; slot <= last; slot++ {
		command = append(command, strconv.Itoa(slot))
	}
	s.Do(tb, command...)
}
