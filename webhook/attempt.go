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

// startDue starts the attempts that are due, and returns the time until the next one.
func (d *Deliverer) startDue(ctx context.Context) (sleep time.Duration) {
	sleep, now := maxSleep, d.o.Service.Now()
	for _, q := range d.queues {
		if q.busy || len(q.waiting) == 0 || d.running[q.account] == maxOfAccount { // the end of an attempt of the account starts the next one
			continue
		}
		id, next, due := q.due(now)
		switch {
		case !due:
			sleep = min(sleep, next.Sub(now))
		case d.free > 0: // otherwise the end of a running attempt starts the next one. A map has a random order, so each queue has its turn
			d.free--
			d.running[q.account]++
			q.busy = true
			d.tries.Go(func() { d.ended <- d.try(ctx, q, id) })
		}
	}
	return max(sleep, 0)
}

// try sends an event to a webhook, and stores the result.
func (d *Deliverer) try(ctx context.Context, q *queue, event string) (a attempt) {
	a = attempt{q: q, event: event}
	svc := d.o.Service
	e, err := svc.Event(ctx, q.account, event)
	if err == nil {
		a.webhook, err = svc.Webhook(ctx, q.account, q.webhook)
	}
	if errors.Is(err, core.ErrEventNotFound) || errors.Is(err, core.ErrWebhookNotFound) || err == nil && (e.PendingFor(q.webhook) == nil || a.webhook.Inactive) {
		return a
	}
	if a.err = err; err != nil {
		return a
	}
	result := d.send(ctx, a.webhook, e)
	if result.Status == 0 && ctx.Err() != nil { // stopped: the next holder of the lease repeats the request
		a.err = ctx.Err()
		return a
	}
	stored, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTime)
	defer cancel()
	a.webhook, a.err = svc.EndAttempt(stored, q.account, result)
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
	if d.running[a.q.account]--; d.running[a.q.account] == 0 {
		delete(d.running, a.q.account)
	}
	a.q.busy = false
	now := d.o.Service.Now()
	switch {
	case a.err != nil: // of the store: the event still waits
		a.q.noteFailure(now)
	case a.result == nil:
		a.q.remove(a.event)
	case a.result.Problem == "":
		d.delivered.Add(1)
		a.q.remove(a.event)
		a.q.noteSuccess(now)
	default:
		d.failed.Add(1)
		a.q.noteFailure(now)
		if a.result.GivenUp {
			d.givenUp.Add(1)
			a.q.remove(a.event)
		} else {
			a.q.delay(a.event, a.result.NextTime)
		}
	}
	if w := a.webhook; w != nil && w.Inactive {
		d.o.Logger.Warn("a webhook is disabled", "account", w.AccountID, "webhook", w.ID, "reason", w.DisabledReason)
		delete(d.queues, queueID{a.q.account, a.q.webhook})
		err = d.load(ctx, a.q.account) // the webhook may be enabled again by now
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
