package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
	"golang.org/x/sync/singleflight"

	"github.com/limitkeeper/limitkeeper/core"
)

// do sends a command and waits for the answer until ctx ends.
func (s *Store) do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	n := s.nodes.ofSlot(cmd.Slot())
	if err := n.enter(ctx); err != nil {
		return rueidis.NewErrorResult(err)
	}
	began := time.Now()
	r := s.client.Do(ctx, cmd)
	s.observe(began, r.NonRedisError())
	n.leave(r.NonRedisError())
	return r
}

// observe reports a call to Redis. fault is the error of a call without an answer.
func (s *Store) observe(began time.Time, fault error) {
	if s.o.OnCall != nil {
		s.o.OnCall(time.Since(began), fault)
	}
}

// maxParallel is the maximum number of parallel calls for one call of the store.
const maxParallel = 64

// doWrite is do for a write: it waits for replicas if the settings say so.
func (s *Store) doWrite(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if s.settings.Load().wait.Replicas == 0 {
		return s.do(ctx, cmd)
	}
	return s.doAndWaitReplicas(ctx, cmd)
}

// maxRedirects is how often doAndWaitReplicas follows a MOVED redirect. A redirected command has not run.
const maxRedirects = 5

// doAndWaitReplicas sends a write followed by WAIT on the same connection.
func (s *Store) doAndWaitReplicas(ctx context.Context, cmd rueidis.Completed) (r rueidis.RedisResult) {
	w := s.settings.Load().wait
	n := s.nodes.ofSlot(cmd.Slot())
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.o.Timeout+w.Timeout)
	defer cancel()
	if err := n.enterWaiting(ctx); err != nil {
		return rueidis.NewErrorResult(err)
	}
	var wait rueidis.RedisResult
	cmd = cmd.Pin()
	began := time.Now()
	for range maxRedirects {
		r, wait = s.sendWithWait(ctx, cmd, w)
		if err, ok := rueidis.IsRedisErr(r.Error()); ok {
			if _, moved := err.IsMoved(); moved && sleep(ctx, 20*time.Millisecond) {
				continue
			}
		}
		break
	}
	s.observe(began, r.NonRedisError())
	n.leaveWaiting(r.NonRedisError())
	if r.Error() != nil {
		return r
	}
	if has, err := wait.AsInt64(); err != nil {
		return rueidis.NewErrorResult(fmt.Errorf("waiting for %d replicas: %w", w.Replicas, err))
	} else if has < int64(w.Replicas) {
		return rueidis.NewErrorResult(fmt.Errorf("%d of %d replicas confirmed the write within %v", has, w.Replicas, w.Timeout))
	}
	return r
}

// sendWithWait sends a command and WAIT on a dedicated connection.
func (s *Store) sendWithWait(ctx context.Context, cmd rueidis.Completed, w Wait) (r, wait rueidis.RedisResult) {
	client, err := s.replicaConns.get(&s.o)
	if err != nil {
		return rueidis.NewErrorResult(err), rueidis.NewErrorResult(err)
	}
	_ = client.Dedicated(func(c rueidis.DedicatedClient) error {
		rs := c.DoMulti(ctx, cmd, c.B().Wait().Numreplicas(int64(w.Replicas)).Timeout(w.Timeout.Milliseconds()).Build())
		r, wait = rs[0], rs[1]
		return nil
	})
	return r, wait
}

// sleep waits for d. It returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// unavailable wraps an error of a call as [core.ErrUnavailable]. It returns nil for nil and for a nil
// reply.
func unavailable(err error) error {
	switch {
	case err == nil, rueidis.IsRedisNil(err):
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return core.Unavailable(fmt.Errorf("no answer from redis in time: %w", err))
	}
	return core.Unavailable(fmt.Errorf("redis: %w", err))
}

// deadlines hands out contexts with a deadline. Calls that start within timeout/deadlineShare share a
// context, so that a decision needs no timer.
type deadlines struct {
	timeout time.Duration
	current atomic.Pointer[deadline]
}

type deadline struct {
	context.Context
	sharedUntil time.Time // calls that start before use this context
}

// deadlineShare is the fraction of the timeout, 1/20, for which calls share a deadline.
const deadlineShare = 20

// next returns the context of a call that starts now. It ignores the context of the caller: a decision
// that was sent is completed.
func (d *deadlines) next() context.Context {
	now := time.Now()
	if c := d.current.Load(); c != nil && now.Before(c.sharedUntil) {
		return c
	}
	ctx, cancel := context.WithDeadline(context.Background(), now.Add(d.timeout))
	context.AfterFunc(ctx, cancel)
	c := &deadline{ctx, now.Add(d.timeout / deadlineShare)}
	d.current.Store(c)
	return c
}

// withTimeout bounds a call by the timeout of the store. It drops the deadline of the caller, which says
// nothing about the server.
func (s *Store) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), s.o.Timeout)
}

// replicaConns holds the client for calls that wait for replicas. Each such call has its own connection,
// because WAIT blocks all later commands on a connection. The first such call creates the client.
type replicaConns struct {
	client atomic.Pointer[rueidis.Client]
	opens  singleflight.Group
}

// Limits of replicaConns. Each connection is small, as it carries one call at a time.
const (
	maxReplicaConns   = 256 // per master
	replicaConnRing   = 2   // 2^2 entries
	replicaConnBuffer = 16 << 10
	replicaConnIdle   = time.Minute // unused connections are closed after this time
)

func (o *Options) replicaConnOption() rueidis.ClientOption {
	c := o.clientOption()
	c.RingScaleEachConn = replicaConnRing
	c.PipelineMultiplex = -1
	c.ReadBufferEachConn, c.WriteBufferEachConn = replicaConnBuffer, replicaConnBuffer
	c.BlockingPoolSize, c.BlockingPoolCleanup = maxReplicaConns, replicaConnIdle
	return c
}

// get returns the client, and creates it on the first call.
func (w *replicaConns) get(o *Options) (rueidis.Client, error) {
	if c := w.client.Load(); c != nil {
		return *c, nil
	}
	c, err, _ := w.opens.Do("", func() (any, error) {
		if c := w.client.Load(); c != nil {
			return *c, nil
		}
		c, err := rueidis.NewClient(o.replicaConnOption())
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

func (w *replicaConns) close() {
	if c := w.client.Load(); c != nil {
		(*c).Close()
	}
}

// enterWaiting is enter for a call that waits for replicas.
func (n *node) enterWaiting(ctx context.Context) error {
	if err := n.enter(ctx); err != nil {
		return err
	}
	select {
	case n.waits <- struct{}{}:
		return nil
	case <-ctx.Done():
		n.leave(nil)
		return fmt.Errorf("redis at %s: too many calls wait for replicas: %w", n.address, ctx.Err())
	}
}

func (n *node) leaveWaiting(fault error) {
	<-n.waits
	n.leave(fault)
}
