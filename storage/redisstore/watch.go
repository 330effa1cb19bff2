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

// What is in the memory of a process may be relied on as long as the servers tell what
// others change: each master tells it, by client tracking in broadcasting mode, on a
// connection on which it is asked all the time whether it is still there. What it tells
// comes on the same connection before the answer. (Redis: Client-side caching in Redis.)
const (
	beat          = 100 * time.Millisecond // how often a master is asked
	leaseFor      = 800 * time.Millisecond // for how long its answer is relied on, from when it was asked
	meetEvery     = 250 * time.Millisecond // how often it is looked who is a master: relied on for as long
	topologyEvery = time.Second            // how often the client itself asks a Cluster and sentinels
)

// watch is of all masters.
type watch struct {
	s     *Store
	begun time.Time
	quit  context.CancelFunc
	done  sync.WaitGroup

	mu      sync.Mutex
	met     time.Duration // since begun, when it was last asked who is a master
	watcher core.Watcher  // nil until [Store.Watch]
	masters map[string]*master

	accounts atomic.Int64 // how many there were when they were last counted
}

// master is the watch of one master.
type master struct {
	w      *watch
	node   *node
	quit   context.CancelFunc
	client rueidis.Client // of one connection; nil until it is there

	breaks atomic.Uint64 // how often it was not told, or may not have been
	heard  uint64        // breaks, when the watcher was told of them
	sound  atomic.Int64  // until when it is relied on, nanoseconds since the watch began
	silent time.Time     // since when it does not answer
	why    string        // what was last logged about that

	begun    chan struct{} // closed when it was asked for the first time
	checked  time.Duration // since the watch began, when its data was last checked
	verified uint64        // breaks, when it was

	run      string // of the last check, guarded by watch.mu; so are warnings
	warnings int    // that hold
	policy   string // of the last check, and how many keys were evicted by then
	evicted  int64
	unsaid   string // a loss that the mark does not have yet
}

// startWatch begins to watch the masters that there are, and returns when it has asked each of them.
func startWatch(s *Store) {
	ctx, quit := context.WithCancel(context.Background())
	w := &watch{s: s, begun: time.Now(), quit: quit, masters: map[string]*master{}}
	s.watch = w
	w.meet(ctx)
	for _, m := range w.masters { // whether the store refuses is known before it is used
		<-m.begun
	}
	w.done.Go(func() { every(ctx, meetEvery, func() { w.meet(ctx) }) })
}

// every calls fn again and again until the context ends.
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

// meet looks who is a master now, and watches those.
func (w *watch) meet(ctx context.Context) {
	asked := time.Since(w.begun)
	all, err := w.s.topology(ctx)
	if err != nil {
		return // what is known stays; whoever is away is found out by its own watch
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.met = asked
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
		m := &master{w: w, node: n, quit: quit, begun: make(chan struct{})}
		n.away.Store(&errUnchecked)
		w.masters[address] = m
		w.done.Go(func() {
			m.beat(own)
			close(m.begun)
			every(own, beat, func() { m.beat(own) })
			if m.client != nil {
				m.client.Close()
			}
		})
	}
	w.trustLocked()
}

// errUnchecked keeps calls from a new master until its data was checked.
var errUnchecked = errors.New("its data was not checked yet")

// beat asks the master whether it answers, and checks its data when a check is due.
func (m *master) beat(ctx context.Context) {
	breaks, asked := m.breaks.Load(), time.Since(m.w.begun)
	err := m.ask(ctx, breaks, asked)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		m.lost(err)
	default:
		m.answered(breaks, asked)
	}
}

// ask pings the master, and checks its data when a check is due: once a second, after each break of
// the connection, and at each beat while the master has a loss.
func (m *master) ask(ctx context.Context, breaks uint64, asked time.Duration) error {
	m.w.mu.Lock()
	due := m.checked == 0 || asked-m.checked >= markEvery || m.verified != breaks || m.node.loss != ""
	m.w.mu.Unlock()
	if err := m.ping(ctx); err != nil || !due {
		return err
	}
	if err := m.check(ctx); err != nil {
		return err
	}
	m.checked, m.verified = asked, breaks
	return nil
}

// ping asks the master whether it is there and what its clock shows.
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
	return answers[0].Error() // TIME is answered by a server that still loads its data
}

// option returns how to connect to the master, to be told by it.
func (m *master) option() rueidis.ClientOption {
	o := m.w.s.o.clientOption()
	o.InitAddress, o.Sentinel, o.ForceSingleClient = []string{m.node.address}, rueidis.SentinelOption{}, true
	o.PipelineMultiplex = -1 // one connection
	o.RingScaleEachConn = 0
	o.DisableCache, o.CacheSizeEachConn = false, 1<<10
	o.ClientTrackingOptions = []string{"PREFIX", m.w.s.o.tell(), "BCAST"}
	o.OnInvalidations = m.told
	return o
}

// told is called with what was changed, nil when something may have been missed.
func (m *master) told(names []rueidis.RedisMessage) {
	if names == nil {
		m.breaks.Add(1)
		m.w.mu.Lock()
		defer m.w.mu.Unlock()
		m.sound.Store(0)
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
		if c, ok := m.w.s.o.told(text); ok {
			watcher.Changed(c)
		}
	}
}

// answered notes that the master was there, and has told everything, when it was asked;
// unless it may not have been told since.
func (m *master) answered(breaks uint64, asked time.Duration) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	if m.breaks.Load() != breaks {
		return
	}
	if m.heard != breaks || m.sound.Load() == 0 {
		m.w.s.accounts.Clear() // another server may have taken over that does not have them
		if m.w.watcher != nil {
			m.w.watcher.ChangesMissed()
		}
	}
	m.heard = breaks
	m.sound.Store(int64(asked + leaseFor))
	m.w.trustLocked()
	m.node.found()
	if !m.silent.IsZero() {
		m.w.s.o.Logger.Info("redis is back", "address", m.node.address, "after", time.Since(m.silent).Round(time.Millisecond))
		m.silent = time.Time{}
	}
}

// lost notes that the master does not answer. What is wrong is logged once, and again when
// the server says something else: that it takes no password, after a connection that broke.
func (m *master) lost(err error) {
	m.node.away.Store(&err) // whatever it was before
	_, told := rueidis.IsRedisErr(err)
	switch {
	case m.silent.IsZero():
		m.silent = time.Now()
	case !told || m.why == err.Error():
		return
	}
	m.why = err.Error()
	m.w.s.o.Logger.Warn("redis is away", "address", m.node.address, "error", err)
}

// trustLocked says how far the masters can be relied on: as far as each of them, and as
// far as it is known who they are.
func (w *watch) trustLocked() {
	if w.watcher == nil {
		return
	}
	until := int64(w.met + leaseFor)
	for _, m := range w.masters {
		until = min(until, m.sound.Load())
	}
	w.watcher.RenewLease(time.Duration(until) - time.Since(w.begun))
}

var _ core.WatchedStore = (*Store)(nil)
