package redisstore

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/redis/rueidis"
)

// topology returns the masters by their address, and notes who has which slot.
func (s *Store) topology(ctx context.Context) (map[string]*node, error) {
	switch {
	case s.client.Mode() == rueidis.ClientModeCluster:
		return s.clusterMasters(ctx)
	case s.o.Sentinel != "":
		return s.nodes.only(s.sentinelMaster()), nil
	}
	return s.nodes.only(s.o.Addresses[0]), nil
}

// sentinelMaster returns the address of the master that the sentinels name.
func (s *Store) sentinelMaster() (address string) {
	for address = range s.client.Nodes() {
	}
	return address
}

// only returns the single node, at this address.
func (ns *nodes) only(address string) map[string]*node {
	n := ns.single.Load()
	if n.address != address {
		n = newNode(address)
		ns.single.Store(n)
	}
	return map[string]*node{address: n}
}

// clusterMasters asks the Cluster which slots its masters have.
func (s *Store) clusterMasters(ctx context.Context) (map[string]*node, error) {
	ctx, cancel := s.within(ctx)
	defer cancel()
	ranges, err := s.client.Do(ctx, s.client.B().ClusterSlots().Build()).ToArray()
	if err != nil {
		return nil, err
	}
	old := map[string]*node{}
	if table := s.nodes.bySlot.Load(); table != nil {
		for _, n := range table {
			if n != nil {
				old[n.address] = n
			}
		}
	}
	all, table := map[string]*node{}, new([slots]*node)
	for _, r := range ranges {
		first, last, address, err := slotRange(r)
		if err != nil {
			return nil, err
		}
		n := all[address]
		if n == nil {
			if n = old[address]; n == nil {
				n = newNode(address)
			}
			all[address] = n
		}
		for slot := first; slot <= last; slot++ {
			table[slot] = n
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("the Cluster has no master")
	}
	s.nodes.bySlot.Store(table)
	return all, nil
}

// slotRange reads a line of CLUSTER SLOTS: the first slot, the last, and the master.
func slotRange(m rueidis.RedisMessage) (first, last int64, address string, err error) {
	parts, err := m.ToArray()
	if err != nil || len(parts) < 3 {
		return 0, 0, "", fmt.Errorf("CLUSTER SLOTS: unexpected line: %w", err)
	}
	first, last = number(parts[0]), number(parts[1])
	at, err := parts[2].ToArray()
	if err != nil || len(at) < 2 || first < 0 || last >= slots {
		return 0, 0, "", fmt.Errorf("CLUSTER SLOTS: unexpected line: %w", err)
	}
	host, _ := text(at[0])
	return first, last, net.JoinHostPort(host, strconv.FormatInt(number(at[1]), 10)), nil
}
