package webhook

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// storeTimeout bounds the write of a result. The write goes on after the deliverer is stopped, so that an answered request is not repeated.
const storeTimeout = 5 * time.Second

// startDue starts the attempts that are due, and returns the time until the next one. Webhooks with fewer running attempts come first.
func (d *Deliverer) startDue(ctx context.Context) (sleep time.Duration) {
	sleep, now := maxSleep, d.o.Service.Now()
	for n := range maxPerWebhook {
		for _, q := range d.queues { // in the random order of a map, so no queue is always the last
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

// mayStart reports whether a webhook with n running attempts may start another one. If not, startDue runs again after an attempt ends.
func (d *Deliverer) mayStart(q *queue, n int) bool {
	if n == 0 {
		return d.freeSlots > 0
	}
	return q.failed == 0 && d.freeSlots > maxAttempts/2 && d.accountAttempts[q.account] < maxPerWebhook
}

// start starts an attempt.
func (d *Deliverer) start(ctx context.Context, q *queue, event waitingEvent) {
	d.freeSlots--
	d.accountAttempts[q.account]++
	if d.running[q.queueID] == nil {
		d.running[q.queueID] = runningEvents{}
	}
	d.running[q.queueID][event.id] = event.subject
	a := attempt{queueID: q.queueID, event: event.id, failuresBefore: q.failed}
	d.background.Go(func() { d.ended <- d.try(ctx, a) })
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
	result := d.send(ctx, slog.LevelDebug, a.hook, e)
	if result.Status == 0 && ctx.Err() != nil { // the deliverer was stopped: the next holder of the lease repeats the request
		a.err = ctx.Err()
		return a
	}
	stored, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	a.hook, a.err = svc.EndAttempt(stored, a.account, result, e)
	if a.result = result; errors.Is(a.err, core.ErrWebhookNotFound) {
		a.result, a.err = nil, nil
	}
	return a
}

// send sends an event, and returns the attempt for the log. It logs why there is no answer.
func (d *Deliverer) send(ctx context.Context, level slog.Level, w *core.Webhook, e *core.Event) *core.Attempt {
	at := d.o.Service.Now()
	r := d.o.Sender.Send(ctx, w, e, at)
	if r.Cause != nil && ctx.Err() == nil {
		d.o.Logger.Log(ctx, level, "a delivery to a webhook has failed", "webhook", w.ID, "event", e.ID, "error", r.Cause)
	}
	return &core.Attempt{Webhook: w.ID, EventID: e.ID, Type: e.Type, At: at.Truncate(time.Millisecond), Status: r.Status, Problem: r.Problem, Millis: r.Took.Milliseconds()}
}

// end updates the queue and the stats with the result of an attempt.
func (d *Deliverer) end(ctx context.Context, a attempt) (err error) {
	d.freeSlots++
	if d.accountAttempts[a.account]--; d.accountAttempts[a.account] == 0 {
		delete(d.accountAttempts, a.account)
	}
	if delete(d.running[a.queueID], a.event); len(d.running[a.queueID]) == 0 {
		delete(d.running, a.queueID)
	}
	q, now := d.queues[a.queueID], d.o.Service.Now()
	if q == nil { // the webhook was disabled or deleted during the attempt, or the account closed
		q = &queue{}
	}
	switch {
	case a.err != nil: // the store has failed: the event still waits
		q.recordFailure(now, a.failuresBefore)
	case a.result == nil:
		q.remove(a.event)
	case a.result.Problem == "":
		d.delivered.Add(1)
		if a.result.NextTime.IsZero() {
			q.remove(a.event)
		} else { // the event has new data since it was sent
			q.delay(a.event, a.result.NextTime)
		}
		q.recordSuccess(now)
	default:
		d.failed.Add(1)
		q.recordFailure(now, a.failuresBefore)
		if a.result.GivenUp {
			d.givenUp.Add(1)
			q.remove(a.event)
		} else {
			q.delay(a.event, a.result.NextTime)
		}
	}
	if w := a.hook; w != nil && w.Inactive {
		if a.result != nil && w.DisabledAt != nil && w.DisabledAt.Equal(a.result.At) { // this attempt has disabled it
			d.o.Logger.Warn("a webhook is disabled", "account", w.AccountID, "webhook", w.ID, "reason", w.DisabledReason)
		}
		delete(d.queues, a.queueID)
		err = d.load(ctx, a.account) // the webhook may be enabled again by now
	}
	d.publishPending()
	return err
}

// Test sends the event limitkeeper.test to a webhook at once, stores the attempt in its log, and returns the attempt. A disabled webhook may be tested,
// too. The result changes only the log. While a test of the account is running, Test returns [service.ErrTooManyRequests].
func (d *Deliverer) Test(ctx context.Context, account, id string) (*core.Attempt, error) {
	if _, runs := d.tests.LoadOrStore(account, true); runs {
		return nil, service.ErrTooManyRequests
	}
	defer d.tests.Delete(account)
	w, err := d.o.Service.Webhook(ctx, account, id)
	if err != nil {
		return nil, err
	}
	a := d.send(ctx, slog.LevelWarn, w, d.o.Service.NewTestEvent(id))
	a.Attempt = 1
	return a, d.o.Service.LogAttempt(context.WithoutCancel(ctx), account, a)
}
