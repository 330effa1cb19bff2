package storetest

import (
	"fmt"
	"sync/atomic"

	"github.com/limitkeeper/limitkeeper/core"
)

var webhookCases = []testCase{
	{name: "webhook/long queue", run: webhookLongQueue,
		promise: "Events returns each of thousands of pending events once, in the order of Seq, while others are delivered"},
	{name: "webhook/same event", run: webhookSameEvent,
		promise: "transactions of one account are serializable: of concurrent transactions that put an event unless it is there, one puts it"},
}

func webhookLongQueue(e *env) {
	const webhook, size = "wh_1", 250
	account := e.account()
	f := core.EventFilter{Webhook: webhook}
	var want []string
	for i := range large / 100 {
		e.update(account, func(tx core.Tx) error {
			for j := range 100 {
				if err := tx.PutEvent(queued(fmt.Sprintf("evt_%d", 100*i+j), webhook)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	var got []string
	total := large / 100 * 100
	for i := range total {
		want = append(want, fmt.Sprintf("evt_%d", i))
	}
	for after := int64(0); ; {
		page, n, err := e.Store.Events(e.ctx, account, f, after, size)
		e.ok("Events", err)
		e.same("number of pending events", total, n)
		if len(page) == 0 {
			break
		}
		e.update(account, func(tx core.Tx) error { // delivers every second one
			for i, ev := range page {
				if i%2 == 0 {
					ev.EndDelivery(webhook)
					if err := tx.PutEvent(ev); err != nil {
						return err
					}
				}
			}
			return nil
		})
		for i, ev := range page {
			got, after = append(got, ev.ID), ev.Seq
			total -= (i + 1) % 2
		}
	}
	e.same("pending events", want, got)
	e.reopen()
	_, n, err := e.Store.Events(e.ctx, account, f, 0, 1)
	e.ok("Events", err)
	e.same("number of pending events after reopening", total, n)
	_, n, err = e.Store.Events(e.ctx, account, core.EventFilter{}, 0, 1)
	e.ok("Events", err)
	e.same("number of events", len(want), n)
}

// queued returns a new event that waits for a webhook.
func queued(id, webhook string) *core.Event {
	return &core.Event{ID: id, Type: core.EventThreshold, Subject: "key_1", At: noon, Until: noon.AddDate(0, 0, 1), Deliveries: []core.Delivery{{Webhook: webhook}}}
}

func webhookSameEvent(e *env) {
	account := e.account()
	var puts atomic.Int64
	e.parallel(16, func(int) {
		for i := range 4 {
			put := false
			err := e.Store.Update(e.ctx, account, func(tx core.Tx) error {
				id := fmt.Sprintf("evt_%d", i)
				known, err := tx.Events(id)
				if put = err == nil && known[0] == nil; !put {
					return err
				}
				return tx.PutEvent(queued(id, "wh_1"))
			})
			if err != nil {
				e.Errorf("Update: %v", err)
			} else if put {
				puts.Add(1)
			}
		}
	})
	e.same("number of transactions that put an event", int64(4), puts.Load())
	_, n, err := e.Store.Events(e.ctx, account, core.EventFilter{Webhook: "wh_1"}, 0, 10)
	e.ok("Events", err)
	e.same("number of pending events", 4, n)
}
