package service_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// growingStore counts another request of a user before some reads of its history.
type growingStore struct {
	*memstore.Store
	mu   *sync.Mutex // held by grow: histories are read at the same time
	grow func(of core.CounterID)
}

func (s growingStore) History(ctx context.Context, of core.CounterID, since time.Time, p core.Page) ([]core.Entry, int, error) {
	if s.grow != nil {
		s.mu.Lock()
		s.grow(of)
		s.mu.Unlock()
	}
	return s.Store.History(ctx, of, since, p)
}

// For any requests, filters and pages, the history of an account is the newest of the matching entries, also while
// requests are counted.
func TestAccountHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		store := growingStore{Store: memstore.New(), mu: new(sync.Mutex)}
		now := at("2026-03-10T12:00:00Z")
		svc := service.New(&store, service.Config{Clock: func() time.Time { return now.Add(time.Hour) }})
		a, _, _, err := svc.CreateAccount(ctx, "acme")
		if err != nil {
			t.Fatal(err)
		}
		plan, _ := svc.CreatePlan(ctx, a.ID, core.PlanPatch{Name: new("basic"), Limit: core.Null[int64]()})
		var keys []*core.Key
		users := rapid.IntRange(1, 4).Draw(t, "users")
		for i := range users {
			u, err := svc.CreateUser(ctx, a.ID, core.UserPatch{Name: new(fmt.Sprint(i)), PlanID: core.Some(plan.ID)})
			if err != nil {
				t.Fatal(err)
			}
			k, _, err := svc.CreateKey(ctx, a.ID, core.KeyPatch{Name: new("key"), UserID: &u.ID})
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, k)
		}
		serial := 0
		count := func(k *core.Key, when time.Time) core.Entry {
			serial++
			c := core.Consumption{Account: a.ID, KeyID: k.ID, KeySeq: k.Seq, UserID: k.UserID, Shared: true, Terms: plan.Terms(), Cost: 1, Retention: time.Hour,
				Entry: core.Entry{At: when, KeyID: k.ID, UserID: k.UserID, Cost: 1, Method: "GET", Endpoint: fmt.Sprintf("/%d/%d", serial%3, serial)}}
			if serial%4 == 0 {
				c.Refused = core.Reasons()[1+serial/4%4]
			}
			v, err := store.Consume(ctx, &c)
			if err != nil {
				t.Fatal(err)
			}
			c.Entry.Denied, c.Entry.Reason = !v.Allowed, v.Reason
			return c.Entry
		}
		var want []core.Entry
		for range rapid.IntRange(0, 200).Draw(t, "requests") {
			now = now.Add(time.Second)
			want = append(want, count(keys[rapid.IntRange(0, users-1).Draw(t, "key")], now))
		}
		slices.Reverse(want)

		f := service.HistoryFilter{Endpoint: rapid.SampledFrom([]string{"", "/1/", "/none"}).Draw(t, "endpoint"),
			Status: rapid.SampledFrom([]string{"", "allowed", "denied"}).Draw(t, "status"),
			Reason: rapid.SampledFrom([]core.Reason{"", core.ReasonExpired}).Draw(t, "reason")}
		if k := keys[0]; rapid.IntRange(0, 3).Draw(t, "of") == 0 {
			f.KeyID = k.ID
		} else if rapid.IntRange(0, 3).Draw(t, "of") == 0 {
			f.UserID = k.UserID
		}
		grows := rapid.Bool().Draw(t, "grows")
		if grows || rapid.Bool().Draw(t, "bounded") {
			f.To = now.Add(time.Duration(rapid.IntRange(-700, 1).Draw(t, "to")) * time.Second)
		}
		if rapid.Bool().Draw(t, "from") {
			f.From = now.Add(time.Duration(rapid.IntRange(-200, 0).Draw(t, "seconds")) * time.Second)
		}
		want = slices.DeleteFunc(want, func(e core.Entry) bool {
			denied := f.Status == "denied"
			return f.Endpoint != "" && e.Endpoint[:min(len(e.Endpoint), len(f.Endpoint))] != f.Endpoint || f.Status != "" && e.Denied != denied ||
				f.Reason != "" && e.Reason != f.Reason || f.KeyID != "" && e.KeyID != f.KeyID || f.UserID != 0 && e.UserID != f.UserID ||
				e.At.Before(f.From) || !f.To.IsZero() && !e.At.Before(f.To)
		})
		if grows {
			later, n := now.Add(10*time.Minute), 0
			store.grow = func(of core.CounterID) {
				if n++; n%3 == 0 && n < 60 {
					count(keys[of.UserID%int64(users)], later)
				}
			}
		}
		p := core.Page{Number: rapid.IntRange(1, 3).Draw(t, "page"), Size: rapid.IntRange(1, 50).Draw(t, "size")}
		h, err := svc.AccountHistory(ctx, a.ID, f, p)
		got, found, complete := h.Entries, h.Found, h.Complete
		if err != nil || !complete || found != len(want) {
			t.Fatalf("got %d entries, complete %t, %v, want %d", found, complete, err, len(want))
		}
		page := want[min(p.Offset(), len(want)):min(p.Offset()+p.Size, len(want))]
		for i := range page {
			page[i].At = page[i].At.UTC()
		}
		if len(page) != len(got) || len(page) > 0 && !reflect.DeepEqual(page, got) {
			t.Fatalf("page %+v of %+v:\n got %v\nwant %v", p, f, got, page)
		}
	})
}

// A search ends after MaxFound entries, and says so.
func TestAccountHistoryBound(t *testing.T) {
	ctx, store, now := t.Context(), memstore.New(), at("2026-03-10T12:00:00Z")
	svc := service.New(store, service.Config{Clock: func() time.Time { return now }})
	a, _, _, _ := svc.CreateAccount(ctx, "acme")
	plan, _ := svc.CreatePlan(ctx, a.ID, core.PlanPatch{Name: new("basic"), Limit: core.Null[int64]()})
	u, err := svc.CreateUser(ctx, a.ID, core.UserPatch{Name: new("alice"), PlanID: core.Some(plan.ID)})
	if err != nil {
		t.Fatal(err)
	}
	_, secret, err := svc.CreateKey(ctx, a.ID, core.KeyPatch{Name: new("key"), UserID: &u.ID})
	if err != nil {
		t.Fatal(err)
	}
	made := 0
	for _, n := range []int{service.MaxFound - 1, service.MaxFound + 1} {
		for ; made < n; made++ {
			if _, err := svc.Validate(ctx, a.ID, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 1}); err != nil {
				t.Fatal(err)
			}
		}
		h, err := svc.AccountHistory(ctx, a.ID, service.HistoryFilter{UserID: u.ID}, core.Page{Number: 1, Size: 10})
		found, complete := h.Found, h.Complete
		if err != nil || found != min(n, service.MaxFound) || complete != (n < service.MaxFound) {
			t.Errorf("%d requests: got %d, complete %t, %v", n, found, complete, err)
		}
	}
}

// accountWithUsers creates an account that has the users 1…n.
func accountWithUsers(t rapid.TB, svc *service.Service, store core.Store, n int) (account string) {
	t.Helper()
	ctx := context.Background() // a test of rapid has no other
	a, _, _, err := svc.CreateAccount(ctx, "acme")
	if err != nil {
		t.Fatal(err)
	}
	err = store.Update(ctx, a.ID, func(tx core.Tx) error {
		for i := range n {
			if err := tx.PutUser(&core.User{AccountID: a.ID, Name: fmt.Sprint(i)}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return a.ID
}

// countAs counts a request of a user without a key.
func countAs(t rapid.TB, store core.Store, account string, user int64, at time.Time, endpoint string) {
	t.Helper()
	c := &core.Consumption{Account: account, UserID: user, Shared: true, Cost: 1, Retention: time.Hour,
		Entry: core.Entry{At: at, UserID: user, Cost: 1, Method: "GET", Endpoint: endpoint}}
	c.Terms.Limit = core.Unlimited
	if _, err := store.Consume(context.Background(), c); err != nil {
		t.Fatal(err)
	}
}

// listAll follows the cursors from page to page, and returns the endpoints of all entries, and whether the list came to its end. No entry
// may be listed twice.
func listAll(t rapid.TB, svc *service.Service, account string, f service.HistoryFilter, size, pages int) (seen map[string]bool, ended bool) {
	t.Helper()
	seen = map[string]bool{}
	for range pages {
		h, err := svc.AccountHistory(context.Background(), account, f, core.Page{Number: 1, Size: size})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range h.Entries {
			if seen[e.Endpoint] {
				t.Fatalf("the entry %s is listed twice", e.Endpoint)
			}
			seen[e.Endpoint] = true
		}
		if h.Next == nil {
			return seen, true
		}
		if f.After, err = service.ParseHistoryCursor(h.Next.String()); err != nil {
			t.Fatal(err)
		}
	}
	return seen, false
}

// countingStore counts the reads of histories.
type countingStore struct {
	*memstore.Store
	reads *atomic.Int64
}

func (s countingStore) History(ctx context.Context, of core.CounterID, since time.Time, p core.Page) ([]core.Entry, int, error) {
	s.reads.Add(1)
	return s.Store.History(ctx, of, since, p)
}

// To list the newest entries of an account, only the histories that have them are read.
func TestAccountHistoryOfManyUsers(t *testing.T) {
	ctx, store, now := t.Context(), countingStore{memstore.New(), new(atomic.Int64)}, at("2026-03-10T12:00:00Z")
	svc := service.New(store, service.Config{Clock: func() time.Time { return now }})
	const users, busy = 500, 3
	account := accountWithUsers(t, svc, store, users)
	for user := range int64(users) {
		countAs(t, store, account, user+1, now.Add(-10*time.Minute), "/")
	}
	for i := range service.MaxFound + 1 {
		countAs(t, store, account, int64(i%busy)+1, now.Add(-time.Minute), "/")
	}
	store.reads.Store(0)
	h, err := svc.AccountHistory(ctx, account, service.HistoryFilter{}, core.Page{Number: 1, Size: 1})
	found, complete := h.Found, h.Complete
	if err != nil || found != service.MaxFound || complete {
		t.Errorf("got %d entries, complete %t, %v", found, complete, err)
	}
	if n := store.reads.Load(); n > users/2 {
		t.Errorf("%d reads of histories; %d of %d users have the newest %d entries", n, busy, users, service.MaxFound)
	}
}

// A list with cursors comes to its end, whatever is in front of them and whatever the filter leaves out.
func TestHistoryCursorGoesOn(t *testing.T) {
	ctx, store, now := t.Context(), memstore.New(), at("2026-03-10T12:00:00Z")
	svc := service.New(store, service.Config{Clock: func() time.Time { return now }})
	account := accountWithUsers(t, svc, store, 1)
	use := func(when time.Time, endpoint string) {
		t.Helper()
		countAs(t, store, account, 1, when, endpoint)
	}
	const many = 110_000 // more than a search reads
	for i := range 3 {
		use(now.Add(-10*time.Minute), fmt.Sprint("/old/", i))
	}
	for i := range many {
		use(now.Add(-10*time.Minute+time.Second+time.Duration(i)*time.Millisecond), "/busy")
	}
	use(now.Add(-time.Minute), "/old/3")
	got, f := []string{}, service.HistoryFilter{UserID: 1, Endpoint: "/old"}
	for range 10 {
		h, err := svc.AccountHistory(ctx, account, f, core.Page{Number: 1, Size: 2})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range h.Entries {
			got = append(got, e.Endpoint)
		}
		if len(got) == 1 {
			use(now.Add(-time.Minute), "/old/new") // at the same time as /old/3
		}
		if f.After = h.Next; f.After == nil {
			break
		}
	}
	if fmt.Sprint(got) != "[/old/3 /old/2 /old/1 /old/0]" || f.After != nil {
		t.Errorf("got the entries %s, and then the cursor %+v", got, f.After)
	}
	f = service.HistoryFilter{UserID: 1, To: now.Add(-10*time.Minute + 500*time.Millisecond)}
	if h, err := svc.AccountHistory(ctx, account, f, core.Page{Number: 1, Size: 10}); err != nil || h.Found != 3 || !h.Complete {
		t.Errorf("behind a busy minute: got %d entries, complete %t, %v", h.Found, h.Complete, err)
	}
}

// Pages with cursors list each entry once and come to an end, whatever the times of the entries and the order in which they were counted.
func TestHistoryCursorOfAnyTimes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		store, now := memstore.New(), at("2026-03-10T12:00:00Z")
		svc := service.New(store, service.Config{Clock: func() time.Time { return now }})
		users := rapid.IntRange(1, 3).Draw(t, "users")
		account := accountWithUsers(t, svc, store, users)
		times := rapid.SliceOfN(rapid.IntRange(1, 4), 0, 30).Draw(t, "times")
		unit := rapid.SampledFrom([]time.Duration{time.Millisecond, time.Minute}).Draw(t, "unit")
		var f service.HistoryFilter
		if end := rapid.IntRange(0, 4).Draw(t, "to"); end > 0 {
			f.To = now.Add(time.Duration(end) * unit)
		}
		want := 0
		for i, n := range times {
			at := now.Add(time.Duration(n) * unit)
			countAs(t, store, account, int64(i%users)+1, at, fmt.Sprint("/", i))
			if f.To.IsZero() || at.Before(f.To) {
				want++
			}
		}
		seen, ended := listAll(t, svc, account, f, rapid.IntRange(1, 5).Draw(t, "size"), len(times)+1)
		if !ended || len(seen) != want {
			t.Fatalf("got %d of %d entries, end %t", len(seen), want, ended)
		}
	})
}

// cappedStore keeps the newest entries of each history, and counts another request before some reads.
type cappedStore struct {
	*memstore.Store
	cap  int
	grow func()
}

func (s *cappedStore) History(ctx context.Context, of core.CounterID, since time.Time, p core.Page) ([]core.Entry, int, error) {
	if s.grow != nil {
		s.grow()
	}
	all, n, err := s.Store.History(ctx, of, since, core.Page{Number: 1, Size: s.cap})
	first := min(p.Offset(), len(all))
	return all[first:min(first+p.Size, len(all))], min(n, s.cap), err
}

func (s *cappedStore) HistoryCap() int { return s.cap }

func (s *cappedStore) HistoryCut(context.Context, core.CounterID) (bool, error) { return false, nil }

// A busy history repeats no entry: neither in one list, also when the store drops as many old entries as it adds, nor from page to page with
// a cursor. No entry that was there is left out.
func TestAccountHistoryWhileBusy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := at("2026-03-10T12:00:00Z")
		store := &cappedStore{Store: memstore.New(), cap: 60}
		svc := service.New(store, service.Config{Clock: func() time.Time { return now.Add(time.Second) }})
		const users = 3
		account := accountWithUsers(t, svc, store, users)
		serial, drops, late := 0, rapid.Bool().Draw(t, "the store drops entries"), rapid.IntRange(0, 20).Draw(t, "how late each fifth request is")
		use := func() {
			serial++
			at := now
			if drops {
				now = now.Add(time.Millisecond)
			} else {
				now = now.Add(time.Duration(serial%3) * time.Millisecond / 2) // several in a millisecond
				at = at.Add(-time.Duration(late*(serial%5/4)) * time.Millisecond)
			}
			countAs(t, store, account, int64(serial*7%users)+1, at.Truncate(time.Millisecond), fmt.Sprint("/", serial))
		}
		before := rapid.IntRange(0, 150).Draw(t, "entries")
		for range before {
			use()
		}
		every, reads := rapid.IntRange(1, 9).Draw(t, "reads for each new request"), 0
		var mu sync.Mutex // histories are read at the same time
		store.grow = func() {
			mu.Lock()
			defer mu.Unlock()
			if reads++; reads%every == 0 && (drops || serial < users*store.cap) {
				use()
			}
		}
		seen, _ := listAll(t, svc, account, service.HistoryFilter{}, rapid.IntRange(1, 100).Draw(t, "size"), 200)
		if !drops {
			for i := range before {
				if !seen[fmt.Sprint("/", i+1)] {
					t.Fatalf("the entry /%d of %d is not listed", i+1, before)
				}
			}
		}
	})
}
