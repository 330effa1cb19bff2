package badgerstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// TestKillFeed: the usage events that a receiver has got add up to the days of each user and of the deleted users, to the unit, after kills during requests, holds, settlements,
// deletions, and the writing and delivery of the events. An event that is repeated after a kill has the same numbers.
func TestKillFeed(t *testing.T) {
	kills := wantedKills(t)
	dir := t.TempDir()
	s := mustOpen(t, dir, Options{})
	if err := errors.Join(createFixture(s), createFeedAccount(s)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	f := &feedReceiver{t: t, events: map[string]feedEvent{}}
	for round := range kills {
		runVictimUntil(t, victimConfig{Dir: dir, Feed: true, Power: round%2 == 1, Round: round}, 20+rand.IntN(300), f.line)
	}
	s = mustOpen(t, dir, Options{})
	defer s.Close()
	svc, ctx := service.New(s, service.Config{Clock: func() time.Time { return feedStart(kills).Add(2 * core.MaxHoldTime) }}), t.Context()
	account, err := svc.AccountByName(ctx, "feed")
	if err == nil {
		err = svc.ExpireHolds(ctx)
	}
	for more := true; more && err == nil; {
		if more, err = svc.WriteUsage(ctx, account.ID); err == nil {
			err = deliverFeed(ctx, s, svc, account.ID, f.line)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	f.check(s, account.ID)
	t.Logf("%d kills, %d events, %d of them repeated", kills, len(f.events), f.repeated)
	if len(f.events) < 10*kills || f.repeated == 0 {
		t.Error("too few events or repetitions: the test does not cover what it is for")
	}
}

// feedStart returns the time at which the victim of a round begins. An hour of its clock lasts 50 ms, and a round has 5 hours: all rounds together are as long as hours are kept.
func feedStart(round int) time.Time {
	return time.Date(2026, time.October, 1, 0, 30, 0, 0, time.UTC).Add(time.Duration(round) * 5 * time.Hour)
}

func createFeedAccount(s *Store) error {
	ctx, svc := context.Background(), service.New(s, service.Config{Clock: func() time.Time { return feedStart(0) }})
	a, _, _, err := svc.CreateAccount(ctx, "feed")
	if err == nil {
		_, err = svc.CreatePlan(ctx, a.ID, core.PlanPatch{Name: new("plan"), Limit: core.Some(int64(1_000_000)), Period: new("month"),
			Limits: core.Some([]core.Limit{{Meter: "tokens", Max: 1_000_000_000, Period: core.Month}})})
	}
	if err == nil {
		_, err = svc.CreateWebhook(ctx, a.ID, core.WebhookPatch{URL: new("https://example.com/"), Events: core.Some([]string{core.EventUsage})})
	}
	return err
}

// runFeed makes requests of new customers, with holds that are settled later, deletes some customers, and writes and delivers the usage events all the time. It writes a line with each
// delivered event.
func runFeed(s *Store, round int) error {
	began, start := time.Now(), feedStart(round)
	clock := func() time.Time { return start.Add(min(time.Since(began)*72_000, 4*time.Hour)) }
	ctx, svc := context.Background(), service.New(s, service.Config{Clock: clock})
	a, err := svc.AccountByName(ctx, "feed")
	if err != nil {
		return err
	}
	plans, _, err := svc.Plans(ctx, a.ID, core.Page{Number: 1, Size: 1})
	if err != nil {
		return err
	}
	fail := func(err error) {
		if err != nil {
			fmt.Println("failed", err)
		}
	}
	for range 6 {
		go func() {
			for {
				u, err := svc.CreateUser(ctx, a.ID, core.UserPatch{Name: new("user"), PlanID: core.Some(plans[0].ID)})
				fail(err)
				_, secret, err := svc.CreateKey(ctx, a.ID, core.KeyPatch{Name: new("key"), UserID: &u.ID})
				fail(err)
				var holds []string
				for range 10 + rand.IntN(60) {
					r := service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 1, Costs: []core.MeterCost{{Meter: "tokens", Cost: 1 + rand.Int64N(100)}}}
					if rand.IntN(3) == 0 {
						r.HoldFor = time.Duration(1+rand.IntN(20)) * time.Hour
					}
					d, err := svc.Validate(ctx, a.ID, r)
					fail(err)
					if d.HoldID != "" {
						holds = append(holds, d.HoldID)
					}
					if len(holds) > 3 {
						_, err := svc.Settle(ctx, a.ID, holds[0], &service.Final{Costs: []core.MeterCost{{Meter: "tokens", Cost: rand.Int64N(200)}}})
						if holds = holds[1:]; !errors.Is(err, core.ErrHoldExpired) {
							fail(err)
						}
					}
					time.Sleep(time.Duration(rand.IntN(8)) * time.Millisecond)
				}
				if rand.IntN(2) == 0 {
					fail(svc.DeleteUser(ctx, a.ID, u.ID))
				}
			}
		}()
	}
	for {
		fail(svc.ExpireHolds(ctx))
		_, err := svc.WriteUsage(ctx, a.ID)
		fail(err)
		fail(deliverFeed(ctx, s, svc, a.ID, func(line string) { fmt.Println(line) }))
		fmt.Println("waiting")
		time.Sleep(time.Millisecond)
	}
}

// deliverFeed calls receive with each event that waits, and then ends its delivery.
func deliverFeed(ctx context.Context, s *Store, svc *service.Service, account string, receive func(string)) error {
	list, _, err := s.Webhooks(ctx, account, core.Page{Number: 1, Size: 1})
	if err != nil {
		return err
	}
	events, _, err := s.Events(ctx, account, core.EventFilter{Webhook: list[0].ID}, 0, 100_000)
	for _, e := range events {
		if err == nil {
			receive(fmt.Sprint("event ", e.ID, " ", string(e.Data)))
			_, err = svc.EndAttempt(ctx, account, &core.Attempt{Webhook: list[0].ID, EventID: e.ID, Type: e.Type, At: svc.Now(), Status: 200}, e)
		}
	}
	return err
}

// feedReceiver has the events that were received.
type feedReceiver struct {
	t        *testing.T
	events   map[string]feedEvent // by id
	repeated int
}

type feedEvent struct {
	UserID   int64   `json:"user_id"`
	KeyID    *string `json:"key_id"`
	Hour     time.Time
	Requests core.Traffic
	Meters   map[string]core.MeterTraffic
}

// line receives the event of a line.
func (f *feedReceiver) line(line string) {
	rest, isEvent := strings.CutPrefix(line, "event ")
	if !isEvent {
		return
	}
	id, data, _ := strings.Cut(rest, " ")
	var e feedEvent
	if err := json.Unmarshal([]byte(data), &e); err != nil {
		f.t.Fatalf("%s: %v", line, err)
	}
	if first, before := f.events[id]; before {
		f.repeated++
		if diff := cmp.Diff(first, e); diff != "" {
			f.t.Errorf("event %s was repeated with other data (-first +again)\n%s", id, diff)
		}
	}
	f.events[id] = e
}

// check compares the sums of the events with the days of the users, and of the deleted users together: user 0.
func (f *feedReceiver) check(s *Store, account string) {
	f.t.Helper()
	type cell struct {
		User  int64
		Date  core.Date
		Meter string
	}
	got, want := map[cell]core.MeterTraffic{}, map[cell]core.MeterTraffic{}
	users, _, err := s.Users(f.t.Context(), account, core.UserFilter{}, everything)
	if err != nil {
		f.t.Fatal(err)
	}
	ids, present := []core.CounterID{{Account: account}}, map[int64]bool{}
	for _, u := range users {
		ids, present[u.ID] = append(ids, core.CounterID{Account: account, UserID: u.ID}), true
	}
	for _, id := range ids {
		lists, err := s.DaysOf(f.t.Context(), []core.CounterID{id}, core.DateOf(feedStart(0)), core.DateOf(feedStart(10_000)))
		if err != nil {
			f.t.Fatal(err)
		}
		for i := range lists[0] {
			day := lists[0][i].Totals(false)
			for _, meter := range []string{core.MeterRequests, "tokens"} {
				if n := day.Of(meter); n != (core.MeterTraffic{}) {
					want[cell{id.UserID, day.Date, meter}] = n
				}
			}
		}
	}
	for _, e := range f.events {
		if e.KeyID != nil {
			continue
		}
		user := e.UserID
		if !present[user] {
			user = 0
		}
		for meter, n := range e.Meters {
			of := cell{user, core.DateOf(e.Hour), meter}
			if sum := got[of].Plus(n); sum != (core.MeterTraffic{}) {
				got[of] = sum
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		f.t.Errorf("the days and the sums of the events (-days +events)\n%s", diff)
	}
}
