package redisstore

import (
	"context"
	"crypto/sha1" // EVALSHA names a script by its SHA-1
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
	"golang.org/x/sync/errgroup"

	"github.com/limitkeeper/limitkeeper/core"
)

// calls is a client for commands on keys of one slot. It sends no call to a master that is away, after Redis has lost data, or after
// [Store.Close].
type calls struct {
	rueidis.Client
	s       *Store
	longer  time.Duration // added to the timeout of the store
	writes  bool          // wait for replicas if the settings say so
	current atomic.Pointer[deadline]
}

// deadline is the context of the calls that start until sharedUntil.
type deadline struct {
	context.Context
	timeout     time.Duration
	sharedUntil time.Time
}

// deadlineShare is the fraction of the timeout, 1/20, for which calls share a deadline.
const deadlineShare = 20

// context returns the context of a call that starts now. Calls share it for a short time: one context for each decision takes 5
// allocations and 384 bytes more. It ends with no caller: the deadline of a caller says nothing about the server, and a decision that
// was sent is completed.
func (c *calls) context(timeout time.Duration) context.Context {
	now := time.Now()
	if d := c.current.Load(); d != nil && d.timeout == timeout && now.Before(d.sharedUntil) {
		return d
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	context.AfterFunc(ctx, cancel)
	d := &deadline{ctx, timeout, now.Add(timeout / deadlineShare)}
	c.current.Store(d)
	return d
}

// Do sends a command and waits for the answer until the timeout.
func (c *calls) Do(_ context.Context, cmd rueidis.Completed) (r rueidis.RedisResult) {
	s, wait, timeout := c.s, c.s.wait.Load(), c.s.o.Timeout+c.longer
	if err := s.begin(); err != nil {
		return rueidis.NewErrorResult(err)
	}
	defer s.end()
	waits := c.writes && wait.Replicas > 0
	if waits {
		timeout += wait.Timeout
	}
	ctx, m := c.context(timeout), s.masters.ofSlot(cmd.Slot())
	if err := m.enter(ctx, waits); err != nil {
		return rueidis.NewErrorResult(err)
	}
	began := time.Now()
	var confirmed rueidis.RedisResult
	if waits {
		r, confirmed = s.sendWithWait(ctx, cmd, wait)
	} else {
		r = s.client.Do(ctx, cmd)
	}
	s.observe(began, r.NonRedisError())
	m.leave(r.NonRedisError(), waits)
	if s.noteReply(r.Error()); !waits || r.Error() != nil {
		return r
	}
	s.noteReply(confirmed.Error())
	if has, err := confirmed.AsInt64(); err != nil {
		return rueidis.NewErrorResult(fmt.Errorf("waiting for %d replicas: %w", wait.Replicas, err))
	} else if has < int64(wait.Replicas) {
		return rueidis.NewErrorResult(fmt.Errorf("%d of %d replicas confirmed the write within %v", has, wait.Replicas, wait.Timeout))
	}
	return r
}

// DoMulti sends commands that only read, each to its master.
func (c *calls) DoMulti(_ context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	if err := c.s.begin(); err != nil {
		return []rueidis.RedisResult{rueidis.NewErrorResult(err)}
	}
	defer c.s.end()
	for _, cmd := range cmds {
		if why := c.s.masters.ofSlot(cmd.Slot()).away.Load(); why != nil {
			return []rueidis.RedisResult{rueidis.NewErrorResult(*why)}
		}
	}
	began := time.Now()
	results := c.s.client.DoMulti(c.context(c.s.o.Timeout), cmds...)
	c.s.observe(began, results[0].NonRedisError())
	return results
}

// observe reports a call to Redis. fault is the error of a call without an answer.
func (s *Store) observe(began time.Time, fault error) {
	if s.o.OnCall != nil {
		s.o.OnCall(time.Since(began), fault)
	}
}

// forLonger returns a client for writes whose timeout is longer.
func (s *Store) forLonger(d time.Duration) *calls {
	return &calls{Client: s.client, s: s, longer: d, writes: true}
}

// do sends a command that need not wait for replicas.
func (s *Store) do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	return s.reads.Do(ctx, cmd)
}

// maxParallel is the maximum number of parallel calls for one call of the store.
const maxParallel = 64

// parallel calls fn n times in parallel, and returns the first error.
func parallel(n int, fn func(i int) error) error {
	var g errgroup.Group
	g.SetLimit(maxParallel)
	for i := range n {
		g.Go(func() error { return fn(i) })
	}
	return g.Wait()
}

// confirm waits until the replicas have everything that a slot has now. It waits for as many replicas as a write does. It writes a key of its own, because WAIT
// covers only what happened before the last write of its connection. The first command is a deletion, so that it works with full memory.
func (s *Store) confirm(ctx context.Context, n keySlot) error {
	if s.wait.Load().Replicas == 0 {
		return nil
	}
	b := newBatchOf(n.key("version")) // which it does not change
	b.add("DEL", n.key("confirm"))
	b.add("SET", n.key("confirm"), "", "PX", "1")
	return unavailable(batchScript.run(ctx, s.writes, b.keys, b.args).Error())
}

// maxRedirects is how often sendWithWait follows a MOVED redirect. A redirected command has not run.
const maxRedirects = 5

// sendWithWait sends a command followed by WAIT on a dedicated connection.
func (s *Store) sendWithWait(ctx context.Context, cmd rueidis.Completed, w *Wait) (r, wait rueidis.RedisResult) {
	client, err := s.replicaConns.get(&s.o)
	if err != nil {
		return rueidis.NewErrorResult(err), rueidis.NewErrorResult(err)
	}
	cmd = cmd.Pin()
	for range maxRedirects {
		_ = client.Dedicated(func(c rueidis.DedicatedClient) error {
			rs := c.DoMulti(ctx, cmd, c.B().Wait().Numreplicas(int64(w.Replicas)).Timeout(w.Timeout.Milliseconds()).Build())
			r, wait = rs[0], rs[1]
			return nil
		})
		reply, isReply := rueidis.IsRedisErr(r.Error())
		if !isReply {
			break
		}
		if _, moved := reply.IsMoved(); !moved {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	return r, wait
}

// unavailable wraps an error of a call as [core.ErrUnavailable]. It returns nil for nil and for a nil
// reply.
func unavailable(err error) error {
	switch {
	case err == nil, rueidis.IsRedisNil(err):
		return nil
	case errors.Is(err, core.ErrUnavailable): // of begin
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return core.Unavailable(fmt.Errorf("no answer from redis in time: %w", err))
	}
	return core.Unavailable(fmt.Errorf("redis: %w", err))
}

// replicaConns holds the client for calls that wait for replicas. Each such call has its own connection,
// because WAIT blocks all later commands on a connection. The first such call creates the client.
type replicaConns struct {
	mu     sync.Mutex
	client rueidis.Client
}

// Limits of replicaConns. Each connection is small, as it carries one call at a time.
const (
	maxReplicaConns   = 256 // per master
	replicaConnRing   = 2   // 2^2 entries
	replicaConnBuffer = 16 << 10
	replicaConnIdle   = time.Minute // unused connections are closed after this time
)

// get returns the client, and creates it on the first call.
func (w *replicaConns) get(o *Options) (rueidis.Client, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.client == nil {
		c := o.clientOption()
		c.RingScaleEachConn = replicaConnRing
		c.ReadBufferEachConn, c.WriteBufferEachConn = replicaConnBuffer, replicaConnBuffer
		c.BlockingPoolSize, c.BlockingPoolCleanup = maxReplicaConns, replicaConnIdle
		client, err := rueidis.NewClient(c)
		if err != nil {
			return nil, err
		}
		w.client = client
	}
	return w.client, nil
}

func (w *replicaConns) close() {
	if w.client != nil {
		w.client.Close()
	}
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

// run runs the script, and sends its text if the server does not have it.
func (c *script) run(ctx context.Context, client rueidis.Client, keys, args []string) rueidis.RedisResult {
	r := client.Do(ctx, c.command(client.B(), true, keys, args))
	if notLoaded(r) {
		return client.Do(ctx, c.command(client.B(), false, keys, args))
	}
	return r
}

// command runs the script by its SHA-1 or, unless it is loaded, by its text.
func (c *script) command(b rueidis.Builder, loaded bool, keys, args []string) rueidis.Completed {
	if loaded {
		return b.Evalsha().Sha1(c.sha).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
	}
	return b.Eval().Script(c.text).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
}

// notLoaded reports whether the server does not have the script: it is new, was flushed, or was not on the
// promoted replica.
func notLoaded(r rueidis.RedisResult) bool {
	err, ok := rueidis.IsRedisErr(r.Error())
	return ok && err.IsNoScript()
}

//go:embed scripts/*.lua
var scriptFiles embed.FS

var (
	consumeScript        = newScript("shared", "hours", "day_counts", "consume")
	consumeMoreScript    = newScript("shared", "hours", "day_counts", "meter_days", "holds", "consume") // meter_days and holds have functions; consumeScript does without, because each run of a script creates its functions
	settleScript         = newScript("shared", "hours", "day_counts", "meter_days", "holds", "settle")
	extendHoldScript     = newScript("shared", "hours", "day_counts", "holds", "extend_hold")
	reserveHoldScript    = newScript("reserve_hold")
	readHistoryScript    = newScript("shared", "read_history")
	importHistoryScript  = newScript("shared", "import_history")
	batchScript          = newScript("batch")
	createCountersScript = newScript("create_counters")
	setCounterScript     = newScript("shared", "hours", "day_counts", "today", "set_counter")
	deleteCounterScript  = newScript("shared", "hours", "day_counts", "holds", "delete_counter")
	moveBeginScript      = newScript("shared", "tombstone", "hours", "day_counts", "holds", "move_begin")
	moveCopyScript       = newScript("shared", "tombstone", "move_copy")
	moveEndScript        = newScript("shared", "tombstone", "move_end")
	readDaysScript       = newScript("read_days")
	setDaysScript        = newScript("shared", "hours", "day_counts", "today", "set_days")
	claimDigestScript    = newScript("claim_digest")
	releaseDigestScript  = newScript("release_digest")
	markScript           = newScript("mark")
	rankScript           = newScript("rank")
	leaseScript          = newScript("lease")
)
