package webhook

import (
	"context"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// After a crash of the holder, another process delivers within leaseTime and leaseRenew: 20 seconds. After the holder has given the lease back, within
// leaseRenew.
const (
	leaseName  = "webhooks"
	leaseTime  = 15 * time.Second // validity of the lease from each renewal
	leaseRenew = 5 * time.Second  // between two renewals, and between two attempts of another process to get the lease
)

// lease is the right to deliver. Without a store that several processes use, this process always has it.
type lease struct {
	store  core.LeaseStore // nil if no other process uses the store
	holder string
}

// wait waits for the lease, and returns a context that ends with the lease or with ctx.
func (l *lease) wait(ctx context.Context) (context.Context, context.CancelFunc) {
	held, cancel := context.WithCancel(ctx)
	if l.store == nil {
		return held, cancel
	}
	for !l.renew(ctx) {
		select {
		case <-ctx.Done():
			cancel()
			return held, cancel
		case <-time.After(leaseRenew):
		}
	}
	go l.keep(held, cancel)
	return held, cancel
}

// renew reports whether this process has the lease now. It returns false after an error: without the store, nothing can be delivered either.
func (l *lease) renew(ctx context.Context) bool {
	held, err := l.store.Lease(ctx, leaseName, l.holder, leaseTime)
	return err == nil && held
}

// keep renews the lease until ctx ends. It calls lost, which ends ctx, before another process can get the lease.
func (l *lease) keep(ctx context.Context, lost context.CancelFunc) {
	defer lost()
	renewed := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(leaseRenew):
		}
		began := time.Now()
		held, err := l.store.Lease(ctx, leaseName, l.holder, leaseTime)
		switch {
		case err == nil && held:
			renewed = began
		case err == nil, time.Since(renewed) > leaseTime-leaseRenew:
			return
		}
	}
}

// release gives the lease back, so that another process need not wait for leaseTime.
func (l *lease) release() {
	if l.store != nil {
		_, _ = l.store.Lease(context.Background(), leaseName, l.holder, 0) // after an error the lease ends after leaseTime
	}
}
