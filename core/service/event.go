package service

import (
	"context"
	"slices"
	"sync"

	"github.com/limitkeeper/limitkeeper/core"
)

// eventsPerTransaction is how many events one transaction changes.
const eventsPerTransaction = 500

// PutEvents stores the events that the account does not remember, and makes them pending for each active webhook that wants their type. An event whose id
// the account remembers changes nothing. But a remembered event [core.EventUsage] gets the new data and becomes pending again for each of these webhooks, because
// a rewind of the feed repeats it. Each stored event gets its Seq. The Seq of an event that changes nothing is set to 0. After an error, some of the events may be
// stored, and the call may be repeated.
func (s *Service) PutEvents(ctx context.Context, account string, events ...*core.Event) error {
	for batch := range slices.Chunk(events, eventsPerTransaction) {
		if err := s.transact(ctx, account, nil, func(b *Transaction) error { return b.PutEvents(batch...) }); err != nil {
			return err
		}
	}
	return nil
}

// PutEvents is [Service.PutEvents] in a transaction. The webhooks are those before the transaction.
func (b *Transaction) PutEvents(events ...*core.Event) error {
	ids := make([]string, len(events))
	for i, e := range events {
		if err := e.Check(); err != nil {
			return err
		}
		ids[i], e.Seq = e.ID, 0
	}
	known, err := b.tx.Events(ids...)
	if err != nil {
		return err
	}
	if len(events) > 0 {
		if err := b.loadWebhooks(); err != nil {
			return err
		}
	}
	for i, e := range events {
		if b.events[e.ID] || known[i] != nil && e.Type != core.EventUsage {
			continue
		}
		stored := *e
		stored.Deliver(b.webhooks)
		if known[i] != nil && !stored.DeliverAgain(known[i]) {
			continue
		}
		if err := b.tx.PutEvent(&stored); err != nil {
			return err
		}
		e.Seq, b.events[e.ID], b.changesWebhooks = stored.Seq, true, b.changesWebhooks || len(stored.Deliveries) > 0
	}
	return nil
}

// loadWebhooks reads the webhooks before the transaction, once.
func (b *Transaction) loadWebhooks() (err error) {
	if b.events == nil {
		if b.webhooks, _, err = b.tx.Webhooks(core.Page{Number: 1, Size: core.MaxWebhooks}); err == nil {
			b.events = map[string]bool{}
		}
	}
	return err
}

// webhookChanges collects the accounts whose webhooks or pending events have changed.
type webhookChanges struct {
	mu       sync.Mutex // guards the members below
	accounts map[string]bool
	all      bool

	more chan struct{} // has an element while there is a change
}

// maxChangedAccounts bounds the accounts of webhookChanges. Beyond it, all accounts count as changed.
const maxChangedAccounts = 10_000

func newWebhookChanges() webhookChanges {
	return webhookChanges{accounts: map[string]bool{}, more: make(chan struct{}, 1)}
}

// note adds an account, "" for all accounts.
func (w *webhookChanges) note(account string) {
	w.mu.Lock()
	if account == "" || len(w.accounts) >= maxChangedAccounts {
		w.all = true
		clear(w.accounts)
	} else if !w.all {
		w.accounts[account] = true
	}
	w.mu.Unlock()
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// WebhooksChanged returns a channel that has an element after webhooks or pending events of an account have changed, by this process or, if the
// store reports it, by another one. One goroutine receives from it, and calls ChangedWebhooks.
func (s *Service) WebhooksChanged() <-chan struct{} { return s.webhookChanges.more }

// ChangedWebhooks returns the accounts whose webhooks or pending events have changed since the last call. With all, every account may have changed.
func (s *Service) ChangedWebhooks() (accounts []string, all bool) {
	w := &s.webhookChanges
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.accounts {
		accounts = append(accounts, id)
	}
	all, w.all = w.all, false
	clear(w.accounts)
	return accounts, all
}
