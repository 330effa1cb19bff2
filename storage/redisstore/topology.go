package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/redis/rueidis"
)

// topology returns the masters by address, and updates the table of slots.
func (s *Store) topology(ctx context.Context) (map[string]*master, error) {
	if s.client.Mode() == rueidis.ClientModeCluster {
		return s.clusterMasters(ctx)
	}
	address := s.o.Addresses[0]
	if s.o.Sentinel != "" {
		for address = range s.client.Nodes() { // the master according to the sentinels
		}
	}
	m := s.masters.single.Load()
	if m.address != address {
		m = newMaster(s, address)
		s.masters.single.Store(m)
	}
	return map[string]*master{address: m}, nil
}

// clusterMasters reads from the Cluster which master serves which slot.
func (s *Store) clusterMasters(ctx context.Context) (map[string]*master, error) {
	s.watch.mu.Lock()
	known := maps.Clone(s.watch.masters)
	s.watch.mu.Unlock()
	ranges, answeredBy, err := s.clusterSlots(ctx, known)
	if err != nil {
		return nil, err
	}
	all, table := map[string]*master{}, new([slots]*master)
	for _, r := range ranges {
		first, last, address, err := slotRange(r, answeredBy)
		if err != nil {
			return nil, err
		}
		m := cmp.Or(all[address], known[address])
		if m == nil {
			m = newMaster(s, address)
		}
		all[address] = m
		for slot := first; slot <= last; slot++ {
			table[slot] = m
		}
	}
	if len(all) == 0 {
		return nil, errors.New("the Cluster has no master")
	}
	s.assignMarks(table, len(all))
	s.masters.bySlot.Store(table)
	return all, nil
}

// maxMarkSearch bounds the search for the number of a mark in a master's slots. That many marks cover
// practically all slots.
const maxMarkSearch = 20 * slots

// assignMarks gives each master the lowest-numbered mark in its slots. So every node uses the same mark,
// and a promoted replica keeps it.
func (s *Store) assignMarks(table *[slots]*master, masters int) {
	marked := map[*master]bool{}
	for i := int64(0); len(marked) < masters && i < maxMarkSearch; i++ {
		if m := table[s.slotOf(s.o.markName(i))]; m != nil && !marked[m] {
			marked[m] = true
			m.markNumber.Store(i)
		}
	}
}

// slotOf returns the slot of a key.
func (s *Store) slotOf(key string) uint16 {
	cmd := s.client.B().Get().Key(key).Build()
	return cmd.Slot()
}

// clusterSlots returns the answer of the first node that answers, and the address of this node. It asks the known masters that are
// away last: each of them may take the whole timeout.
func (s *Store) clusterSlots(ctx context.Context, known map[string]*master) (ranges []rueidis.RedisMessage, answeredBy string, err error) {
	err = errors.New("the Cluster has no node")
	nodes := s.client.Nodes()
	order := func(address string) int {
		switch m := known[address]; {
		case m == nil:
			return 1
		case m.away.Load() == nil:
			return 0
		}
		return 2
	}
	for _, address := range slices.SortedFunc(maps.Keys(nodes), func(a, b string) int { return order(a) - order(b) }) {
		ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
		ranges, err = nodes[address].Do(ctx, s.client.B().ClusterSlots().Build()).ToArray()
		cancel()
		if err == nil {
			return ranges, address, nil
		}
	}
	return nil, "", err
}

// slotRange decodes a line of CLUSTER SLOTS: first slot, last slot, master. A master without host has the
// host of the node that answered.
func slotRange(m rueidis.RedisMessage, answeredBy string) (first, last int64, address string, err error) {
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
	if host == "" {
		if host, _, err = net.SplitHostPort(answeredBy); err != nil {
			return 0, 0, "", err
		}
	}
	return first, last, net.JoinHostPort(host, strconv.FormatInt(number(at[1]), 10)), nil
}

// slots is the number of slots of a Cluster.
const slots = 16384

// masters maps slots to masters.
type masters struct {
	bySlot atomic.Pointer[[slots]*master] // of a Cluster; nil otherwise
	single atomic.Pointer[master]         // without a Cluster, and for slots without master
}

// ofSlot returns the master of a slot according to the last known topology.
func (ms *masters) ofSlot(slot uint16) *master {
	if all := ms.bySlot.Load(); all != nil && slot < slots {
		if m := all[slot]; m != nil {
			return m
		}
	}
	return ms.single.Load()
}
