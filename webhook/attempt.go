package webhook

import (
	"context"
	"errors"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// storeTime bounds the write of a result after the deliverer was stopped, so that an answered request is not repeated.
const storeTime = 5 * time.Second

// startDue starts the attempts that are due, and returns the time until the next one. A webhook with fewer running attempts goes first.
func (d *Deliverer) startDue(ctx context.Context) (sleep time.Duration) {
	sleep, now := maxSleep, d.o.Service.Now()
	for n := range maxOfWebhook {
		for _, q := range d.queues { // a map has a random order, so each queue has its turn
			if len(d.running[q.queueID]) != n || len(q.waiting) == 0 || !d.mayStart(q, n) {
				continue
			}
			event, next, due := q.due(now, d.running[q.queueID])
			switch {
			case due:
				d.start(ctx, q, event)
			case !next.IsZero():
				sleep = min(sleep, next.Sub(now))
			}
		}
	}
	return max(sleep, 0)
}

// mayStart reports whether a webhook with n running attempts may begin another one. If not, the end of an attempt calls startDue again.
func (d *Deliverer) mayStart(q *queue, n int) bool {
	if n == 0 {
		return d.free > 0
	}
	return q.failed == 0 && d.free > maxAttempts/2 && d.busy[q.account] < maxOfWebhook
}

// start starts an attempt.
func (d *Deliverer) start(ctx context.Context, q *queue, event waiting) {
	d.free--
	d.busy[q.account]++
	if d.running[q.queueID] == nil {
		d.running[q.queueID] = subjects{}
	}
	d.running[q.queueID][event.id] = event.subject
	a := attempt{queueID: q.queueID, event: event.id, failed: q.failed}
	d.tries.Go(func() { d.ended <- d.try(ctx, a) })
}

// try sends the event of an attempt, and stores the result.
func (d *Deliverer) try(ctx context.Context, a attempt) attempt {
	svc := d.o.Service
	e, err := svc.Event(ctx, a.account, a.event)
	if err == nil {
		a.hook, err = svc.Webhook(ctx, a.account, a.webhook)
	}
	if errors.Is(err, core.ErrEventNotFound) || errors.Is(err, core.ErrWebhookNotFound) || err == nil && (e.PendingFor(a.webhook) == nil || a.hook.Inactive) {
		return a
	}
	if a.err = err; err != nil {
		return a
	}
	result := d.send(ctx, a.hook, e)
	if result.Status == 0 && ctx.Err() != nil { // stopped: the next holder of the lease repeats the request
		a.err = ctx.Err()
		return a
	}
	stored, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTime)
	defer cancel()
	a.hook, a.err = svc.EndAttempt(stored, a.account, result)
	if a.result = result; errors.Is(a.err, core.ErrWebhookNotFound) {
		a.result, a.err = nil, nil
	}
	return a
}

// send sends an event, and returns the attempt for the log.
func (d *Deliverer) send(ctx context.Context, w *core.Webhook, e *core.Event) *core.Attempt {
	at := d.o.Service.Now()
	r := d.o.Sender.Send(ctx, w, e, at)
	if r.Cause != nil && ctx.Err() == nil {
		d.o.Logger.Debug("a delivery to a webhook has failed", "webhook", w.ID, "event", e.ID, "error", r.Cause)
	}
	return &core.Attempt{Webhook: w.ID, EventID: e.ID, Type: e.Type, At: at.Truncate(time.Millisecond), Status: r.Status, Problem: r.Problem, Millis: r.Took.Milliseconds()}
}

// end updates the queue of an attempt and the figures with its result.
func (d *Deliverer) end(ctx context.Context, a attempt) (err error) {
	d.free++
	if d.busy[a.account]--; d.busy[a.account] == 0 {
		delete(d.busy, a.account)
	}
	if delete(d.running[a.queueID], a.event); len(d.running[a.queueID]) == 0 {
		delete(d.running, a.queueID)
	}
	q, now := d.queues[a.queueID], d.o.Service.Now()
	if q == nil { // the webhook was disabled or deleted during the attempt, or the account closed
		q = &queue{}
	}
	switch {
	case a.err != nil: // of the store: the event still waits
		q.noteFailure(now, a.failed)
	case a.result == nil:
		q.remove(a.event)
	case a.result.Problem == "":
		d.delivered.Add(1)
		q.remove(a.event)
		q.noteSuccess(now)
	default:
		d.failed.Add(1)
		q.noteFailure(now, a.failed)
		if a.result.GivenUp {
			d.givenUp.Add(1)
			q.remove(a.event)
		} else {
			q.delay(a.event, a.result.NextTime)
		}
	}
	if w := a.hook; w != nil && w.Inactive {
		if a.result != nil && w.DisabledAt != nil && w.DisabledAt.Equal(a.result.At) { // by this attempt
			d.o.Logger.Warn("a webhook is disabled", "account", w.AccountID, "webhook", w.ID, "reason", w.DisabledReason)
		}
		delete(d.queues, a.queueID)
		err = d.load(ctx, a.account) // the webhook may be enabled again by now
	}
	d.count()
	return err
}

// Test sends the event limitkeeper.test to a webhook at once, stores the attempt in its log, and returns the attempt. A disabled webhook may be
// tested, too. The result changes nothing else. An account has one test at a time: another one is [service.ErrTooManyRequests].
func (d *Deliverer) Test(ctx context.Context, account, id string) (*core.Attempt, error) {
	if _, runs := d.tests.LoadOrStore(account, true); runs {
		return nil, service.ErrTooManyRequests
	}
	defer d.tests.Delete(account)
	w, err := d.o.Service.Webhook(ctx, account, id)
	if err != nil {
		return nil, err
	}
	a := d.send(ctx, w, d.o.Service.NewTestEvent(id))
	a.Attempt = 1
	return a, d.o.Service.LogAttempt(context.WithoutCancel(ctx), account, a)
}
