package service_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// A hold that stays open for ten days delays only the hours of its user. They are written after six days, before the store deletes them.
func TestUsageFeedOfLongHold(t *testing.T) {
	e := newEvents(t, memstore.New())
	ctx := t.Context()
	_, err := e.svc.CreateWebhook(ctx, e.id, core.WebhookPatch{URL: new("https://example.com/"), Events: core.Some([]string{core.EventUsage})})
	e.ok(err)
	plan := e.plan(1000)
	ann, _, ofAnn := e.customer("ann", plan, core.KeyPatch{})
	bob, _, ofBob := e.customer("bob", plan, core.KeyPatch{})
	d, err := e.svc.Validate(ctx, e.id, service.Request{Secret: ofAnn, Endpoint: "/", Method: "GET", Cost: 1, HoldFor: time.Hour})
	e.ok(err)
	e.use(ofAnn, 2)
	e.use(ofBob, 4)
	began := *e.now
	var got []string
	for day := range 10 {
		for range 24 {
			*e.now = e.now.Add(time.Hour - time.Second)
			e.ok(e.svc.ExtendHold(ctx, e.id, d.HoldID, time.Hour))
			_, err := e.svc.WriteUsage(ctx, e.id)
			e.ok(err)
		}
		for _, ev := range e.stored() {
			text := fmt.Sprint(ev.Subject, " ", ev.At.Sub(began.Truncate(time.Hour)))
			if ev.Type == core.EventUsage && !slices.ContainsFunc(got, func(s string) bool { return s[len("day 0: "):] == text }) {
				got = append(got, fmt.Sprintf("day %d: %s", day, text))
			}
		}
	}
	user := func(u *core.User) string { return core.CounterID{Account: e.id, UserID: u.ID}.Subject() + " 0s" }
	want := []string{"day 0: " + user(bob), "day 6: " + user(ann)}
	got = slices.DeleteFunc(got, func(s string) bool { return s[len("day 0: "):len("day 0: ")+4] == "key_" })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// The feed of a webhook that is older than the hours that are kept, and names the type only now, begins with the first of these hours. It has lost none.
func TestUsageFeedOfOldWebhook(t *testing.T) {
	f := newFeedTest(t, memstore.New())
	_, err := f.svc.UpdateWebhook(f.Context(), f.id, f.webhook.ID, core.WebhookPatch{Events: core.Some([]string{core.EventThreshold})})
	f.ok(err)
	*f.now = f.now.Add((core.HoursKept + 48) * time.Hour)
	_, err = f.svc.UpdateWebhook(f.Context(), f.id, f.webhook.ID, core.WebhookPatch{Events: core.Some([]string{core.EventUsage})})
	f.ok(err)
	_, err = f.svc.WriteUsage(f.Context(), f.id)
	f.ok(err)
	if got, want := f.feed().UsageFeed, core.FirstHourKept(*f.now); got.Next < want {
		t.Errorf("got %+v, want the hours from %v on", got, want)
	}
}

// After a pause of a week, the feed leaves out the hours that the store no longer keeps, also the hours of waiting users. One call returns an error that
// names these hours.
func TestUsageFeedLosesHours(t *testing.T) {
	f := newFeedTest(t, memstore.New())
	_, _, secret := f.customer("anna", f.plan(1000), core.KeyPatch{})
	f.hold(secret, 2*time.Hour)
	began := *f.now
	*f.now = f.now.Add(time.Hour + core.UsageDelay) // the hour has ended, and the hold has not
	f.written()
	if got := f.feed(); len(got.Waiting) != 1 {
		t.Fatalf("got %+v, want a waiting user", got)
	}
	*f.now = began.Add((core.HoursKept + 2) * time.Hour)
	_, err := f.svc.WriteUsage(t.Context(), f.id)
	for _, want := range []string{"are no longer kept, and were not all written", "the hours of 1 waiting users before "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	_, err = f.svc.WriteUsage(t.Context(), f.id)
	f.ok(err)
}

// stuckHolds is a store that cannot end the holds of an account.
type stuckHolds struct {
	core.Store
	account string
}

func (s *stuckHolds) ExpireHolds(ctx context.Context, account string, at time.Time, retention time.Duration) error {
	if account == s.account {
		return core.Unavailable(errors.New("down"))
	}
	return s.Store.ExpireHolds(ctx, account, at, retention)
}

// An account whose expired holds cannot be ended does not delay the hours of a later account.
func TestUsageFeedBesideStuckHolds(t *testing.T) {
	store := &stuckHolds{Store: memstore.New()}
	first := newFeedTest(t, store)
	store.account = first.id
	f := &feedTest{thresholds: &thresholds{newTenant(t, first.svc, "second"), first.now}}
	var err error
	f.webhook, err = f.svc.CreateWebhook(t.Context(), f.id, core.WebhookPatch{URL: new("https://example.com/"), Events: core.Some([]string{core.EventUsage})})
	f.ok(err)
	_, _, secret := f.customer("anna", f.plan(1000), core.KeyPatch{})
	f.hold(secret, time.Minute)
	*f.now = f.now.Add(time.Hour + core.UsageDelay)
	if err := f.svc.ExpireHolds(t.Context()); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("got %v, want that of the first account", err)
	}
	if got := f.written(); len(got) != 2 {
		t.Errorf("got %v, want the hour of the user and its key", got)
	}
}
