package archive

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
	"github.com/limitkeeper/limitkeeper/storage/storetest"
)

// TestUsageFeedOfMonth makes a month of traffic as in TestInvoice, while the store is reopened, writes of the feed fail before and after they are stored, and the receiver
// gets events twice. The events add up to the notes, by user and hour and by key and hour, and to the report of the month.
func TestUsageFeedOfMonth(t *testing.T) {
	for name, open := range map[string]func(*testing.T) storetest.Opened{
		"memory": func(*testing.T) storetest.Opened { return inMemory() },
		"disk":   onDisk,
		"Redis Cluster": func(t *testing.T) storetest.Opened {
			addresses := redistest.StartCluster(t).Addrs()
			open := func(testing.TB) core.Store { return openRedis(t, 1, addresses...) }
			return storetest.Opened{Store: open(t), Reopen: open}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := open(t)
			f := newFeedTest(t, o)
			f.run()
			for range 3 { // the last holds expire
				f.now = f.now.Add(core.MaxHoldTime)
				f.must(f.s.ExpireHolds(t.Context()))
				f.receive(false)
			}
			f.check()
		})
	}
}

// feedTest is a month with a receiver of its feed.
type feedTest struct {
	*month
	opened   storetest.Opened
	store    core.Store
	feeder   *service.Service // writes and delivers the events; a new one after each failure
	dying    *dyingStore
	webhook  string
	received map[string]feedLine // by id
	repeated int
	died     int
	reopened core.Date // the day of the last reopening
}

// feedLine is the data of an event.
type feedLine struct {
	UserID     int64   `json:"user_id"`
	ExternalID *string `json:"external_id"`
	KeyID      *string `json:"key_id"`
	Hour       time.Time
	Requests   core.Traffic
	Meters     map[string]struct{ Allowed, Denied, Adjusted, Used int64 }
}

func newFeedTest(t *testing.T, o storetest.Opened) *feedTest {
	f := &feedTest{month: newMonth(t, o.Store), opened: o, store: o.Store, received: map[string]feedLine{}}
	w, err := f.s.CreateWebhook(t.Context(), f.account, core.WebhookPatch{URL: new("https://example.com/"), Events: core.Some([]string{core.EventUsage})})
	f.must(err)
	f.webhook = w.ID
	f.newFeeder()
	f.step = func() {
		if day := core.DateOf(f.now); day%4 == 0 && day != f.reopened {
			f.reopened = day
			f.reopen()
		}
		if f.r.IntN(10) == 0 {
			f.must(f.s.ExpireHolds(t.Context()))
		}
		f.receive(true)
	}
	return f
}

func (f *feedTest) clock() service.Config {
	return service.Config{Clock: func() time.Time { return f.now }}
}

func (f *feedTest) newFeeder() {
	f.dying = &dyingStore{Store: f.store, r: f.r, left: -1}
	f.feeder = service.New(f.dying, f.clock())
}

func (f *feedTest) reopen() {
	f.must(f.store.Close())
	f.store = f.opened.Reopen(f.t)
	f.s = service.New(f.store, f.clock())
	f.newFeeder()
}

// receive writes the events that are due, and receives them. With failures, a write may fail, and a received event may be sent again.
func (f *feedTest) receive(failures bool) {
	if failures && f.r.IntN(5) == 0 {
		f.dying.left = f.r.IntN(8)
	}
	for more := true; more; {
		var err error
		if more, err = f.feeder.WriteUsage(f.t.Context(), f.account); errors.Is(err, errDied) {
			f.died++
			f.newFeeder()
			return
		}
		f.must(err)
		f.deliver(failures)
	}
	f.dying.left = -1
}

// deliver receives the events that wait for the webhook.
func (f *feedTest) deliver(failures bool) {
	list, _, err := f.store.Events(f.t.Context(), f.account, core.EventFilter{Webhook: f.webhook}, 0, 100_000)
	f.must(err)
	for _, e := range list {
		var l feedLine
		f.must(json.Unmarshal(e.Data, &l))
		if first, before := f.received[e.ID]; before {
			f.repeated++
			if f.userNames[l.UserID] == "cara" && l.KeyID != nil {
				l.UserID, l.ExternalID = first.UserID, first.ExternalID // the key has moved from anna to cara in between
			}
			if diff := cmp.Diff(first, l); diff != "" {
				f.t.Errorf("the event %s was sent again with other data (-first +again)\n%s", e.ID, diff)
			}
		}
		f.received[e.ID] = l
		if failures && f.r.IntN(10) == 0 {
			continue // the answer was lost
		}
		_, err := f.s.EndAttempt(f.t.Context(), f.account, &core.Attempt{Webhook: f.webhook, EventID: e.ID, Type: e.Type, At: f.now, Status: 200}, e)
		f.must(err)
	}
}

// feedSum identifies a sum of the test: of a user or key, an hour and a meter.
type feedSum struct {
	Of    string
	Hour  time.Time
	Meter string
}

type feedNumbers struct{ Allowed, Denied, Adjusted, Used, RequestsAllowed, RequestsDenied int64 }

// check compares the received events with the notes and with the report.
func (f *feedTest) check() {
	f.t.Helper()
	wantUsers, wantKeys := map[feedSum]feedNumbers{}, map[feedSum]feedNumbers{}
	add := func(to map[feedSum]feedNumbers, s feedSum, n *note) {
		x := to[s]
		x.Allowed += n.allowed
		x.Denied += n.denied
		x.Adjusted += n.adjusted
		x.Used += n.allowed + n.adjusted
		x.RequestsAllowed += n.requests[0]
		x.RequestsDenied += n.requests[1]
		to[s] = x
	}
	deleted := map[string]bool{}
	for _, k := range f.keys {
		deleted[k.name] = k.deleted
	}
	for i := range f.notes {
		n := &f.notes[i]
		add(wantUsers, feedSum{n.user, n.hour, n.meter}, n)
		if n.key != "" && !deleted[n.key] {
			add(wantKeys, feedSum{n.key, n.hour, n.meter}, n)
		}
	}
	gotUsers, gotKeys := map[feedSum]feedNumbers{}, map[feedSum]feedNumbers{}
	for _, l := range f.received {
		to, of := gotUsers, f.userNames[l.UserID]
		if l.KeyID != nil {
			if to, of = gotKeys, f.keyName(*l.KeyID); deleted[of] {
				continue
			}
		}
		for meter, m := range l.Meters {
			n := feedNumbers{m.Allowed, m.Denied, m.Adjusted, m.Used, 0, 0}
			if meter == core.MeterRequests {
				n.RequestsAllowed, n.RequestsDenied = l.Requests.Allowed, l.Requests.Denied
			}
			s := feedSum{of, l.Hour, meter}
			if _, twice := to[s]; twice {
				f.t.Errorf("two events have the %s of %s in the hour %v", meter, of, l.Hour)
			}
			to[s] = n
		}
	}
	none := func(_ feedSum, n feedNumbers) bool { return n == feedNumbers{} }
	for _, m := range []map[feedSum]feedNumbers{wantUsers, wantKeys, gotUsers, gotKeys} {
		maps.DeleteFunc(m, none)
	}
	if diff := cmp.Diff(wantUsers, gotUsers); diff != "" {
		f.t.Errorf("by user and hour (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(wantKeys, gotKeys); diff != "" {
		f.t.Errorf("by key and hour (-want +got)\n%s", diff)
	}
	f.checkReport()
	f.t.Logf("%d changes, %d events, %d repetitions, %d failures of a write", len(f.notes), len(f.received), f.repeated, f.died)
	if f.repeated < 50 || f.died < 50 {
		f.t.Error("too few repetitions or failures for a test")
	}
}

// checkReport compares the events of the month with the report by user and meter. The deleted users have one row.
func (f *feedTest) checkReport() {
	f.t.Helper()
	type row struct {
		user  int64
		meter string
	}
	got := map[row]core.MeterTraffic{}
	for _, l := range f.received {
		if l.KeyID != nil || l.Hour.Before(monthFrom) || !l.Hour.Before(monthTo) {
			continue
		}
		user := l.UserID
		if f.users[f.userNames[user]] == nil {
			user = 0
		}
		for meter, m := range l.Meters {
			got[row{user, meter}] = got[row{user, meter}].Plus(core.MeterTraffic{Allowed: m.Allowed, Denied: m.Denied, Adjusted: m.Adjusted})
		}
	}
	want := map[row]core.MeterTraffic{}
	q := service.ReportQuery{First: core.DateOf(monthFrom), Last: core.DateOf(monthTo) - 1, User: true, Meter: true}
	f.must(f.s.StreamReport(f.t.Context(), f.account, q, func(rows []service.ReportRow) error {
		for _, r := range rows {
			of := row{0, r.Meter}
			if r.User != nil {
				of.user = r.User.ID
			}
			want[of] = r.MeterTraffic
		}
		return nil
	}))
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(row{})); diff != "" || len(want) < 12 {
		f.t.Errorf("the report and the events of the month (-report +events)\n%s", diff)
	}
}

func (f *feedTest) keyName(id string) string {
	i := slices.IndexFunc(f.keys, func(k *invoiceKey) bool { return k.id == id })
	return f.keys[i].name
}

// dyingStore is a store whose process dies at a write: the write is stored or not, and every later call fails.
type dyingStore struct {
	core.Store
	r    *rand.Rand
	left int // writes; -1 for any number
}

var errDied = core.Unavailable(errors.New("the process has died"))

// write runs a write, or dies.
func (s *dyingStore) write(run func() error) error {
	switch s.left {
	case -1:
		return run()
	case 0:
		if s.r.IntN(2) == 0 {
			_ = run()
		}
		s.left = -2
		return errDied
	case -2:
		return errDied
	}
	s.left--
	return run()
}

func (s *dyingStore) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	return s.write(func() error { return s.Store.Update(ctx, account, fn) })
}

func (s *dyingStore) UpdateAccount(ctx context.Context, id string, fn func(*core.Account) error) (a *core.Account, err error) {
	err = s.write(func() error {
		a, err = s.Store.UpdateAccount(ctx, id, fn)
		return err
	})
	return a, err
}
