package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// master is a Redis master. While it is away, calls fail at once. Its watch notices when it is back.
type master struct {
	s          *Store
	address    string
	away       atomic.Pointer[error] // why the master is away; nil while it answers
	lastReply  atomic.Int64          // time of the last answer to its watch, Unix nanoseconds
	calls      chan struct{}         // one element for each running call
	waits      chan struct{}         // one element for each call that waits for replicas
	markNumber atomic.Int64          // number of its mark

	quit    context.CancelFunc // ends the watch
	started chan struct{}      // closed after the first ping
	client  rueidis.Client     // of the watch, with one connection; nil until it is connected

	breaks       atomic.Uint64 // breaks of the connection, on which invalidations may be lost
	trustedUntil atomic.Int64  // end of the validity of caches, nanoseconds since the watch began; 0 from a break to the next answer
	awaySince    time.Time     // time of the first failed ping
	loggedError  string        // last logged error

	checked       time.Duration // time of the last data check, since the watch began
	loss          string        // description of the data loss, "" for none; guarded by watch.mu, like run and warnings
	run           string        // run id at the last check
	warnings      int           // settings that risk the loss of counts
	policy        string        // eviction policy at the last check; evicted counts evicted keys
	evicted       int64
	unwrittenLoss string // found, but not in the mark so far
}

func newMaster(s *Store, address string) *master {
	return &master{s: s, address: address, calls: make(chan struct{}, maxCalls), waits: make(chan struct{}, maxReplicaConns), started: make(chan struct{})}
}

// enter registers a call, unless the node is away. It waits until ctx ends while maxCalls calls are
// running, and maxReplicaConns calls that wait for replicas. The caller must call leave.
func (m *master) enter(ctx context.Context, waits bool) error {
	if why := m.away.Load(); why != nil {
		return fmt.Errorf("redis at %s is away: %w", m.address, *why)
	}
	select {
	case m.running(waits) <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("redis at %s: too many running calls: %w", m.address, ctx.Err())
	}
}

// running returns the channel of the calls that wait for replicas, or of the others.
func (m *master) running(waits bool) chan struct{} {
	if waits {
		return m.waits
	}
	return m.calls
}

// leave unregisters a call. A connection error sets the node away.
func (m *master) leave(fault error, waits bool) {
	<-m.running(waits)
	switch {
	case fault == nil, rueidis.IsRedisNil(fault), errors.Is(fault, context.Canceled):
	case errors.Is(fault, context.DeadlineExceeded) && m.answers(): // only this call is slow
	default:
		m.away.CompareAndSwap(nil, &fault)
	}
}

// answers reports whether the watch has had an answer in the last 200 ms.
func (m *master) answers() bool { return time.Since(time.Unix(0, m.lastReply.Load())) < 2*beat }

// errUnchecked blocks calls to a new master until its data was checked.
var errUnchecked = errors.New("its data was not checked yet")

// watch pings the master until ctx ends.
func (m *master) watch(ctx context.Context) {
	m.beat(ctx)
	close(m.started)
	every(ctx, beat, func() { m.beat(ctx) })
	if m.client != nil {
		m.client.Close()
	}
}

// beat pings the master, checks its data if a check is due, and records the result.
func (m *master) beat(ctx context.Context) {
	breaks, sentAt := m.breaks.Load(), time.Since(m.s.watch.begun)
	err := m.pingAndCheck(ctx, sentAt)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		m.noteError(err)
	default:
		m.noteAnswer(breaks, sentAt)
	}
}

// pingAndCheck pings the master. It also checks the master's data once a second, after each break of the
// connection, and at each beat while the master has a loss.
func (m *master) pingAndCheck(ctx context.Context, sentAt time.Duration) (err error) {
	if m.client == nil {
		if m.client, err = m.connect(); err != nil {
			return err
		}
	}
	m.s.watch.mu.Lock()
	due := m.trustedUntil.Load() == 0 || sentAt-m.checked >= markEvery || m.loss != ""
	m.s.watch.mu.Unlock()
	calls, cancel := context.WithTimeout(ctx, m.s.o.Timeout)
	defer cancel()
	answers := m.client.DoMulti(calls, m.client.B().Ping().Build(), m.client.B().Time().Build())
	if now, err := answers[1].AsIntSlice(); err == nil && len(now) == 2 { // Unix seconds, microseconds
		m.s.o.Clock.Compare(time.Unix(now[0], now[1]*1000))
	}
	if err := answers[0].Error(); err != nil || !due { // not of TIME, which a server answers while it loads data
		return err
	}
	if err := m.check(ctx); err != nil {
		return err
	}
	m.checked = sentAt
	return nil
}

// connect opens the connection with client tracking.
func (m *master) connect() (rueidis.Client, error) {
	o := m.s.o.clientOption()
	o.InitAddress, o.Sentinel, o.ForceSingleClient = []string{m.address}, rueidis.SentinelOption{}, true
	o.RingScaleEachConn = 0
	o.DisableCache, o.CacheSizeEachConn = false, 1<<10
	o.ClientTrackingOptions = []string{"PREFIX", m.s.o.invalidationPrefix(), "BCAST"}
	o.OnInvalidations = m.onInvalidation
	c, err := rueidis.NewClient(o)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// onInvalidation receives changed names. Nil means that the connection broke, and changes may be missing.
func (m *master) onInvalidation(names []rueidis.RedisMessage) {
	if names == nil {
		m.breaks.Add(1)
		m.s.watch.mu.Lock()
		defer m.s.watch.mu.Unlock()
		m.trustedUntil.Store(0)
		m.s.watch.trustLocked()
		return
	}
	m.s.watch.mu.Lock()
	watcher := m.s.watch.watcher
	m.s.watch.mu.Unlock()
	for _, name := range names {
		text, _ := name.ToString()
		c, ok := m.s.o.parseInvalidation(text)
		if ok && c.State {
			m.s.accountStates.Add(1)
		}
		if ok && watcher != nil {
			watcher.Changed(c)
		}
	}
}

// noteAnswer extends the validity of caches after a ping, unless the connection has broken since the ping
// was sent.
func (m *master) noteAnswer(breaks uint64, sentAt time.Duration) {
	m.s.watch.mu.Lock()
	defer m.s.watch.mu.Unlock()
	if m.breaks.Load() != breaks {
		return
	}
	if m.trustedUntil.Load() == 0 {
		m.s.knownAccounts.Clear() // a promoted replica may lack them
		if m.s.watch.watcher != nil {
			m.s.watch.watcher.ChangesMissed()
		}
	}
	m.trustedUntil.Store(int64(sentAt + leaseFor))
	m.s.watch.trustLocked()
	m.lastReply.Store(time.Now().UnixNano())
	m.away.Store(nil)
	if !m.awaySince.IsZero() {
		m.s.o.Logger.Warn("redis is back", "address", m.address, "after", time.Since(m.awaySince).Round(time.Millisecond))
		m.awaySince = time.Time{}
	}
}

// noteError marks the master as away. It logs the first error, and each different error that the server
// reports, such as a wrong password after a broken connection.
func (m *master) noteError(err error) {
	m.away.Store(&err) // also replaces an earlier error
	_, isReply := rueidis.IsRedisErr(err)
	switch {
	case m.awaySince.IsZero():
		m.awaySince = time.Now()
	case !isReply || m.loggedError == err.Error():
		return
	}
	m.loggedError = err.Error()
	m.s.o.Logger.Warn("redis is away", "address", m.address, "error", err)
}
