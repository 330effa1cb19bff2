package service_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// hookedStore calls a function once, before it lists the events of a webhook.
type hookedStore struct {
	core.Store
	hook func()
}

func (s *hookedStore) Events(ctx context.Context, account string, f core.EventFilter, after int64, n int) ([]*core.Event, int, error) {
	if hook := s.hook; hook != nil && f.Webhook != "" {
		s.hook = nil
		hook()
	}
	return s.Store.Events(ctx, account, f, after, n)
}

// A webhook that is enabled while its former events are still being dropped keeps its later events.
func TestEnableWhileDisabling(t *testing.T) {
	store := &hookedStore{Store: memstore.New()}
	s := service.New(store, service.Config{})
	a, _, _, err := s.CreateAccount(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.CreateWebhook(t.Context(), a.ID, core.WebhookPatch{URL: new("https://example.com")})
	if err != nil {
		t.Fatal(err)
	}
	event := func(id string) *core.Event {
		return &core.Event{ID: id, Type: core.EventThreshold, At: w.CreatedAt, Until: w.CreatedAt}
	}
	if err := s.PutEvents(t.Context(), a.ID, event("before")); err != nil {
		t.Fatal(err)
	}
	store.hook = func() {
		if _, err := s.UpdateWebhook(t.Context(), a.ID, w.ID, core.WebhookPatch{Active: new(true)}); err != nil {
			t.Error(err)
		}
		if err := s.PutEvents(t.Context(), a.ID, event("after")); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.UpdateWebhook(t.Context(), a.ID, w.ID, core.WebhookPatch{Active: new(false)}); err != nil {
		t.Fatal(err)
	}
	list, _, err := s.PendingEvents(t.Context(), a.ID, w.ID, 0, 10)
	if err != nil || len(list) != 1 || list[0].ID != "after" {
		t.Errorf("got %d events, %v, want the one after the webhook was enabled", len(list), err)
	}
}

// The process that delivers events learns when itself or another process closes or opens an account.
func TestCloseTellsDeliverer(t *testing.T) {
	store := &shared{Store: memstore.New()}
	s := service.New(store, service.Config{})
	a, _, _, err := s.CreateAccount(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(){
		"this process": func() {
			if _, err := s.SetAccountDisabled(t.Context(), a.ID, true); err != nil {
				t.Error(err)
			}
		},
		"another one": func() { store.watcher.Changed(core.Change{Account: a.ID, State: true}) },
	} {
		s.ChangedWebhooks()
		change()
		if accounts, _ := s.ChangedWebhooks(); !slices.Contains(accounts, a.ID) {
			t.Errorf("%s has closed the account: got changes of %v, want the account", name, accounts)
		}
	}
}

// Beyond the bound, an account forgets the events with the earliest Until. If it forgot the event of a limit without a reset, the event would be repeated.
func TestSweepTooMany(t *testing.T) {
	now := time.Date(2026, time.November, 28, 12, 0, 0, 0, time.UTC)
	store := memstore.New()
	s := service.New(store, service.Config{Clock: func() time.Time { return now }})
	a, _, _, err := s.CreateAccount(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	lasting := &core.Event{ID: "lasting", Type: core.EventThreshold, At: now, Until: now.Add(10 * 366 * 24 * time.Hour)}
	events := []*core.Event{lasting}
	for i := range 9 {
		events = append(events, &core.Event{ID: fmt.Sprint("e", i), Type: core.EventThreshold, At: now, Until: now.Add(time.Duration(i) * 5 * time.Hour)})
	}
	if err := s.PutEvents(t.Context(), a.ID, events...); err != nil {
		t.Fatal(err)
	}
	for _, want := range [][]string{{"lasting", "e6", "e7", "e8"}, {"lasting"}, nil} {
		most := len(want)
		if _, err := s.SweepEvents(t.Context(), a.ID, 0, most); err != nil {
			t.Fatal(err)
		}
		list, _, err := store.Events(t.Context(), a.ID, core.EventFilter{}, 0, 10)
		var ids []string
		for _, e := range list {
			ids = append(ids, e.ID)
		}
		if err != nil || !slices.Equal(ids, want) {
			t.Errorf("at most %d: got %v, %v, want %v", most, ids, err, want)
		}
	}
}

// unreadableEvents is a store whose events cannot be read.
type unreadableEvents struct{ core.Store }

func (unreadableEvents) Events(context.Context, string, core.EventFilter, int64, int) ([]*core.Event, int, error) {
	return nil, 0, core.Unavailable(errors.New("down"))
}

// A sweep that the store has refused leaves out no day: the next one begins where it did.
func TestRefusedSweep(t *testing.T) {
	s := service.New(unreadableEvents{memstore.New()}, service.Config{})
	for _, from := range []core.Date{0, 20_000} {
		if next, err := s.SweepEvents(t.Context(), "acct_1", from, 10); err == nil || next != from {
			t.Errorf("from %d: got %d, %v, want the same day and an error", from, next, err)
		}
	}
}

// newWebhook returns a service whose clock is now, and an account with a webhook.
func newWebhook(t *testing.T, now *time.Time) (*service.Service, *core.Account, *core.Webhook) {
	t.Helper()
	s := service.New(memstore.New(), service.Config{Clock: func() time.Time { return *now }})
	a, _, _, err := s.CreateAccount(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.CreateWebhook(t.Context(), a.ID, core.WebhookPatch{URL: new("https://example.com")})
	if err != nil {
		t.Fatal(err)
	}
	return s, a, w
}

// An attempt that was running when another one disabled its webhook is the last one of its event, and the log says so.
func TestAttemptBesideGone(t *testing.T) {
	now := time.Date(2026, time.November, 28, 12, 0, 0, 0, time.UTC)
	s, a, w := newWebhook(t, &now)
	for i, status := range []int{service.StatusGone, 500} {
		e := &core.Event{ID: fmt.Sprint("e", i), Type: core.EventThreshold, At: now, Until: now}
		if i == 0 {
			if err := s.PutEvents(t.Context(), a.ID, e, &core.Event{ID: "e1", Type: core.EventThreshold, At: now, Until: now}); err != nil {
				t.Fatal(err)
			}
		}
		attempt := &core.Attempt{Webhook: w.ID, EventID: e.ID, Type: e.Type, At: now, Status: status, Problem: "The receiver has refused"}
		if _, err := s.EndAttempt(t.Context(), a.ID, attempt, e); err != nil {
			t.Fatal(err)
		}
		if !attempt.GivenUp || !attempt.NextTime.IsZero() {
			t.Errorf("the answer %d: got %+v, want that no attempt follows", status, attempt)
		}
	}
}

// The time in which nobody delivers, such as while the server is down, is not a time in which deliveries fail.
func TestDownIsNotFailing(t *testing.T) {
	now := time.Date(2026, time.November, 28, 12, 0, 0, 0, time.UTC)
	s, a, w := newWebhook(t, &now)
	e := &core.Event{ID: "e", Type: core.EventThreshold, At: now, Until: now}
	if err := s.PutEvents(t.Context(), a.ID, e); err != nil {
		t.Fatal(err)
	}
	fail := func() {
		var err error
		w, err = s.EndAttempt(t.Context(), a.ID, &core.Attempt{Webhook: w.ID, EventID: "e", Type: core.EventThreshold, At: now, Problem: "No answer"}, e)
		if err != nil {
			t.Fatal(err)
		}
	}
	fail()
	now = now.Add(30 * time.Hour)
	for range 9 {
		if fail(); w.Inactive {
			t.Fatalf("the webhook is disabled: %s", w.DisabledReason)
		}
		now = now.Add(150 * time.Minute)
	}
	now = now.Add(90 * time.Minute)
	if fail(); !w.Inactive {
		t.Error("the webhook is active after a day of failures")
	}
}
