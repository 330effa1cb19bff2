package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// topology returns the masters by address, and updates the table of slots.
func (s *Store) topology(ctx context.Context) (map[string]*node, error) {
	switch {
	case s.client.Mode() == rueidis.ClientModeCluster:
		return s.clusterMasters(ctx)
	case s.o.Sentinel != "":
		return s.nodes.setSingle(s.sentinelMaster()), nil
	}
	return s.nodes.setSingle(s.o.Addresses[0]), nil
}

// sentinelMaster returns the master's address according to the sentinels.
func (s *Store) sentinelMaster() (address string) {
	for address = range s.client.Nodes() {
	}
	return address
}

// setSingle sets the address of the only master.
func (ns *nodes) setSingle(address string) map[string]*node {
	n := ns.single.Load()
	if n.address != address {
		n = newNode(address)
		ns.single.Store(n)
	}
	return map[string]*node{address: n}
}

// clusterMasters reads from the Cluster which master serves which slot.
func (s *Store) clusterMasters(ctx context.Context) (map[string]*node, error) {
	ranges, answeredBy, err := s.clusterSlots(ctx)
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
		first, last, address, err := slotRange(r, answeredBy)
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
	s.assignMarks(table, len(all))
	s.nodes.bySlot.Store(table)
	return all, nil
}

// maxMarkSearch bounds the search for the number of a mark in a master's slots. That many marks cover
// practically all slots.
const maxMarkSearch = 20 * slots

// assignMarks gives each master the lowest-numbered mark in its slots. So every node uses the same mark,
// and a promoted replica keeps it.
func (s *Store) assignMarks(table *[slots]*node, masters int) {
	ns, marked := s.nodes, map[*node]bool{}
	ns.mu.Lock()
	defer ns.mu.Unlock()
	for i := 0; len(marked) < masters && i < maxMarkSearch; i++ {
		if i == len(ns.markSlots) {
			ns.markSlots = append(ns.markSlots, s.slotOf(s.o.markName(int64(i))))
		}
		if n := table[ns.markSlots[i]]; n != nil && !marked[n] {
			marked[n] = true
			n.markNumber.Store(int64(i))
		}
	}
}

// slotOf returns the slot of a key.
func (s *Store) slotOf(key string) uint16 {
	cmd := s.client.B().Get().Key(key).Build()
	return cmd.Slot()
}

// clusterSlots asks all nodes in parallel and returns the first answer, with the address of its node. It
// does not cancel the other calls, because other callers may share their connections.
func (s *Store) clusterSlots(ctx context.Context) (ranges []rueidis.RedisMessage, answeredBy string, err error) {
	type answer struct {
		ranges     []rueidis.RedisMessage
		answeredBy string
		err        error
	}
	nodes := s.client.Nodes()
	answers := make(chan answer, len(nodes))
	for address, n := range nodes {
		s.background.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
			defer cancel()
			ranges, err := n.Do(ctx, n.B().ClusterSlots().Build()).ToArray()
			answers <- answer{ranges, address, err}
		})
	}
	err = errors.New("the Cluster has no node")
	for range nodes {
		a := <-answers
		if a.err == nil {
			return a.ranges, a.answeredBy, nil
		}
		err = a.err
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

// node is a Redis master. While it is away, calls fail at once. Its watch notices when it is back.
type node struct {
	address    string
	away       atomic.Pointer[error] // why the node is away; nil while it answers
	lastReply  atomic.Int64          // time of the last answer to its watch, Unix nanoseconds
	calls      chan struct{}         // one element for each running call
	waits      chan struct{}         // one element for each call that waits for replicas
	markNumber atomic.Int64          // number of its mark
	loss       string                // description of its data loss, "" for none; guarded by watch.mu
}

func newNode(address string) *node {
	return &node{address: address, calls: make(chan struct{}, maxCalls), waits: make(chan struct{}, maxReplicaConns)}
}

// enter registers a call, unless the node is away. It waits until ctx ends while maxCalls calls are
// running. The caller must call leave.
func (n *node) enter(ctx context.Context) error {
	if why := n.away.Load(); why != nil {
		return fmt.Errorf("redis at %s is away: %w", n.address, *why)
	}
	select {
	case n.calls <- struct{}{}:
		return nil
	default:
	}
	select {
	case n.calls <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("redis at %s: too many running calls: %w", n.address, ctx.Err())
	}
}

// leave unregisters a call. A connection error sets the node away.
func (n *node) leave(fault error) {
	<-n.calls
	switch {
	case fault == nil, rueidis.IsRedisNil(fault), errors.Is(fault, context.Canceled):
	case errors.Is(fault, context.DeadlineExceeded) && n.answers(): // only this call is slow
	default:
		n.setAway(fault)
	}
}

// answers reports whether the watch has had an answer in the last 200 ms.
func (n *node) answers() bool { return time.Since(time.Unix(0, n.lastReply.Load())) < 2*beat }

// setAway marks the node as away, and reports whether it was not away before.
func (n *node) setAway(why error) bool { return n.away.CompareAndSwap(nil, &why) }

// setBack marks the node as reachable, and reports whether it was away.
func (n *node) setBack() bool {
	n.lastReply.Store(time.Now().UnixNano())
	return n.away.Swap(nil) != nil
}

// slots is the number of slots of a Cluster.
const slots = 16384

// nodes maps slots to masters.
type nodes struct {
	bySlot atomic.Pointer[[slots]*node] // of a Cluster; nil otherwise
	single atomic.Pointer[node]         // without a Cluster, and for slots without master

	mu        sync.Mutex
	markSlots []uint16 // cached slots of the first marks
}

func newNodes(s *Store) *nodes {
	ns := &nodes{}
	ns.single.Store(newNode(s.o.address()))
	return ns
}

// ofSlot returns the master of a slot according to the last known topology.
func (ns *nodes) ofSlot(slot uint16) *node {
	if all := ns.bySlot.Load(); all != nil && slot < slots {
		if n := all[slot]; n != nil {
			return n
		}
	}
	return ns.single.Load()
}

// Managed services put one address in front of a master and its replicas, and move the address at a failover. Open
// connections stay at the former master. An error that means "wrong server" closes them all, and the client dials again.

// conns are the open connections to servers.
type conns struct {
	mu      sync.Mutex
	open    map[*trackedConn]struct{}
	dropped time.Time // when dropAll last closed the connections
}

// trackedConn is an open connection to a server.
type trackedConn struct {
	net.Conn
	in *conns
}

// Close implements [net.Conn].
func (c *trackedConn) Close() error {
	c.in.mu.Lock()
	delete(c.in.open, c)
	c.in.mu.Unlock()
	return c.Conn.Close()
}

// track returns the connection as an element of cs until it is closed.
func (cs *conns) track(c net.Conn) net.Conn {
	t := &trackedConn{c, cs}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.open == nil {
		cs.open = map[*trackedConn]struct{}{}
	}
	cs.open[t] = struct{}{}
	return t
}

// dropEvery is the least time between two closings of all connections: a master may lack its replicas for long.
const dropEvery = time.Second

// dropAll closes all connections, at most once in dropEvery.
func (cs *conns) dropAll() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if time.Since(cs.dropped) < dropEvery {
		return
	}
	cs.dropped = time.Now()
	for c := range cs.open {
		_ = c.Conn.Close()
	}
	clear(cs.open)
}

// wrongServer are the prefixes of errors that another server behind the same address may not return. Other errors concern the
// server that the address names: LOADING ends when the data is loaded, OOM and MISCONF need an operator, and the client follows MOVED and
// CLUSTERDOWN.
var wrongServer = []string{
	"READONLY",   // a replica refuses a write
	"MASTERDOWN", // a replica without its master refuses a read
	"UNBLOCKED",  // a master has become a replica while a call waited for replicas
	"NOREPLICAS", // a master lacks replicas: they may follow a new master
}

// errReplica means that the server is a replica.
var errReplica = errors.New("the server is a replica, not the master")

// noteReply closes all connections after an error that means "wrong server". A Cluster and Sentinel have addresses for each
// server, which the client follows.
func (s *Store) noteReply(err error) {
	reply, ok := rueidis.IsRedisErr(err)
	if !ok || reply.IsNil() || !s.oneAddress() {
		return
	}
	for _, prefix := range wrongServer {
		if strings.HasPrefix(reply.Error(), prefix) {
			s.o.conns.dropAll()
			return
		}
	}
}

// oneAddress reports whether one address names the master, whichever server that is.
func (s *Store) oneAddress() bool {
	return s.o.Sentinel == "" && s.client.Mode() != rueidis.ClientModeCluster
}
