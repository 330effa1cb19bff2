package service_test

import (
	"context"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// hold opens a hold with a cost of 1, and returns its id.
func (f *feedTest) hold(secret string, d time.Duration) string {
	f.Helper()
	x, err := f.svc.Validate(f.Context(), f.id, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 1, HoldFor: d})
	f.ok(err)
	return x.HoldID
}

// After a rewind, a webhook gets an event again although the event still waits for another webhook.
func TestUsageFeedRewindTwoWebhooks(t *testing.T) {
	f := newFeedTest(t, memstore.New())
	_, err := f.svc.CreateWebhook(t.Context(), f.id, core.WebhookPatch{URL: new("https://down.example.com/"), Events: core.Some([]string{core.EventUsage})})
	f.ok(err)
	_, _, s := f.customer("anna", f.plan(1000), core.KeyPatch{})
	f.use(s, 1)
	ten := core.HourOf(*f.now)
	*f.now = f.now.Add(time.Hour + core.UsageDelay)
	if got := f.written(); len(got) != 2 {
		t.Fatal(got)
	}
	f.rewind(ten)
	if got := f.written(); len(got) != 2 {
		t.Errorf("after the rewind: the first webhook got %v, want 2 events; next hour %v", got, f.feed().Next)
	}
}

// Waiting users whose holds have ended leave the list, so other users can begin to wait.
func TestUsageFeedTooManyWait(t *testing.T) {
	store := memstore.New()
	f := newFeedTest(t, store)
	_, _, s := f.customer("anna", f.plan(1000), core.KeyPatch{})
	_, _, s2 := f.customer("ben", f.plan(1000), core.KeyPatch{})
	f.use(s2, 1)
	f.written()
	*f.now = f.now.Add(time.Hour + core.UsageDelay)
	f.hold(s, 20*time.Hour)
	ten := core.HourOf(*f.now)
	_, err := store.UpdateAccount(core.WithAuditTime(t.Context(), *f.now), f.id, func(a *core.Account) error {
		a.UsageFeed.Next = ten
		for i := range core.MaxWaitingUsers {
			a.UsageFeed.Waiting = append(a.UsageFeed.Waiting, core.WaitingUser{UserID: int64(1000 + i), From: ten - 1})
		}
		return nil
	})
	f.ok(err)
	for i := range 5 {
		*f.now = f.now.Add(time.Hour)
		_, err = f.svc.WriteUsage(t.Context(), f.id)
		t.Logf("hour %d: %v, waiting %d, next %v", i, err, len(f.feed().Waiting), f.feed().Next)
	}
	if err != nil {
		t.Error("5000 users without a hold still wait, and the scan has stopped:", err)
	}
}

// The hours of a user that is deleted before the feed has begun are written.
func TestUsageFeedDeletedBeforeBegin(t *testing.T) {
	f := newFeedTest(t, memstore.New())
	u, _, s := f.customer("anna", f.plan(1000), core.KeyPatch{})
	f.use(s, 5)
	*f.now = f.now.Add(30 * time.Second)
	f.ok(f.svc.DeleteUser(t.Context(), f.id, u.ID))
	*f.now = f.now.Add(2 * time.Hour)
	if got := f.written(); len(got) == 0 {
		t.Error("the last hours of the deleted user are lost")
	}
}

// A webhook that is disabled while its events are written gets them after it is enabled and the feed is rewound.
func TestUsageFeedDisabledWhileWriting(t *testing.T) {
	store := &daysHookStore{Store: memstore.New()}
	f := newFeedTest(t, store)
	_, _, s := f.customer("anna", f.plan(1000), core.KeyPatch{})
	f.use(s, 5)
	ten := core.HourOf(*f.now)
	*f.now = f.now.Add(time.Hour + core.UsageDelay)
	active := func(on bool) {
		_, err := f.svc.UpdateWebhook(f.Context(), f.id, f.webhook.ID, core.WebhookPatch{Active: &on})
		f.ok(err)
	}
	store.beforeDaysOf = func() { active(false) }
	f.written()
	active(true)
	f.rewind(ten)
	got := f.written()
	if len(got) != 2 {
		t.Errorf("after enabling and the rewind: got %v, next %v", got, f.feed().Next)
	}
}

// blockedStore is a store whose Plans waits until gate is closed.
type blockedStore struct {
	core.Store
	account string
	gate    chan struct{}
}

func (s *blockedStore) Plans(ctx context.Context, account string, p core.Page) ([]*core.Plan, int, error) {
	if s.gate != nil && account == s.account {
		<-s.gate
	}
	return s.Store.Plans(ctx, account, p)
}

// Reports that fill the queue of large queries of the account do not stop its feed.
func TestUsageFeedBesideReports(t *testing.T) {
	store := &blockedStore{Store: memstore.New()}
	f := newFeedTest(t, store)
	_, _, s := f.customer("anna", f.plan(1000), core.KeyPatch{})
	f.use(s, 5)
	day := core.DateOf(*f.now)
	*f.now = f.now.Add(time.Hour + core.UsageDelay)
	store.account, store.gate = f.id, make(chan struct{})
	for range 17 {
		go f.svc.StreamReport(context.Background(), f.id, service.ReportQuery{First: day, Last: day, Key: true}, func([]service.ReportRow) error { return nil })
	}
	time.Sleep(200 * time.Millisecond)
	_, err := f.svc.WriteUsage(t.Context(), f.id)
	close(store.gate)
	if err != nil {
		t.Error("17 reports:", err)
	}
}
