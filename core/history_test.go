package core_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/limitkeeper/limitkeeper/core"
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
		service := core.NewService(&store, core.Config{Clock: func() time.Time { return now.Add(time.Hour) }})
		a, _, _, err := service.CreateAccount(ctx, "acme")
		if err != nil {
			t.Fatal(err)
		}
		plan, _ := service.CreatePlan(ctx, a.ID, core.PlanPatch{Name: new("basic"), Unlimited: true})
		var keys []*core.Key
		users := rapid.IntRange(1, 4).Draw(t, "users")
		for i := range users {
			u, err := service.CreateUser(ctx, a.ID, core.UserPatch{Name: new(fmt.Sprint(i)), PlanID: core.Some(plan.ID)})
			if err != nil {
				t.Fatal(err)
			}
			k, _, err := service.CreateKey(ctx, a.ID, core.KeyPatch{Name: new("key"), UserID: &u.ID})
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
				c.Refused = core.Reasons()[1+serial/4%3]
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

		f := core.HistoryFilter{Endpoint: rapid.SampledFrom([]string{"", "/1/", "/none"}).Draw(t, "endpoint"),
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
		got, found, complete, err := service.AccountHistory(ctx, a.ID, f, p)
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
	service := core.NewService(store, core.Config{Clock: func() time.Time { return now }})
	a, _, _, _ := service.CreateAccount(ctx, "acme")
	plan, _ := service.CreatePlan(ctx, a.ID, core.PlanPatch{Name: new("basic"), Unlimited: true})
	u, err := service.CreateUser(ctx, a.ID, core.UserPatch{Name: new("alice"), PlanID: core.Some(plan.ID)})
	if err != nil {
		t.Fatal(err)
	}
	_, secret, err := service.CreateKey(ctx, a.ID, core.KeyPatch{Name: new("key"), UserID: &u.ID})
	if err != nil {
		t.Fatal(err)
	}
	made := 0
	for _, n := range []int{core.MaxFound - 1, core.MaxFound + 1} {
		for ; made < n; made++ {
			if _, err := service.Validate(ctx, a.ID, core.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 1}); err != nil {
				t.Fatal(err)
			}
		}
		_, found, complete, err := service.AccountHistory(ctx, a.ID, core.HistoryFilter{UserID: u.ID}, core.Page{Number: 1, Size: 10})
		if err != nil || found != min(n, core.MaxFound) || complete != (n < core.MaxFound) {
			t.Errorf("%d requests: got %d, complete %t, %v", n, found, complete, err)
		}
	}
}
