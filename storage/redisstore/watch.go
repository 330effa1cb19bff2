package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
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

	accounts     atomic.Int64 // number of accounts at the last check, removed ones included
	trustedUntil atomic.Int64 // end of the validity of caches, nanoseconds since begun
}

// startWatch starts the watch, and returns after the first ping of each master. It returns an error if the topology is unknown, or if
// no reachable master supports client tracking: the store would report every master as away.
func startWatch(s *Store) error {
	ctx, quit := context.WithCancel(context.Background())
	w := &watch{s: s, begun: time.Now(), quit: quit, masters: map[string]*master{}}
	s.watch = w
	if err := w.refreshTopology(ctx); err != nil {
		return err
	}
	var untracked error
	tracked := 0
	for _, m := range w.masters { // the first ping also finds out whether the store must refuse calls
		<-m.started
		if why := m.away.Load(); why == nil {
			tracked++
		} else if errors.Is(*why, rueidis.ErrNoCache) {
			text, _, _ := strings.Cut((*why).Error(), "\n")
			untracked = fmt.Errorf("CLIENT TRACKING (RESP3): %s", text)
		}
	}
	w.done.Go(func() { every(ctx, watchTopologyEvery, func() { _ = w.refreshTopology(ctx) }) })
	if tracked > 0 {
		return nil
	}
	return untracked
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

// list returns the masters that the store watches, and their losses.
func (w *watch) list() (list []*master, losses []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.masters {
		list, losses = append(list, m), append(losses, m.loss)
	}
	return list, losses
}

// refreshTopology reads which masters exist. It starts watches for new masters and stops the others.
func (w *watch) refreshTopology(ctx context.Context) error {
	sentAt := time.Since(w.begun)
	all, err := w.s.topology(ctx)
	if err != nil {
		return err // keep the known masters; the watch of each notices when it is away
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
	for address, m := range all {
		if w.masters[address] != nil {
			continue
		}
		var own context.Context
		own, m.quit = context.WithCancel(ctx)
		m.away.Store(&errUnchecked)
		w.masters[address] = m
		w.done.Go(func() { m.watch(own) })
	}
	w.trustLocked()
	return nil
}

// trusted reports whether every change up to a moment ago was reported.
func (w *watch) trusted() bool { return int64(time.Since(w.begun)) < w.trustedUntil.Load() }

// trustLocked tells the watcher until when caches are valid: the earliest end over all masters and the
// topology.
func (w *watch) trustLocked() {
	until := int64(w.topologyAt + leaseFor)
	for _, m := range w.masters {
		until = min(until, m.trustedUntil.Load())
	}
	w.trustedUntil.Store(until)
	if w.watcher == nil {
		return
	}
	w.watcher.RenewLease(time.Duration(until) - time.Since(w.begun))
}

var _ core.WatchedStore = (*Store)(nil)
