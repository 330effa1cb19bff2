package service_test

import (
	"errors"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// TestPutEvents: an event is stored once, in the transaction with the other changes, and waits for exactly the active webhooks that want its type.
func TestPutEvents(t *testing.T) {
	now := time.Date(2026, time.November, 28, 12, 0, 0, 0, time.UTC)
	store := memstore.New()
	s := service.New(store, service.Config{Clock: func() time.Time { return now }})
	a, _, _, err := s.CreateAccount(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []*core.Webhook{{ID: "wh_all"}, {ID: "wh_usage", Events: []string{core.EventForecast}}, {ID: "wh_off", Inactive: true}} {
		if err := store.Update(t.Context(), a.ID, func(tx core.Tx) error { return tx.PutWebhook(w) }); err != nil {
			t.Fatal(err)
		}
	}
	event := func(id, eventType string) *core.Event {
		return &core.Event{ID: id, Type: eventType, Subject: "key_1", At: now, Until: now.Add(time.Hour), Data: []byte(`{"used":80}`)}
	}
	first, twin, other := event("a", core.EventThreshold), event("a", core.EventThreshold), event("b", core.EventForecast)
	if err := s.PutEvents(t.Context(), a.ID, first, twin, other); err != nil {
		t.Fatal(err)
	}
	again := event("a", core.EventThreshold)
	if err := s.PutEvents(t.Context(), a.ID, again); err != nil {
		t.Fatal(err)
	}
	if first.Seq != 1 || twin.Seq != 0 || other.Seq != 2 || again.Seq != 0 {
		t.Errorf("got the numbers %d, %d, %d and %d, want 1, 0, 2 and 0", first.Seq, twin.Seq, other.Seq, again.Seq)
	}
	for webhook, want := range map[string]int{"wh_all": 2, "wh_usage": 1, "wh_off": 0} {
		if _, n, err := store.Events(t.Context(), a.ID, core.EventFilter{Webhook: webhook}, 0, 1); err != nil || n != want {
			t.Errorf("pending for %s: got %d, %v, want %d", webhook, n, err, want)
		}
	}
	failed := errors.New("failed")
	err = s.Transact(t.Context(), a.ID, nil, func(b *service.Transaction) error {
		if err := b.PutEvents(event("c", core.EventThreshold)); err != nil {
			return err
		}
		return failed
	})
	if _, missing := store.Event(t.Context(), a.ID, "c"); !errors.Is(err, failed) || !errors.Is(missing, core.ErrEventNotFound) {
		t.Errorf("a transaction that fails: got %v, and of its event %v", err, missing)
	}
	if accounts, all := s.ChangedWebhooks(); len(accounts) != 1 || accounts[0] != a.ID || all {
		t.Errorf("ChangedWebhooks: got %v, %v, want the account", accounts, all)
	}
	for _, e := range []*core.Event{event("", "x"), event("a b", "x"), {ID: "d", Type: "x", Data: []byte(`[]`)}, {ID: "d", Type: "x", Data: make([]byte, core.MaxEventData+1)}} {
		if err := s.PutEvents(t.Context(), a.ID, e); core.ErrorCode(err) != core.CodeValidation {
			t.Errorf("event %.20q: got %v, want a validation error", e.ID, err)
		}
	}
}
