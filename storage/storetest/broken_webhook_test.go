package storetest

import (
	"context"
	"errors"
	"runtime"

	"github.com/limitkeeper/limitkeeper/core"
)

var brokenWebhooks = []defect{
	{name: "returns events from the number on", caughtBy: "machine", open: wrapped(func(s core.Store) core.Store { return eventsFrom{s} })},
	{name: "pages events by offset", caughtBy: "webhook/long queue", open: wrapped(func(s core.Store) core.Store { return eventsByOffset{s} })},
	{name: "lists delivered events as pending", caughtBy: "machine", open: wrapped(func(s core.Store) core.Store { return listsDelivered{s} })},
	{name: "keeps the log of a deleted webhook", caughtBy: "machine",
		open: inTx(func(core.Store, string) func(core.Tx) core.Tx {
			return func(tx core.Tx) core.Tx { return keepsLog{tx} }
		})},
	{name: "takes events for a missing account", caughtBy: "machine",
		open: inTx(func(core.Store, string) func(core.Tx) core.Tx {
			return func(tx core.Tx) core.Tx { return takesEvents{tx} }
		})},
	{name: "drops the former secret of a webhook", caughtBy: "machine",
		open: inTx(func(core.Store, string) func(core.Tx) core.Tx {
			return func(tx core.Tx) core.Tx { return dropsSecrets{tx} }
		})},
	{name: "reads events before the transaction", caughtBy: "webhook/same event",
		open: inTx(func(s core.Store, account string) func(core.Tx) core.Tx {
			var known []*core.Event
			_ = s.Update(context.Background(), account, func(tx core.Tx) (err error) {
				known, err = tx.Events("evt_0", "evt_1", "evt_2", "evt_3")
				return err
			})
			runtime.Gosched()
			return func(tx core.Tx) core.Tx { return readsEventsEarly{tx, known} }
		})},
}

// eventsFrom includes the event with the number.
type eventsFrom struct{ core.Store }

func (s eventsFrom) Events(ctx context.Context, account string, f core.EventFilter, after int64, n int) ([]*core.Event, int, error) {
	return s.Store.Events(ctx, account, f, after-1, n)
}

// eventsByOffset takes the number for an offset in the list.
type eventsByOffset struct{ core.Store }

func (s eventsByOffset) Events(ctx context.Context, account string, f core.EventFilter, after int64, n int) ([]*core.Event, int, error) {
	all, total, err := s.Store.Events(ctx, account, f, 0, 1<<20)
	all = all[min(int(after), len(all)):]
	return all[:min(n, len(all))], total, err
}

type listsDelivered struct{ core.Store }

func (s listsDelivered) Events(ctx context.Context, account string, f core.EventFilter, after int64, n int) ([]*core.Event, int, error) {
	f.Pending = false
	return s.Store.Events(ctx, account, f, after, n)
}

// keepsLog puts the log of a deleted webhook again.
type keepsLog struct{ core.Tx }

func (tx keepsLog) DeleteWebhook(id string) error {
	w, err := tx.Tx.Webhook(id)
	if err == nil {
		err = tx.Tx.DeleteWebhook(id)
	}
	if err == nil {
		err = tx.PutAttempt(&core.Attempt{ID: w.ID + "/0", Webhook: w.ID})
	}
	return err
}

type takesEvents struct{ core.Tx }

func (tx takesEvents) PutEvent(e *core.Event) error {
	if err := tx.Tx.PutEvent(e); !errors.Is(err, core.ErrAccountNotFound) {
		return err
	}
	return nil
}

type dropsSecrets struct{ core.Tx }

func (tx dropsSecrets) PutWebhook(w *core.Webhook) error {
	less := copyOf(w)
	less.Secrets = less.Secrets[:1]
	err := tx.Tx.PutWebhook(less)
	w.Seq = less.Seq
	return err
}

type readsEventsEarly struct {
	core.Tx
	known []*core.Event
}

func (tx readsEventsEarly) Events(ids ...string) ([]*core.Event, error) {
	list := make([]*core.Event, len(ids))
	for i, id := range ids {
		for _, e := range tx.known {
			if e != nil && e.ID == id {
				list[i] = copyOf(e)
			}
		}
	}
	return list, nil
}
