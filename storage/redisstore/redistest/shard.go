package redistest

import (
	"errors"
	"fmt"
	"slices"
)

// shard is a range of slots and the addresses of its nodes: the master, then replicas.
type shard struct {
	first, last int64
	nodes       []string
}

func isOfSlot(slot int) func(shard) bool {
	return func(s shard) bool { return s.first <= int64(slot) && int64(slot) <= s.last }
}

// find returns a node of the first shard that meets the condition: 0 is its master, 1 its replica. It asks
// the nodes in turn until one answers.
func (c *Cluster) find(meant func(shard) bool, which int) *Server {
	tb := c.nodes[0].tb
	tb.Helper()
	var problems error
	for _, s := range c.nodes {
		if !s.canAnswer() {
			continue
		}
		shards, err := s.shards()
		if err == nil {
			var found *Server
			if found, err = c.node(shards, meant, which); err == nil {
				return found
			}
		}
		problems = errors.Join(problems, fmt.Errorf("%s: %w", s.Addr(), err))
	}
	tb.Fatalf("find a node: %v\n%s", problems, lastLines(c.nodes...))
	return nil
}

// node returns a node of the first shard that meets the condition.
func (c *Cluster) node(shards []shard, meant func(shard) bool, which int) (*Server, error) {
	i := slices.IndexFunc(shards, meant)
	if i < 0 || len(shards[i].nodes) <= which {
		return nil, fmt.Errorf("none among %v", shards)
	}
	addr := shards[i].nodes[which]
	n := slices.IndexFunc(c.nodes, func(s *Server) bool { return s.Addr() == addr || s.tlsPort != 0 && address(s.tlsPort) == addr })
	if n < 0 {
		return nil, fmt.Errorf("%s is not of this cluster", addr)
	}
	return c.nodes[n], nil
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
func (s *Server) shards() ([]shard, error) {
	reply, err := s.call(brief, "CLUSTER", "SLOTS")
	if err != nil {
		return nil, err
	}
	rows, _ := reply.([]any)
	shards := make([]shard, 0, len(rows))
	for _, row := range rows {
		one, err := parseShard(row)
		if err != nil {
			return nil, err
		}
		shards = append(shards, one)
	}
	slices.SortFunc(shards, func(a, b shard) int { return int(a.first - b.first) })
	return shards, nil
}

// parseShard decodes a row of CLUSTER SLOTS: first slot, last slot, then nodes of host, port and more.
func parseShard(row any) (s shard, err error) {
	fields, _ := row.([]any)
	if len(fields) < 3 {
		return s, fmt.Errorf("CLUSTER SLOTS: %v", row)
	}
	s.first, _ = fields[0].(int64)
	s.last, _ = fields[1].(int64)
	for _, f := range fields[2:] {
		node, _ := f.([]any)
		if len(node) < 2 {
			return s, fmt.Errorf("CLUSTER SLOTS: %v", row)
		}
		port, _ := node[1].(int64)
		s.nodes = append(s.nodes, address(int(port)))
	}
	slices.Sort(s.nodes[1:])
	return s, nil
}

// isServed returns an error unless every slot has a master and a replica.
func isServed(shards []shard) error {
	next := int64(0)
	for _, s := range shards {
		if s.first != next || len(s.nodes) < 2 {
			break
		}
		next = s.last + 1
	}
	if next != slots {
		return fmt.Errorf("slot %d is not served with a replica: %v", next, shards)
	}
	return nil
}
