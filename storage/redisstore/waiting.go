package redisstore

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
	"golang.org/x/sync/singleflight"
)

// waiting are connections for calls that wait for replicas: each has one of its own, since
// WAIT holds up whatever comes behind it. There are none before the first such call.
type waiting struct {
	client atomic.Pointer[rueidis.Client]
	opens  singleflight.Group
}

// The connections that wait. Each is small: no more than one call is in its queue.
const (
	waitingConns  = 256 // of a master
	waitingRing   = 2   // 2^2 places in the queue
	waitingBuffer = 16 << 10
	waitingIdle   = time.Minute // for how long those stay open that nobody needs
)

func (o *Options) waitingOption() rueidis.ClientOption {
	c := o.clientOption()
	c.RingScaleEachConn = waitingRing
	c.PipelineMultiplex = -1
	c.ReadBufferEachConn, c.WriteBufferEachConn = waitingBuffer, waitingBuffer
	c.BlockingPoolSize, c.BlockingPoolCleanup = waitingConns, waitingIdle
	return c
}

// get returns the client, which it makes first if there is none.
func (w *waiting) get(o *Options) (rueidis.Client, error) {
	if c := w.client.Load(); c != nil {
		return *c, nil
	}
	c, err, _ := w.opens.Do("", func() (any, error) {
		if c := w.client.Load(); c != nil {
			return *c, nil
		}
		c, err := rueidis.NewClient(o.waitingOption())
		if err != nil {
			return nil, err
		}
		w.client.Store(&c)
		return c, nil
	})
	if err != nil {
		return nil, err
	}
	return c.(rueidis.Client), nil
}

func (w *waiting) close() {
	if c := w.client.Load(); c != nil {
		(*c).Close()
	}
}

// enterWaiting is enter for a call that will wait for replicas.
func (n *node) enterWaiting(ctx context.Context) error {
	if err := n.enter(ctx); err != nil {
		return err
	}
	select {
	case n.waiting <- struct{}{}:
		return nil
	case <-ctx.Done():
		n.leave(nil)
		return fmt.Errorf("redis at %s: too many calls wait for replicas: %w", n.address, ctx.Err())
	}
}

func (n *node) leaveWaiting(fault error) {
	<-n.waiting
	n.leave(fault)
}
