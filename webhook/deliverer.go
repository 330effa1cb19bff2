package webhook

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
)

const (
	maxAttempts   = 512             // attempts that run at once, of all webhooks. Half of them are reserved for webhooks without a running attempt
	maxPerWebhook = 4               // attempts that run at once, of one webhook. An account with so many starts no second attempt of a webhook
	scanInterval  = 5 * time.Minute // between two reads of all accounts. Changed accounts are read at once
	scanRetry     = 5 * time.Second // from an error of the store to the next read of all accounts
	maxSleep      = time.Minute     // between two searches for due events

	maxScanFailures = 10 // accounts that cannot be read, until a read of all accounts ends: each may take the timeout of the store
)

// Options configure a [Deliverer]. Service, Store and Sender are required.
type Options struct {
	Service *service.Service
	Store   core.Store // the store of the service. A [core.LeaseStore] grants the lease to one process
	Sender  *Sender
	Logger  *slog.Logger

	MaxPending int // the bound of the pending events of an account. Default: [core.MaxPendingEvents]
	MaxEvents  int // the bound of the events that an account remembers. Default: [core.MaxEvents]
}

// Deliverer delivers the events of all accounts. Each webhook may have one request at a time, so a slow receiver delays only its own events. A webhook may
// have up to 4 requests of different subjects while its account has fewer than 4. After a failure, a webhook has one request at a time until a success.
type Deliverer struct {
	o          Options
	lease      lease
	wake       chan struct{}  // Wake puts an element: deliver searches for due events
	wakeFeed   chan struct{}  // Wake puts an element: feed searches for ended hours
	ended      chan attempt   // the attempts that have ended
	background sync.WaitGroup // the attempts, sweep and feed

	// Only the goroutine of deliver uses these members.
	queues          map[queueID]*queue
	known           map[string]map[string]bool // by account: the webhooks that may have events
	unread          map[string]bool            // the accounts that the last scan could not read
	running         map[queueID]runningEvents  // the attempts of each webhook, also of a webhook without a queue
	accountAttempts map[string]int             // the number of running attempts by account
	freeSlots       int                        // attempts that may still start

	tests sync.Map // the accounts with a running test

	delivered, failed, givenUp, dropped atomic.Int64
	pending                             atomic.Int64
}

type queueID struct{ account, webhook string }

// attempt is an attempt to deliver an event. Its last three members are set when it ends.
type attempt struct {
	queueID
	event          string
	failuresBefore int // failures in a row of the webhook when the attempt began

	result *core.Attempt // nil if the event no longer waits
	hook   *core.Webhook // the webhook as last read or stored; nil if it is deleted
	err    error         // an error of the store
}

// New returns a deliverer. It delivers nothing until Run is called.
func New(o Options) *Deliverer {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.MaxPending <= 0 {
		o.MaxPending = core.MaxPendingEvents
	}
	if o.MaxEvents <= 0 {
		o.MaxEvents = core.MaxEvents
	}
	store, _ := o.Store.(core.LeaseStore)
	return &Deliverer{o: o, lease: lease{store: store, holder: secrets.NewID("node_")}, wake: make(chan struct{}, 1), wakeFeed: make(chan struct{}, 1),
		ended: make(chan attempt, maxAttempts)}
}

// Stats are numbers of deliveries since the process started. Pending is the present number of pending deliveries, 0 while another process has the lease.
// An event counts once for each webhook.
type Stats struct{ Delivered, Failed, GivenUp, Dropped, Pending int64 }

// Stats returns the present numbers.
func (d *Deliverer) Stats() Stats {
	return Stats{d.delivered.Load(), d.failed.Load(), d.givenUp.Load(), d.dropped.Load(), d.pending.Load()}
}

// Wake makes the deliverer search for due events and ended hours at once. Call it after a step of the clock.
func (d *Deliverer) Wake() {
	for _, c := range []chan struct{}{d.wake, d.wakeFeed} {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// Run delivers events until ctx ends, while this process has the lease. It returns after all requests have ended.
func (d *Deliverer) Run(ctx context.Context) {
	for ctx.Err() == nil {
		held, cancel := d.lease.acquire(ctx)
		d.deliver(held)
		cancel()
	}
	d.lease.release()
}

// deliver delivers events, sweeps events and writes the usage feed until ctx ends.
func (d *Deliverer) deliver(ctx context.Context) {
	d.queues, d.known, d.unread = map[queueID]*queue{}, map[string]map[string]bool{}, map[string]bool{}
	d.running, d.accountAttempts, d.freeSlots = map[queueID]runningEvents{}, map[string]int{}, maxAttempts
	d.background.Go(func() { d.sweep(ctx) })
	d.background.Go(func() { d.feed(ctx) })
	defer func() {
		for d.background.Wait(); len(d.ended) > 0; {
			<-d.ended
		}
		d.pending.Store(0)
	}()
	nextScan := time.Now() // of all accounts
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
		case <-timer.C:
		case a := <-d.ended:
			d.handleError(ctx, d.end(ctx, a), &nextScan)
		case <-d.o.Service.WebhooksChanged():
			accounts, all := d.o.Service.ChangedWebhooks()
			if all {
				nextScan = time.Now()
				for _, q := range d.queues {
					q.readAgain() // a failover may have lost events, and given their Seq to new events. A queue reads only events behind its last Seq
				}
			}
			for _, id := range accounts {
				d.handleError(ctx, d.load(ctx, id), &nextScan)
			}
		}
		if !time.Now().Before(nextScan) {
			nextScan = time.Now().Add(scanInterval)
			d.handleError(ctx, d.scan(ctx), &nextScan)
		}
		d.handleError(ctx, d.refill(ctx), &nextScan)
		sleep := min(time.Until(nextScan), d.startDue(ctx))
		timer.Reset(max(0, sleep))
	}
}

// handleError logs an error of the store, and sets nextScan to scanRetry from now.
func (d *Deliverer) handleError(ctx context.Context, err error, nextScan *time.Time) {
	if err != nil && ctx.Err() == nil {
		d.o.Logger.Warn("the events that wait for webhooks cannot be read", "error", err)
		*nextScan = time.Now().Add(scanRetry)
	}
}

// scan loads all accounts. An account that cannot be read, as while a node of a Redis Cluster is down, does not keep the others from being read: the next
// scan reads it last. The error is the first one.
func (d *Deliverer) scan(ctx context.Context) error {
	before, failures := d.unread, 0
	d.unread = maps.Clone(before)
	var first error
	load := func(account string) error {
		err := d.load(ctx, account)
		if err == nil {
			delete(d.unread, account)
			return nil
		}
		d.unread[account] = true
		first = cmp.Or(first, err)
		if failures++; failures == maxScanFailures || ctx.Err() != nil {
			return first
		}
		return nil
	}
	err := d.o.Service.EachAccount(ctx, func(a *core.Account) error {
		if before[a.ID] {
			return nil
		}
		return load(a.ID)
	})
	for account := range before { // the order of a map is random, so each account is read first at times
		if err == nil {
			err = load(account)
		}
	}
	return cmp.Or(err, first)
}

// sweep deletes the events that the accounts need not remember, until ctx ends. It has its own goroutine, so that millions of old events delay no delivery.
func (d *Deliverer) sweep(ctx context.Context) {
	next := map[string]core.Date{} // by account: the day from which the next sweep continues
	for {
		err := d.o.Service.EachAccount(ctx, func(a *core.Account) (err error) {
			if a.Incomplete() || a.Deleting {
				return nil
			}
			if next[a.ID], err = d.o.Service.SweepEvents(ctx, a.ID, next[a.ID], d.o.MaxEvents); err != nil && ctx.Err() == nil {
				d.o.Logger.Warn("the events that an account need not remember cannot be deleted", "account", a.ID, "error", err)
			}
			return ctx.Err()
		})
		if err != nil && ctx.Err() == nil {
			d.o.Logger.Warn("the accounts cannot be read for the deletion of events", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(scanInterval):
		}
	}
}

// load reads the webhooks of an account, and fills their queues. It ends the deliveries of webhooks that are disabled or deleted.
func (d *Deliverer) load(ctx context.Context, account string) error {
	switch a, err := d.o.Store.Account(ctx, account); {
	case errors.Is(err, core.ErrAccountNotFound):
		d.forget(account)
		return nil
	case err != nil:
		return err
	case a.Incomplete() || a.Closed():
		d.forget(account)
		return nil
	}
	dropped, err := d.o.Service.DropExcess(ctx, account, d.o.MaxPending)
	if d.dropped.Add(int64(dropped)); dropped > 0 {
		d.o.Logger.Warn("too many events wait for webhooks: the oldest are dropped", "account", account, "dropped", dropped)
	}
	if err != nil {
		return err
	}
	webhooks, _, err := d.o.Service.Webhooks(ctx, account, core.Page{Number: 1, Size: core.MaxWebhooks})
	if err != nil {
		return err
	}
	deleted := d.known[account]
	d.known[account] = map[string]bool{}
	for _, w := range webhooks {
		d.known[account][w.ID] = true
		delete(deleted, w.ID)
		if w.Inactive {
			if err := d.endDeliveries(ctx, account, w.ID); err != nil {
				return err
			}
			continue
		}
		id := queueID{account, w.ID}
		if d.queues[id] == nil {
			d.queues[id] = &queue{queueID: id}
		}
		if err := d.fill(ctx, d.queues[id], max(0, maxQueued-len(d.queues[id].waiting))); err != nil {
			return err
		}
	}
	for id := range deleted {
		if err := d.endDeliveries(ctx, account, id); err != nil {
			return err
		}
	}
	if len(webhooks) == 0 {
		delete(d.known, account)
	}
	d.publishPending()
	return nil
}

// forget removes the queues of an account that is closed, incomplete or missing. The events stay in the store.
func (d *Deliverer) forget(account string) {
	for id := range d.known[account] {
		delete(d.queues, queueID{account, id})
	}
	delete(d.known, account)
}

// endDeliveries ends the deliveries of a webhook that is disabled or deleted.
func (d *Deliverer) endDeliveries(ctx context.Context, account, webhook string) error {
	delete(d.queues, queueID{account, webhook})
	return d.o.Service.EndUnwanted(ctx, account, webhook)
}

// fill reads the next n events into a queue.
func (d *Deliverer) fill(ctx context.Context, q *queue, n int) error {
	list, total, err := d.o.Service.PendingEvents(ctx, q.account, q.webhook, q.last, n)
	if err == nil && len(list) > 0 && d.lease.store != nil { // a failover could lose an event after its delivery, and the event could come again with other figures
		err = d.lease.store.Confirm(ctx, q.account)
	}
	if err == nil {
		q.add(list, total)
		q.more = len(list) == n
		q.check(len(d.running[q.queueID]) > 0)
	}
	return err
}

// refill reads further events into the queues that are half empty or stuck, or must be checked again. A queue that cannot be read waits for the next scan, so that
// it delays no other one. The error is the first one.
func (d *Deliverer) refill(ctx context.Context) (first error) {
	now := d.o.Service.Now()
	for _, q := range d.queues {
		if err := d.refillQueue(ctx, q, now); err != nil {
			q.more, q.recheck = false, false
			first = cmp.Or(first, err)
		}
	}
	return first
}

func (d *Deliverer) refillQueue(ctx context.Context, q *queue, now time.Time) error {
	if q.recheck && len(d.running[q.queueID]) == 0 {
		if err := d.fill(ctx, q, max(0, maxQueued-len(q.waiting))); err != nil {
			return err
		}
	}
	for q.more && len(q.waiting) < maxQueued/2 || len(d.running[q.queueID]) == 0 && q.isStuck(now) {
		if len(q.waiting) >= maxQueued/2 {
			q.skipBlocked()
		}
		if err := d.fill(ctx, q, maxQueued); err != nil {
			return err
		}
	}
	return nil
}

// publishPending makes the number of pending deliveries visible to Stats.
func (d *Deliverer) publishPending() {
	n := 0
	for _, q := range d.queues {
		n += q.total
	}
	d.pending.Store(int64(n))
}
