package webhook

import (
	"context"
	"sync"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

const (
	leaseName     = "webhooks"
	leaseDuration = 15 * time.Second // from each renewal. After a crash of the holder, another process delivers within leaseDuration and leaseRenewal: 20 s
	leaseRenewal  = 5 * time.Second  // between two renewals, and between two tries of another process. After a release, another process delivers within 5 s
)

// lease is the right to deliver, which one process has at a time. If no other process can use the store, this process always has the lease.
type lease struct {
	store  core.LeaseStore // nil if no other process can use the store
	holder string          // identifies this process
}

// acquire waits for the lease, and returns a context that ends with the lease or with ctx. cancel ends the context, and waits for the end of a renewal: the
// store may finish a renewal after the context has ended, and the renewal would take the lease again after release.
func (l *lease) acquire(ctx context.Context) (held context.Context, cancel func()) {
	held, lost := context.WithCancel(ctx)
	if l.store == nil {
		return held, lost
	}
	for !l.renew(ctx) {
		select {
		case <-ctx.Done():
			lost()
			return held, lost
		case <-time.After(leaseRenewal):
		}
	}
	var renewing sync.WaitGroup
	renewing.Go(func() { l.keepRenewing(held, lost) })
	return held, func() {
		lost()
		renewing.Wait()
	}
}

// renew acquires or renews the lease, and reports whether this process has it. An error counts as false: without the store, nothing can be delivered.
func (l *lease) renew(ctx context.Context) bool {
	held, err := l.store.Lease(ctx, leaseName, l.holder, leaseDuration)
	return err == nil && held
}

// keepRenewing renews the lease until ctx ends. It calls lost, which ends ctx, before another process can get the lease.
func (l *lease) keepRenewing(ctx context.Context, lost context.CancelFunc) {
	defer lost()
	renewed := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(leaseRenewal):
		}
		began := time.Now()
		held, err := l.store.Lease(ctx, leaseName, l.holder, leaseDuration)
		switch {
		case err == nil && held:
			renewed = began
		case err == nil, time.Since(renewed) > leaseDuration-leaseRenewal:
			return
		}
	}
}

// release ends the lease, so that another process need not wait for leaseDuration.
func (l *lease) release() {
	if l.store != nil {
		_, _ = l.store.Lease(context.Background(), leaseName, l.holder, 0) // after an error, the lease ends after leaseDuration
	}
}
