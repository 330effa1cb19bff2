package redisstore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/limitkeeper/limitkeeper/core"
)

// Caches of this process are valid while every master reports the changes of other processes. Each master
// does so with client tracking in broadcast mode, on a connection that is pinged every 100 ms.
// Invalidations arrive on that connection before the answer to a later ping. (Redis documentation:
// Client-side caching.)
const (
	beat               = 100 * time.Millisecond // interval between pings
	leaseFor           = 800 * time.Millisecond // validity of caches after a ping was sent
	watchTopologyEvery = 250 * time.Millisecond // interval between readings of the topology
	topologyEvery      = time.Second            // interval at which the Redis client itself reads the topology
)

// watch watches all masters.
type watch struct {
	s     *Store
	begun time.Time
	quit  context.CancelFunc
	done  sync.WaitGroup

	mu         sync.Mutex
	topologyAt time.Duration // start of the last successful reading, since begun
	watcher    core.Watcher  // nil until [Store.Watch]
	masters    map[string]*master

	accounts atomic.Int64 // number of accounts at the last check
}

// master is the watch of one master.
type master struct {
	w      *watch
	node   *node
	quit   context.CancelFunc
	client rueidis.Client // with one connection; nil until it is connected

	breaks         atomic.Uint64 // breaks of the connection, on which invalidations may be lost
	notifiedBreaks uint64        // breaks of which the watcher was told
	trustedUntil   atomic.Int64  // end of the validity of caches, nanoseconds since the watch began
	awaySince      time.Time     // time of the first failed ping
	loggedError    string        // last logged error

	started  chan struct{} // closed after the first ping
	checked  time.Duration // time of the last data check, since the watch began
	verified uint64        // breaks at that check

	run           string // run id at the last check; guarded by watch.mu, like warnings
	warnings      int    // settings that risk the loss of counts
	policy        string // eviction policy at the last check; evicted counts evicted keys
	evicted       int64
	unwrittenLoss string // found, but not in the mark so far
}

// startWatch starts the watch, and returns after the first ping of each master.
func startWatch(s *Store) {
	ctx, quit := context.WithCancel(context.Background())
	w := &watch{s: s, begun: time.Now(), quit: quit, masters: map[string]*master{}}
	s.watch = w
	w.refreshTopology(ctx)
	for _, m := range w.masters { // the first ping also finds out whether the store must refuse calls
		<-m.started
	}
	w.done.Go(func() { every(ctx, watchTopologyEvery, func() { w.refreshTopology(ctx) }) })
}

// every calls fn at each interval until ctx ends.
func every(ctx context.Context, d time.Duration, fn func()) {
	t := time.NewTicker(d)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			fn()
		}
	}
}

func (w *watch) stop() {
	w.quit()
	w.done.Wait()
}

// Watch implements [core.WatchedStore].
func (s *Store) Watch(watcher core.Watcher) {
	s.watch.mu.Lock()
	defer s.watch.mu.Unlock()
	s.watch.watcher = watcher
	watcher.ChangesMissed()
	s.watch.trustLocked()
}

// masterNodes returns the masters that the store watches.
func (s *Store) masterNodes() (list []*node) {
	s.watch.mu.Lock()
	defer s.watch.mu.Unlock()
	for _, m := range s.watch.masters {
		list = append(list, m.node)
	}
	return list
}

// refreshTopology reads which masters exist. It starts watches for new masters and stops the others.
func (w *watch) refreshTopology(ctx context.Context) {
	sentAt := time.Since(w.begun)
	all, err := w.s.topology(ctx)
	if err != nil {
		return // keep the known masters; the watch of each notices when it is away
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.topologyAt = sentAt
	for address, m := range w.masters {
		if _, still := all[address]; !still {
			m.quit()
			delete(w.masters, address)
			w.refuseLocked()
		}
	}
	for address, n := range all {
		if w.masters[address] != nil {
			continue
		}
		own, quit := context.WithCancel(ctx)
		m := &master{w: w, node: n, quit: quit, started: make(chan struct{})}
		n.away.Store(&errUnchecked)
		w.masters[address] = m
		w.done.Go(func() {
			m.beat(own)
			close(m.started)
			every(own, beat, func() { m.beat(own) })
			if m.client != nil {
				m.client.Close()
			}
		})
	}
	w.trustLocked()
}

// errUnchecked blocks calls to a new master until its data was checked.
var errUnchecked = errors.New("its data was not checked yet")

// beat pings the master, checks its data if a check is due, and records the result.
func (m *master) beat(ctx context.Context) {
	breaks, sentAt := m.breaks.Load(), time.Since(m.w.begun)
	err := m.pingAndCheck(ctx, breaks, sentAt)
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
func (m *master) pingAndCheck(ctx context.Context, breaks uint64, sentAt time.Duration) error {
	m.w.mu.Lock()
	due := m.checked == 0 || sentAt-m.checked >= markEvery || m.verified != breaks || m.node.loss != ""
	m.w.mu.Unlock()
	if err := m.ping(ctx); err != nil || !due {
		return err
	}
	if err := m.check(ctx); err != nil {
		return err
	}
	m.checked, m.verified = sentAt, breaks
	return nil
}

// ping sends PING and TIME.
func (m *master) ping(ctx context.Context) (err error) {
	if m.client == nil {
		if m.client, err = rueidis.NewClient(m.option()); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, m.w.s.o.Timeout)
	defer cancel()
	answers := m.client.DoMulti(ctx, m.client.B().Ping().Build(), m.client.B().Time().Build())
	if now, err := answers[1].AsIntSlice(); err == nil && len(now) == 2 { // Unix seconds, microseconds
		m.w.s.o.Clock.Compare(time.Unix(now[0], now[1]*1000))
	}
	return answers[0].Error() // not of TIME, which a server answers while it loads data
}

// option returns the client options for the connection with client tracking.
func (m *master) option() rueidis.ClientOption {
	o := m.w.s.o.clientOption()
	o.InitAddress, o.Sentinel, o.ForceSingleClient = []string{m.node.address}, rueidis.SentinelOption{}, true
	o.PipelineMultiplex = -1 // one connection
	o.RingScaleEachConn = 0
	o.DisableCache, o.CacheSizeEachConn = false, 1<<10
	o.ClientTrackingOptions = []string{"PREFIX", m.w.s.o.invalidationPrefix(), "BCAST"}
	o.OnInvalidations = m.onInvalidation
	return o
}

// onInvalidation receives changed names. Nil means that the connection broke, and changes may be missing.
func (m *master) onInvalidation(names []rueidis.RedisMessage) {
	if names == nil {
		m.breaks.Add(1)
		m.w.mu.Lock()
		defer m.w.mu.Unlock()
		m.trustedUntil.Store(0)
		m.w.trustLocked()
		return
	}
	m.w.mu.Lock()
	watcher := m.w.watcher
	m.w.mu.Unlock()
	if watcher == nil {
		return
	}
	for _, name := range names {
		text, _ := name.ToString()
		if c, ok := m.w.s.o.parseInvalidation(text); ok {
			watcher.Changed(c)
		}
	}
}

// noteAnswer extends the validity of caches after a ping, unless the connection has broken since the ping
// was sent.
func (m *master) noteAnswer(breaks uint64, sentAt time.Duration) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	if m.breaks.Load() != breaks {
		return
	}
	if m.notifiedBreaks != breaks || m.trustedUntil.Load() == 0 {
		m.w.s.knownAccounts.Clear() // a promoted replica may lack them
		if m.w.watcher != nil {
			m.w.watcher.ChangesMissed()
		}
	}
	m.notifiedBreaks = breaks
	m.trustedUntil.Store(int64(sentAt + leaseFor))
	m.w.trustLocked()
	m.node.setBack()
	if !m.awaySince.IsZero() {
		m.w.s.o.Logger.Warn("redis is back", "address", m.node.address, "after", time.Since(m.awaySince).Round(time.Millisecond))
		m.awaySince = time.Time{}
	}
}

// noteError marks the master as away. It logs the first error, and each different error that the server
// reports, such as a wrong password after a broken connection.
func (m *master) noteError(err error) {
	m.node.away.Store(&err) // also replaces an earlier error
	_, isReply := rueidis.IsRedisErr(err)
	switch {
	case m.awaySince.IsZero():
		m.awaySince = time.Now()
	case !isReply || m.loggedError == err.Error():
		return
	}
	m.loggedError = err.Error()
	m.w.s.o.Logger.Warn("redis is away", "address", m.node.address, "error", err)
}

// trustLocked tells the watcher until when caches are valid: the earliest end over all masters and the
// topology.
func (w *watch) trustLocked() {
	if w.watcher == nil {
		return
	}
	until := int64(w.topologyAt + leaseFor)
	for _, m := range w.masters {
		until = min(until, m.trustedUntil.Load())
	}
	w.watcher.RenewLease(time.Duration(until) - time.Since(w.begun))
}

var _ core.WatchedStore = (*Store)(nil)
