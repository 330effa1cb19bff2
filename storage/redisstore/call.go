package redisstore

import (
	"context"
	"crypto/sha1" // EVALSHA names a script by its SHA-1
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
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
	s.noteReply(r.Error())
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
	if s.noteReply(r.Error()); r.Error() != nil {
		return r
	}
	s.noteReply(wait.Error())
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

// script is a Lua script. The server runs it by its SHA-1.
type script struct{ text, sha string }

// newScript joins files of the directory scripts, named without extension.
func newScript(files ...string) *script {
	var text strings.Builder
	for _, f := range files {
		b, err := scriptFiles.ReadFile("scripts/" + f + ".lua")
		if err != nil {
			panic(err) // a misspelled name below
		}
		text.Write(b)
	}
	sum := sha1.Sum([]byte(text.String()))
	return &script{text.String(), hex.EncodeToString(sum[:])}
}

//go:embed scripts/*.lua
var scriptFiles embed.FS

var (
	consumeScript        = newScript("shared", "day_counts", "consume")
	readHistoryScript    = newScript("shared", "read_history")
	importHistoryScript  = newScript("shared", "import_history")
	batchScript          = newScript("batch")
	createCountersScript = newScript("create_counters")
	setCounterScript     = newScript("shared", "day_counts", "set_counter")
	deleteCounterScript  = newScript("delete_counter")
	moveBeginScript      = newScript("tombstone", "move_begin")
	moveCopyScript       = newScript("tombstone", "move_copy")
	moveEndScript        = newScript("tombstone", "move_end")
	readDaysScript       = newScript("read_days")
	setDaysScript        = newScript("set_days")
	claimDigestScript    = newScript("claim_digest")
	releaseDigestScript  = newScript("release_digest")
	markScript           = newScript("mark")
)

// read runs a script that writes nothing.
func (c *script) read(ctx context.Context, s *Store, keys, args []string) rueidis.RedisResult {
	r := s.do(ctx, c.bySHA(s, keys, args))
	if notLoaded(r) {
		return s.do(ctx, c.byText(s, keys, args))
	}
	return r
}

// readEach runs a script that writes nothing in parallel, once for each element of keys and args.
func (c *script) readEach(ctx context.Context, s *Store, keys, args [][]string) []rueidis.RedisResult {
	cmds := make([]rueidis.Completed, len(keys))
	for i := range keys {
		cmds[i] = c.bySHA(s, keys[i], args[i])
	}
	results := s.doMany(ctx, cmds)
	for i, r := range results {
		if notLoaded(r) {
			results[i] = c.read(ctx, s, keys[i], args[i])
		}
	}
	return results
}

// write runs a script that writes, and waits for replicas if the settings say so.
func (c *script) write(ctx context.Context, s *Store, keys, args []string) rueidis.RedisResult {
	r := s.doWrite(ctx, c.bySHA(s, keys, args))
	if notLoaded(r) {
		return s.doWrite(ctx, c.byText(s, keys, args))
	}
	return r
}

// notLoaded reports whether the server does not have the script: it is new, was flushed, or was not on the
// promoted replica. The caller then sends the text.
func notLoaded(r rueidis.RedisResult) bool {
	err, ok := rueidis.IsRedisErr(r.Error())
	return ok && err.IsNoScript()
}

func (c *script) bySHA(s *Store, keys, args []string) rueidis.Completed {
	return s.client.B().Evalsha().Sha1(c.sha).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
}

func (c *script) byText(s *Store, keys, args []string) rueidis.Completed {
	return s.client.B().Eval().Script(c.text).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
}
