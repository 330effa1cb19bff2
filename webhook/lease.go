package webhook

import (
	"context"
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

// acquire waits for the lease, and returns a context that ends with the lease or with ctx.
func (l *lease) acquire(ctx context.Context) (context.Context, context.CancelFunc) {
	held, cancel := context.WithCancel(ctx)
	if l.store == nil {
		return held, cancel
	}
	for !l.renew(ctx) {
		select {
		case <-ctx.Done():
			cancel()
			return held, cancel
		case <-time.After(leaseRenewal):
		}
	}
	go l.keepRenewing(held, cancel)
	return held, cancel
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
