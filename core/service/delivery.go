package service

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// Package webhook calls the methods in this file, in the process that delivers the events.

// PendingEvents returns the first n events that wait for a webhook and whose Seq is larger than after, and how many wait in all.
func (s *Service) PendingEvents(ctx context.Context, account, webhook string, after int64, n int) ([]*core.Event, int, error) {
	return s.store.Events(ctx, account, core.EventFilter{Webhook: webhook}, after, n)
}

// Event returns an event that the account remembers, or [core.ErrEventNotFound].
func (s *Service) Event(ctx context.Context, account, id string) (*core.Event, error) {
	return s.store.Event(ctx, account, id)
}

// NewTestEvent returns an event of the type [core.EventTest]. It is not stored.
func (s *Service) NewTestEvent(webhook string) *core.Event {
	now := s.now()
	return &core.Event{ID: secrets.NewID("evt_"), Type: core.EventTest, Subject: webhook, At: now, Until: now, Data: []byte(`{"message":"This is a test of your webhook"}`)}
}

// LogAttempt stores an attempt as the newest one in the log of its webhook.
func (s *Service) LogAttempt(ctx context.Context, account string, a *core.Attempt) error {
	return s.store.Update(s.acting(ctx), account, func(tx core.Tx) (err error) {
		if _, err = tx.Webhook(a.Webhook); err != nil {
			return err
		}
		if a.ID, _, err = nextAttempt(tx, a.Webhook); err != nil {
			return err
		}
		a.Seq = 0
		return tx.PutAttempt(a)
	})
}

// nextAttempt returns the id of the next attempt in the log of a webhook, which is that of the oldest attempt if the log is full, and the size of the log.
func nextAttempt(tx core.Tx, webhook string) (id string, size int, err error) {
	oldest, size, err := tx.Attempts(webhook, core.Page{Number: 1, Size: 1})
	if size >= core.MaxAttempts && len(oldest) > 0 {
		return oldest[0].ID, size, err
	}
	return core.AttemptID(webhook, size), size, err
}

// isAfterGap reports whether an attempt began more than [core.MaxRetryGap] after the newest attempt in a log of a given size.
func isAfterGap(tx core.Tx, a *core.Attempt, size int) (bool, error) {
	if size == 0 {
		return false, nil
	}
	newest, _, err := tx.Attempts(a.Webhook, core.Page{Number: size, Size: 1})
	return len(newest) > 0 && a.At.Sub(newest[0].At) > core.MaxRetryGap, err
}

// StatusGone is the status of an answer that disables a webhook at once: 410 Gone.
const StatusGone = 410

// EndAttempt stores the result of an attempt to deliver an event, and the attempt in the log. a has the webhook, the event, the time, the status and
// the problem, "" for a delivered event; sent is the event as it was sent. EndAttempt sets the other members of a: after a failure, the time of the next attempt,
// or that there is none. An event that has new data since it was sent waits for another attempt, at once, also after a success. EndAttempt
// returns the webhook afterwards: disabled if it answered 410, or if all its deliveries have failed for [core.FailingLimit].
func (s *Service) EndAttempt(ctx context.Context, account string, a *core.Attempt, sent *core.Event) (w *core.Webhook, err error) {
	random, disabled := rand.Float64(), false
	err = s.store.Update(s.acting(ctx), account, func(tx core.Tx) error {
		if w, err = tx.Webhook(a.Webhook); err != nil {
			return err
		}
		events, err := tx.Events(a.EventID)
		if err != nil {
			return err
		}
		id, size, err := nextAttempt(tx, w.ID)
		if err != nil {
			return err
		}
		a.ID, a.Seq, a.Attempt, a.GivenUp, a.NextTime = id, 0, 1, false, time.Time{}
		e := events[0]
		waits := e != nil && e.PendingFor(w.ID) != nil
		if waits {
			s.endAttempt(e, a, random, !bytes.Equal(e.Data, sent.Data))
		}
		if a.Problem != "" && a.Attempt > 1 {
			gap, err := isAfterGap(tx, a, size)
			if err != nil {
				return err
			}
			if gap { // no event was delivered since
				w.FailingSince = nil
			}
		}
		if waits {
			if err := putOrForget(tx, e, a.At); err != nil {
				return err
			}
		}
		var changed bool
		if changed, disabled = noteResult(w, a); changed {
			if err := tx.PutWebhook(w); err != nil {
				return err
			}
		}
		if a.Problem != "" && w.Inactive { // this attempt has disabled the webhook, or another one meanwhile
			a.GivenUp, a.NextTime = true, time.Time{}
		}
		return tx.PutAttempt(a)
	})
	if err == nil && disabled {
		err = s.endDeliveries(ctx, account, w.ID)
	}
	return w, err
}

// endAttempt ends the delivery of an event, or sets the time of the next attempt. changed means that the event has new data since it was sent.
func (s *Service) endAttempt(e *core.Event, a *core.Attempt, random float64, changed bool) {
	d := e.PendingFor(a.Webhook)
	a.Attempt = d.Attempts + 1
	if a.Problem == "" && changed {
		a.NextTime = s.now().Truncate(time.Millisecond)
		d.Attempts, d.Next = 0, time.Time{}
		return
	}
	wait, retry := core.RetryDelay(a.Attempt, random)
	if a.GivenUp = a.Problem != "" && !retry; a.Problem == "" || a.GivenUp {
		e.EndDelivery(a.Webhook)
		return
	}
	a.NextTime = s.now().Add(wait).Truncate(time.Millisecond)
	d.Attempts, d.Next = a.Attempt, a.NextTime
}

// putOrForget stores an event, or deletes it if the account need not remember it.
func putOrForget(tx core.Tx, e *core.Event, now time.Time) error {
	if e.Forgettable(now) {
		return tx.DeleteEvent(e.ID)
	}
	return tx.PutEvent(e)
}

// noteResult notes the result of an attempt in its webhook. It reports whether the webhook has changed, and whether it was disabled.
func noteResult(w *core.Webhook, a *core.Attempt) (changed, disabled bool) {
	switch {
	case a.Problem == "":
		changed = w.FailingSince != nil
		w.FailingSince = nil
		return changed, false
	case w.FailingSince == nil:
		w.FailingSince, changed = &a.At, true
	}
	if w.Inactive {
		return changed, false
	}
	switch {
	case a.Status == StatusGone:
		w.Disable("The receiver has answered 410 Gone", a.At)
	case a.At.Sub(*w.FailingSince) >= core.FailingLimit:
		w.Disable("Every delivery has failed for 24 hours, the last one: "+a.Problem, a.At)
	}
	return changed || w.Inactive, w.Inactive
}

// endDeliveries ends all pending deliveries of a webhook that is disabled or deleted. It stops when the webhook is enabled again.
func (s *Service) endDeliveries(ctx context.Context, account, webhook string) error {
	for {
		list, _, err := s.PendingEvents(ctx, account, webhook, 0, eventsPerTransaction)
		if err != nil || len(list) == 0 {
			return err
		}
		err = s.changeEvents(ctx, account, list, func(tx core.Tx, e *core.Event) error {
			w, err := tx.Webhook(webhook)
			switch {
			case errors.Is(err, core.ErrWebhookNotFound):
			case err != nil:
				return err
			case !w.Inactive:
				return errActive
			}
			e.EndDelivery(webhook)
			return nil
		})
		if errors.Is(err, errActive) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// errActive means that a webhook is active.
var errActive = errors.New("the webhook is active")

// changeEvents runs fn on events as they are now stored, and stores the changed events. It deletes events that the account need not remember.
func (s *Service) changeEvents(ctx context.Context, account string, list []*core.Event, fn func(core.Tx, *core.Event) error) error {
	ids := make([]string, len(list))
	for i, e := range list {
		ids[i] = e.ID
	}
	return s.store.Update(s.acting(ctx), account, func(tx core.Tx) error {
		present, err := tx.Events(ids...)
		for _, e := range present {
			if err == nil && e != nil {
				if err = fn(tx, e); err == nil {
					err = putOrForget(tx, e, s.now())
				}
			}
		}
		return err
	})
}

// EndUnwanted ends the pending deliveries of webhooks that are disabled or deleted.
func (s *Service) EndUnwanted(ctx context.Context, account string, webhooks ...string) error {
	for _, id := range webhooks {
		w, err := s.store.Webhook(ctx, account, id)
		if errors.Is(err, core.ErrWebhookNotFound) || err == nil && w.Inactive {
			err = s.endDeliveries(ctx, account, id)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// DropExcess ends the deliveries of the oldest pending events of an account while more than most wait, and counts them as dropped. It returns
// how many deliveries it has ended.
func (s *Service) DropExcess(ctx context.Context, account string, most int) (dropped int, err error) {
	for {
		list, total, err := s.store.Events(ctx, account, core.EventFilter{Pending: true}, 0, eventsPerTransaction)
		if err != nil || total <= most {
			return dropped, err
		}
		list = list[:min(len(list), total-most)]
		byWebhook := map[string]int64{}
		err = s.changeEvents(ctx, account, list, func(_ core.Tx, e *core.Event) error {
			for _, d := range slices.Clone(e.Deliveries) {
				byWebhook[d.Webhook]++
				e.EndDelivery(d.Webhook)
			}
			return nil
		})
		if err != nil {
			return dropped, err
		}
		for id, n := range byWebhook {
			if err := s.countDropped(ctx, account, id, n); err != nil {
				return dropped, err
			}
			dropped += int(n)
		}
	}
}

// countDropped adds to the dropped events of a webhook, unless it is deleted.
func (s *Service) countDropped(ctx context.Context, account, webhook string, n int64) error {
	return s.store.Update(s.acting(ctx), account, func(tx core.Tx) error {
		w, err := tx.Webhook(webhook)
		if err != nil {
			if errors.Is(err, core.ErrWebhookNotFound) {
				err = nil
			}
			return err
		}
		w.Dropped += n
		return tx.PutWebhook(w)
	})
}

// maxRememberedDays is how many days ahead the Until of an event is at most: 10 years, for a limit without a reset.
const maxRememberedDays = core.Date(core.MaxEventMemory/(24*time.Hour)) + 1

// SweepEvents deletes the events of an account whose Until is on a day from the day from to yesterday. It returns the day from which the next sweep
// continues. A from of 0 is the day of the oldest event. While the account has more than most events, SweepEvents also deletes later events that
// wait for no webhook, the earliest Until first: the windows that end first are the least likely to be read again.
func (s *Service) SweepEvents(ctx context.Context, account string, from core.Date, most int) (core.Date, error) {
	oldest, total, err := s.store.Events(ctx, account, core.EventFilter{}, 0, 1)
	today := core.DateOf(s.now())
	if err != nil {
		return from, err
	}
	if total == 0 {
		return today, nil
	}
	if from == 0 {
		from = max(1, core.DateOf(oldest[0].At)-1)
	}
	for day := from; day < today; day++ {
		if err := s.sweepDay(ctx, account, day, total, false); err != nil {
			return day, err
		}
	}
	_, total, err = s.store.Events(ctx, account, core.EventFilter{}, 0, 0)
	for day := today; err == nil && total > most && day <= today+maxRememberedDays; day++ {
		var n int
		if _, n, err = s.store.Events(ctx, account, core.EventFilter{Until: day}, 0, 0); err == nil {
			err = s.sweepDay(ctx, account, day, min(n, total-most), true)
			total -= n
		}
	}
	return today - 1, err
}

// sweepDay deletes the events that wait for no webhook, of the first n events with an Until on a day. With early, it also deletes events whose Until is still
// to come. It also ends the deliveries of disabled or deleted webhooks, which nothing else may find.
func (s *Service) sweepDay(ctx context.Context, account string, day core.Date, n int, early bool) error {
	for after := int64(0); n > 0; {
		list, _, err := s.store.Events(ctx, account, core.EventFilter{Until: day}, after, min(n, eventsPerTransaction))
		if err != nil || len(list) == 0 {
			return err
		}
		n, after = n-len(list), list[len(list)-1].Seq
		var waited []string
		err = s.changeEvents(ctx, account, list, func(tx core.Tx, e *core.Event) error {
			for _, d := range e.Deliveries {
				waited = append(waited, d.Webhook)
			}
			if early && len(e.Deliveries) == 0 {
				e.Until = time.Time{}
			}
			return nil
		})
		if err != nil {
			return err
		}
		slices.Sort(waited)
		if err := s.EndUnwanted(ctx, account, slices.Compact(waited)...); err != nil {
			return err
		}
	}
	return nil
}
