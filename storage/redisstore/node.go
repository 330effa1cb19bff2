package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// node is a server that takes writes. While it is away nothing is sent to it: a call
// fails at once. Its watch says when it is back.
type node struct {
	address  string
	away     atomic.Pointer[error] // why, nil while it is there
	heard    atomic.Int64          // when its watch was last answered, Unix nanoseconds
	underWay chan struct{}         // holds one for each call
	waiting  chan struct{}         // and one for each that waits for replicas
	mark     atomic.Int64          // number of its mark
	loss     string                // of data, "" for none; guarded by watch.mu
}

func newNode(address string) *node {
	return &node{address: address, underWay: make(chan struct{}, underWay), waiting: make(chan struct{}, waitingConns)}
}

// enter admits a call, which must leave, unless the node is away. It waits for a place
// no longer than the context.
func (n *node) enter(ctx context.Context) error {
	if why := n.away.Load(); why != nil {
		return fmt.Errorf("redis at %s is away: %w", n.address, *why)
	}
	select {
	case n.underWay <- struct{}{}:
		return nil
	default:
	}
	select {
	case n.underWay <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("redis at %s: too many calls are under way: %w", n.address, ctx.Err())
	}
}

// leave ends a call with the fault that it had: of the connection, not one that the
// server has told.
func (n *node) leave(fault error) {
	<-n.underWay
	switch {
	case fault == nil, rueidis.IsRedisNil(fault), errors.Is(fault, context.Canceled):
	case errors.Is(fault, context.DeadlineExceeded) && n.answers(): // one call is slow, not the node
	default:
		n.lost(fault)
	}
}

// answers reports whether the watch was answered just now.
func (n *node) answers() bool { return time.Since(time.Unix(0, n.heard.Load())) < 2*beat }

// lost notes that the node is away, and reports whether it was there before.
func (n *node) lost(why error) bool { return n.away.CompareAndSwap(nil, &why) }

// found notes that the node is there, and reports whether it was away.
func (n *node) found() bool {
	n.heard.Store(time.Now().UnixNano())
	return n.away.Swap(nil) != nil
}

// slots is how many slots a Cluster has.
const slots = 16384

// nodes knows which node has which slot.
type nodes struct {
	bySlot atomic.Pointer[[slots]*node] // of a Cluster; nil otherwise
	single atomic.Pointer[node]         // of all others, and for slots that nobody has

	mu        sync.Mutex
	markSlots []uint16 // of the first marks, as far as they were needed
}

func newNodes(s *Store) *nodes {
	ns := &nodes{}
	ns.single.Store(newNode(s.o.where()))
	return ns
}

// of returns the node that has a slot, as far as it is known.
func (ns *nodes) of(slot uint16) *node {
	if all := ns.bySlot.Load(); all != nil && slot < slots {
		if n := all[slot]; n != nil {
			return n
		}
	}
	return ns.single.Load()
}
