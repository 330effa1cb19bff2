package service_test

import (
	"context"
	"encoding/json"
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

// movedKeyTest is a feed of two users: anna, with two keys, and bob.
type movedKeyTest struct {
	*feedTest
	anna, bob *core.User
	key       *core.Key // of anna, which moves to bob
	secret    string
	other     string // the secret of the other key of anna
}

func newMovedKeyTest(t *testing.T, store core.Store) *movedKeyTest {
	f := &movedKeyTest{feedTest: newFeedTest(t, store)}
	plan := f.plan(1000)
	f.anna, f.key, f.secret = f.customer("anna", plan, core.KeyPatch{})
	f.bob, _, _ = f.customer("bob", plan, core.KeyPatch{})
	var err error
	_, f.other, err = f.svc.CreateKey(t.Context(), f.id, core.KeyPatch{Name: new("other"), UserID: &f.anna.ID})
	f.ok(err)
	return f
}

func (f *movedKeyTest) move() {
	f.Helper()
	_, err := f.svc.UpdateKey(f.Context(), f.id, f.key.ID, core.KeyPatch{UserID: &f.bob.ID})
	f.ok(err)
}

// used writes all writable hours, and adds the usage of each event to used, by name and hour, such as "anna 11". The name "key" is that of the key that
// moves. An event that is written again must have the same numbers.
func (f *movedKeyTest) used(used map[string]int64) {
	f.Helper()
	for more := true; more; {
		var err error
		more, err = f.svc.WriteUsage(f.Context(), f.id)
		f.ok(err)
	}
	events, _, err := f.svc.PendingEvents(f.Context(), f.id, f.webhook.ID, 0, 1000)
	f.ok(err)
	for _, e := range events {
		var d core.UsageData
		f.ok(json.Unmarshal(e.Data, &d))
		name := map[int64]string{f.anna.ID: "anna", f.bob.ID: "bob"}[d.UserID]
		if d.KeyID != nil {
			if name = "key"; *d.KeyID != f.key.ID {
				continue
			}
		}
		id := fmt.Sprintf("%s %02d", name, e.At.Hour())
		if before, again := used[id]; again && before != d.Meters[core.MeterRequests].Used {
			f.Errorf("%s: got %d, and %d before", id, d.Meters[core.MeterRequests].Used, before)
		}
		used[id] = d.Meters[core.MeterRequests].Used
	}
	f.deliver()
}

// A key moves to another user while its former user waits. The feed has all hours of the key, and each user has its own usage.
func TestUsageFeedOfMovedKey(t *testing.T) {
	f := newMovedKeyTest(t, memstore.New())
	used := map[string]int64{}
	hold := f.hold(f.other, 20*time.Hour)
	f.use(f.secret, 3)
	f.hold(f.secret, 20*time.Hour) // its cost of 1 stays counted when the key moves
	*f.now = f.now.Add(time.Hour)
	f.use(f.secret, 5)
	*f.now = f.now.Add(time.Hour + core.UsageDelay)
	f.used(used)
	if len(used) > 0 || len(f.feed().Waiting) != 1 {
		t.Fatalf("got %v, want a waiting user", used)
	}
	f.move()
	f.use(f.secret, 7)
	_, err := f.svc.Release(t.Context(), f.id, hold, "")
	f.ok(err)
	*f.now = f.now.Add(time.Hour)
	f.used(used)
	if diff := cmp.Diff(map[string]int64{"anna 10": 4, "anna 11": 5, "bob 12": 7, "key 10": 4, "key 11": 5, "key 12": 7}, used); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// A key moves to another user after WriteUsage has passed it, and before WriteUsage has stored that its former user waits.
func TestUsageFeedOfKeyMovedWhileWriting(t *testing.T) {
	store := &daysHookStore{Store: memstore.New()}
	f := newMovedKeyTest(t, store)
	used := map[string]int64{}
	f.hold(f.other, 20*time.Hour)
	f.use(f.secret, 3)
	*f.now = f.now.Add(time.Hour + core.UsageDelay)
	store.beforeDaysOf = func() { store.beforeDaysOf = f.move } // before the hours of users, and of keys
	f.used(used)
	if diff := cmp.Diff(map[string]int64{"key 10": 3}, used); diff != "" || len(f.feed().Waiting) != 1 {
		t.Errorf("waiting: %+v (-want +got)\n%s", f.feed().Waiting, diff)
	}
}

// A transaction that moves many keys of a waiting user writes 200 of their hours. A rewind writes the others.
func TestUsageFeedOfManyMovedKeys(t *testing.T) {
	f := newMovedKeyTest(t, memstore.New())
	f.hold(f.other, 20*time.Hour)
	var keys []string
	for i := range 250 {
		k, secret, err := f.svc.CreateKey(t.Context(), f.id, core.KeyPatch{Name: new(fmt.Sprint(i)), UserID: &f.anna.ID})
		f.ok(err)
		f.use(secret, 1)
		keys = append(keys, k.ID)
	}
	*f.now = f.now.Add(time.Hour + core.UsageDelay)
	if got := f.written(); len(got) > 0 {
		t.Fatalf("got %v, want a waiting user", got)
	}
	f.ok(f.svc.Transact(t.Context(), f.id, nil, func(b *service.Transaction) error {
		for _, id := range keys {
			if _, err := b.UpdateKey(id, core.KeyPatch{UserID: &f.bob.ID}); err != nil {
				return err
			}
		}
		return nil
	}))
	if got := f.deliver(); len(got) != 200 {
		t.Errorf("after the move: got %d hours, want 200", len(got))
	}
	f.rewind(core.HourOf(*f.now) - 1)
	if got := f.written(); len(got) != len(keys) {
		t.Errorf("after the rewind: got %d hours, want %d", len(got), len(keys))
	}
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
