package webhook_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
	"github.com/limitkeeper/limitkeeper/webhook"
)

// slowLeases is a store that grants one lease. Each call takes a second before it takes effect, except the first call and a release. A call that has
// begun takes effect even if its context ends, as in Redis.
type slowLeases struct {
	core.Store

	mu     sync.Mutex // guards the members below
	calls  int
	holder string // "" for none
}

func (s *slowLeases) Lease(_ context.Context, _, holder string, d time.Duration) (held bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls++; s.calls > 1 && d > 0 {
		s.mu.Unlock()
		time.Sleep(time.Second)
		s.mu.Lock()
	}
	if s.holder != "" && s.holder != holder {
		return false, nil
	}
	if s.holder = holder; d == 0 {
		s.holder = ""
	}
	return d > 0, nil
}

func (s *slowLeases) Confirm(context.Context, string) error { return nil }

// state returns the number of calls, and the holder.
func (s *slowLeases) state() (calls int, holder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls, s.holder
}

var _ core.LeaseStore = (*slowLeases)(nil)

// A process that stops during a renewal leaves no lease. When this fails, another process waits 15 s for the lease after each such stop.
func TestStopDuringRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowLeases{Store: memstore.New()}
		sender := webhook.NewSender("Limitkeeper/test", time.Second)
		defer sender.Close()
		d := webhook.New(webhook.Options{Service: service.New(store, service.Config{}), Store: store, Sender: sender})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { d.Run(ctx) })
		for calls := 0; calls < 2; calls, _ = store.state() { // the second call is a renewal
			time.Sleep(100 * time.Millisecond)
		}
		cancel()
		running.Wait()
		time.Sleep(time.Minute) // a renewal that still runs takes effect
		if calls, holder := store.state(); calls != 3 || holder != "" {
			t.Errorf("after the stop: got %d calls and the holder %q, want 3 calls, the last a release, and no holder", calls, holder)
		}
	})
}
