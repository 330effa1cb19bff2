package service_test

import (
	"context"
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

// feedTest is an account with a webhook that wants the usage feed.
type feedTest struct {
	*thresholds
	webhook *core.Webhook
}

func newFeedTest(t *testing.T, store core.Store) *feedTest {
	f := &feedTest{thresholds: newThresholds(t, store)}
	var err error
	f.webhook, err = f.svc.CreateWebhook(t.Context(), f.id, core.WebhookPatch{URL: new("https://example.com/"), Events: core.Some([]string{core.EventUsage})})
	f.ok(err)
	return f
}

// written writes all writable hours, and delivers the events. It returns the ids of the events by subject and hour, such as "user_2 11".
func (f *feedTest) written() map[string]string {
	f.Helper()
	for more := true; more; {
		var err error
		more, err = f.svc.WriteUsage(f.Context(), f.id)
		f.ok(err)
	}
	return f.deliver()
}

// deliver ends the deliveries of the pending events, and returns the ids as written does.
func (f *feedTest) deliver() map[string]string {
	f.Helper()
	events, _, err := f.svc.PendingEvents(f.Context(), f.id, f.webhook.ID, 0, 1000)
	f.ok(err)
	ids := map[string]string{}
	for _, e := range events {
		ids[fmt.Sprintf("%s %02d", e.Subject, e.At.Hour())] = e.ID
		_, err := f.svc.EndAttempt(f.Context(), f.id, &core.Attempt{Webhook: f.webhook.ID, EventID: e.ID, At: *f.now, Status: 204}, e)
		f.ok(err)
	}
	return ids
}

func (f *feedTest) feed() service.UsageFeedState {
	f.Helper()
	feed, err := f.svc.UsageFeed(f.Context(), f.id)
	f.ok(err)
	return feed
}

func (f *feedTest) rewind(hour core.Date) {
	f.Helper()
	feed, err := f.svc.RewindUsageFeed(f.Context(), f.id, hour)
	f.ok(err)
	if feed.Next != hour || feed.Scanning() {
		f.Errorf("after the rewind to %v: got %+v", hour, feed)
	}
}

// A rewound feed writes its hours again with the same ids. When this fails, a receiver that has lost events cannot get them back, or counts them twice.
func TestRewindUsageFeed(t *testing.T) {
	f := newFeedTest(t, memstore.New())
	_, k, secret := f.customer("anna", f.plan(1000), core.KeyPatch{})
	for range 3 { // 10, 11 and 12 o'clock
		f.use(secret, 1)
		*f.now = f.now.Add(time.Hour)
	}
	if got := f.feed(); got.Next != 0 || !got.Wanted {
		t.Errorf("before the first hour is written: got %+v", got)
	}
	*f.now = f.now.Add(core.UsageDelay)
	first := f.written()
	if len(first) != 6 || first["user_2 11"] == "" || first[k.ID+" 12"] == "" {
		t.Fatalf("got %v, want 3 hours of the user and its key", first)
	}
	if again := f.written(); len(again) != 0 {
		t.Errorf("hours that are written: got %v again", again)
	}
	f.rewind(core.HourOf(at("2026-03-05T11:00:00Z")))
	want := map[string]string{}
	for _, key := range []string{"user_2 11", "user_2 12", k.ID + " 11", k.ID + " 12"} {
		want[key] = first[key]
	}
	if diff := cmp.Diff(want, f.written()); diff != "" {
		t.Errorf("after the rewind (-want +got)\n%s", diff)
	}
	if got, want := f.feed().Next, core.HourOf(*f.now); got != want {
		t.Errorf("the next hour: got %v, want %v", got, want)
	}
	_, err := f.svc.UpdateWebhook(t.Context(), f.id, f.webhook.ID, core.WebhookPatch{Active: new(false)})
	f.ok(err)
	if got := f.feed(); got.Next == 0 || got.Wanted {
		t.Errorf("with a disabled webhook: got %+v, want the progress, and that no webhook wants it", got)
	}
}

// After a rewind, an event that still waits has the present external id: the receiver may have refused the former one.
func TestRewindCorrectsWaitingEvent(t *testing.T) {
	f := newFeedTest(t, memstore.New())
	u, _, secret := f.customer("anna", f.plan(1000), core.KeyPatch{})
	ten := core.HourOf(*f.now)
	f.use(secret, 1)
	*f.now = f.now.Add(time.Hour + core.UsageDelay)
	waiting := func() []*core.Event {
		_, err := f.svc.WriteUsage(t.Context(), f.id)
		f.ok(err)
		events, _, err := f.svc.PendingEvents(t.Context(), f.id, f.webhook.ID, 0, 10)
		f.ok(err)
		return events
	}
	before := waiting()
	_, err := f.svc.UpdateUser(t.Context(), f.id, u.ID, core.UserPatch{ExternalID: core.Some("cus_9")})
	f.ok(err)
	f.rewind(ten)
	after := waiting()
	if len(before) != 2 || len(after) != 2 {
		t.Fatalf("got %d events, and %d after the rewind, want those of the user and its key", len(before), len(after))
	}
	for i, e := range after {
		if e.ID != before[i].ID || e.Seq != before[i].Seq || !strings.Contains(string(e.Data), `"external_id":"cus_9"`) {
			t.Errorf("got %s, want the same event with the present external id", e.Data)
		}
	}
}

// After a rewind, a waiting user waits from its own hour or from the hour of the rewind, whichever is earlier. Its hours are written once the hold ends.
func TestRewindKeepsWaiting(t *testing.T) {
	for name, hour := range map[string]int{"before its hour": 10, "after its hour": 12} {
		t.Run(name, func(t *testing.T) {
			f := newFeedTest(t, memstore.New())
			u, _, secret := f.customer("anna", f.plan(1000), core.KeyPatch{})
			f.use(secret, 1)
			*f.now = f.now.Add(time.Hour)
			d, err := f.svc.Validate(t.Context(), f.id, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 5, HoldFor: 20 * time.Hour})
			f.ok(err)
			*f.now = f.now.Add(2*time.Hour + core.UsageDelay)
			f.written()
			eleven := core.HourOf(at("2026-03-05T11:00:00Z"))
			if diff := cmp.Diff([]core.WaitingUser{{UserID: u.ID, From: eleven}}, f.feed().Waiting); diff != "" {
				t.Fatalf("with an open hold (-want +got)\n%s", diff)
			}
			from := eleven - 11 + core.Date(hour)
			f.rewind(from)
			if diff := cmp.Diff([]core.WaitingUser{{UserID: u.ID, From: min(from, eleven)}}, f.feed().Waiting); diff != "" {
				t.Errorf("after the rewind (-want +got)\n%s", diff)
			}
			before := f.written()
			if _, early := before["user_2 11"]; early {
				t.Errorf("an hour with an open hold was written: %v", before)
			}
			_, err = f.svc.Settle(t.Context(), f.id, d.HoldID, &service.Final{Requests: new(int64(2))})
			f.ok(err)
			after := f.written()
			if _, ok := after["user_2 11"]; !ok || len(f.feed().Waiting) != 0 {
				t.Errorf("after the settlement: got %v, %+v", after, f.feed())
			}
		})
	}
}

// daysHookStore is a store that calls beforeDaysOf once, before the next DaysOf.
type daysHookStore struct {
	core.Store
	beforeDaysOf func()
}

func (s *daysHookStore) DaysOf(ctx context.Context, ids []core.CounterID, first, last core.Date) ([][]core.CounterDay, error) {
	if hook := s.beforeDaysOf; hook != nil {
		s.beforeDaysOf = nil
		hook()
	}
	return s.Store.DaysOf(ctx, ids, first, last)
}

// WriteUsage does not overwrite the progress that a concurrent rewind has stored: neither of a rewind to an earlier hour nor of one to the hour that is
// being written.
func TestRewindWhileWriting(t *testing.T) {
	for back := range core.Date(2) {
		store := &daysHookStore{Store: memstore.New()}
		f := newFeedTest(t, store)
		_, _, secret := f.customer("anna", f.plan(1000), core.KeyPatch{})
		want := map[string]string{}
		for range 2 {
			f.use(secret, 1)
			*f.now = f.now.Add(time.Hour + core.UsageDelay)
			if len(want) == 0 {
				want = f.written()
			}
		}
		to := f.feed().Next - back
		store.beforeDaysOf = func() { f.rewind(to) }
		_, err := f.svc.WriteUsage(t.Context(), f.id)
		f.ok(err)
		if got := f.feed().Next; got != to {
			t.Errorf("after WriteUsage: got the next hour %v, want %v", got, to)
		}
		again := f.written()
		for name, event := range want {
			if _, has := again[name]; has != (back == 1) || has && again[name] != event {
				t.Errorf("a rewind by %d hours: got %v, want %v again: %v", back, again, want, back == 1)
			}
		}
	}
}

// A rewind makes an entry in the audit log. The progress of the feed makes none.
func TestRewindIsAudited(t *testing.T) {
	f := newFeedTest(t, memstore.New())
	ten := core.HourOf(*f.now)
	for range 3 {
		*f.now = f.now.Add(time.Hour)
		f.written()
	}
	f.rewind(ten)
	ctx := core.WithActor(t.Context(), core.Actor{Kind: core.ActorCommand, ID: "usage feed"})
	f.written()
	_, err := f.svc.RewindUsageFeed(ctx, f.id, ten)
	f.ok(err)
	page, err := f.svc.Audit(t.Context(), f.id, service.AuditFilter{Action: "account.update"}, core.Page{Number: 1, Size: 10})
	f.ok(err)
	var got []string
	for _, e := range page.Entries {
		got = append(got, e.Actor.ID+" "+string(e.Before)+" "+string(e.After))
	}
	if want := []string{`usage feed {"usage_feed":{"next_hour":"2026-03-05T12:00:00Z"}} {"usage_feed":{"next_hour":"2026-03-05T10:00:00Z"}}`}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A rewind to a future hour, to a deleted hour or beyond the next hour is a validation error.
func TestRewindRefuses(t *testing.T) {
	f := newFeedTest(t, memstore.New())
	now := core.HourOf(*f.now)
	for _, hour := range []core.Date{now + 1, now - core.HoursKept} {
		if _, err := f.svc.RewindUsageFeed(t.Context(), f.id, hour); core.ErrorCode(err) != core.CodeValidation {
			t.Errorf("%v: got %v, want a validation error", hour, err)
		}
	}
	f.rewind(now - core.HoursKept + 1)
	if _, err := f.svc.RewindUsageFeed(t.Context(), f.id, now); core.ErrorCode(err) != core.CodeValidation {
		t.Errorf("an hour after the next one: got %v, want a validation error", err)
	}
	*f.now = f.now.Add(core.HoursKept * time.Hour) // the hours from Next on are not kept any more
	f.rewind(core.HourOf(*f.now) - core.HoursKept + 1)
}
