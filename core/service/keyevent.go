package service

import (
	"context"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
)

// noteKey notes the event of a change of a key. before is nil for a new key, after is nil for a deletion.
func (b *Transaction) noteKey(before, after *core.Key) {
	if before == nil {
		b.noteEvent(after.CreatedEvent())
		return
	}
	b.noteEvent(before.DisabledEvent(after, b.s.now()))
}

// noteUser notes the event of a change of a user. after is nil for a deletion.
func (b *Transaction) noteUser(before, after *core.User) {
	b.noteEvent(before.DisabledEvent(after, b.s.now()))
}

func (b *Transaction) noteEvent(e *core.Event) {
	if e != nil {
		b.keyEvents = append(b.keyEvents, e)
	}
}

// putKeyEvents stores the events of keys that a webhook wants. Nothing repeats these events, so the account need not remember the ids of the others.
func (b *Transaction) putKeyEvents() error {
	if len(b.keyEvents) == 0 {
		return nil
	}
	if err := b.loadWebhooks(); err != nil {
		return err
	}
	var wanted []*core.Event
	for _, e := range b.keyEvents {
		if slices.ContainsFunc(b.webhooks, func(w *core.Webhook) bool { return w.Gets(e.Type) }) {
			wanted = append(wanted, e)
		}
	}
	return b.PutEvents(wanted...)
}

// noteExpiring adds the events of keys that are about to expire.
func (s *Service) noteExpiring(ctx context.Context, account string, keys []*core.Key) {
	now := s.now()
	for _, k := range keys {
		if e := k.ExpiringEvent(now); e != nil {
			s.eventQueue.addEvents(account, e)
			s.writeManyEvents(ctx, account)
		}
	}
}

// noteOverrun adds the event of a settled hold that has cost more than was held.
func (s *Service) noteOverrun(account string, h *core.Hold) {
	if e := h.OverrunEvent(account); e != nil {
		s.eventQueue.addEvents(account, e)
	}
}
