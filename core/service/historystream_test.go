package service_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// streamed returns the endpoints of all entries of a stream.
func streamed(t rapid.TB, svc *service.Service, account string, f service.HistoryFilter) (got []string) {
	t.Helper()
	err := svc.StreamHistory(context.Background(), account, f, func(entries []core.Entry) error {
		for _, e := range entries {
			got = append(got, e.Endpoint)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// For any times and filters, a stream has the entries of the pages, in their order. It leaves out the entries that are counted meanwhile.
func TestStreamHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := at("2026-03-10T12:00:00Z")
		store := growingStore{Store: memstore.New(), mu: new(sync.Mutex)}
		svc := service.New(&store, service.Config{Clock: func() time.Time { return now }})
		users := rapid.IntRange(1, 4).Draw(t, "users")
		account := accountWithUsers(t, svc, store.Store, users)
		for i, n := range rapid.SliceOfN(rapid.IntRange(0, 20), 0, 100).Draw(t, "times") {
			countAs(t, store.Store, account, int64(rapid.IntRange(1, users).Draw(t, "user")), now.Add(-time.Duration(n)*time.Minute), fmt.Sprint("/", i%3, "/", i))
		}
		f := service.HistoryFilter{Endpoint: rapid.SampledFrom([]string{"", "/1/"}).Draw(t, "endpoint"), UserID: rapid.SampledFrom([]int64{0, 1}).Draw(t, "of")}
		if rapid.Bool().Draw(t, "from") {
			f.From = now.Add(-15 * time.Minute)
		}
		if rapid.Bool().Draw(t, "to") {
			f.To = now.Add(-5 * time.Minute)
		}
		page, err := svc.AccountHistory(context.Background(), account, f, core.Page{Number: 1, Size: 1000})
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, e := range page.Entries {
			want = append(want, e.Endpoint)
		}
		serial := 0
		store.grow = func(of core.CounterID) {
			if serial++; serial%2 == 0 {
				countAs(t, store.Store, account, of.UserID, now.Add(time.Second), "/1/new")
			}
		}
		if got := streamed(t, svc, account, f); !slices.Equal(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
	})
}

// noIndex is a store with a cap and without [core.HistoryIndex].
type noIndex struct{ core.Store }

func (noIndex) HistoryCap() int { return 60 }

func (noIndex) HistoryCut(context.Context, core.CounterID) (bool, error) { return false, nil }

// With more users than a search has histories open, the entries of all users are in order, also the entries of one time. The stream leaves out the
// entries that are counted meanwhile.
func TestStreamHistoryOfManyUsers(t *testing.T) {
	t.Parallel()                 // most of the time the queries rest
	const users, each = 8_500, 2 // at most 8,192 histories are open
	now, capped := at("2026-03-10T12:00:00Z"), &cappedStore{Store: memstore.New(), cap: 60}
	for name, store := range map[string]core.Store{"with an index": memstore.New(), "with a cap, without an index": noIndex{capped}} {
		svc := service.New(store, service.Config{Clock: func() time.Time { return now }})
		account := accountWithUsers(t, svc, store, users)
		var want []string
		for i := range users * each {
			when := i / 7 // seven entries of each time
			user := int64(i*7919)%users + 1
			countAs(t, store, account, user, now.Add(-50*time.Minute+time.Duration(when)*time.Millisecond), fmt.Sprintf("/%09d/%06d", 999_999_999-when, user))
			want = append(want, fmt.Sprintf("/%09d/%06d", 999_999_999-when, user))
		}
		slices.Sort(want)
		var mu sync.Mutex
		reads := 0
		capped.grow = func() {
			mu.Lock()
			defer mu.Unlock()
			if reads++; reads%5 == 0 {
				countAs(t, store, account, int64(reads)%users+1, now.Add(time.Second), fmt.Sprint("/new/", reads))
			}
		}
		got := streamed(t, svc, account, service.HistoryFilter{})
		if len(got) != len(want) {
			t.Errorf("%s: got %d entries, want %d", name, len(got), len(want))
		}
		for i := range min(len(got), len(want)) {
			if got[i] != want[i] {
				t.Fatalf("%s: entry %d: got %s, want %s", name, i, got[i], want[i])
			}
		}
	}
}

// A stream of a store with a cap, which drops an old entry for each new one, repeats no entry.
func TestStreamHistoryWhileBusy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := at("2026-03-10T12:00:00Z")
		store := &cappedStore{Store: memstore.New(), cap: 60}
		svc := service.New(store, service.Config{Clock: func() time.Time { return now.Add(time.Second) }})
		const users = 3
		account := accountWithUsers(t, svc, store, users)
		serial := 0
		use := func() {
			serial++
			now = now.Add(time.Millisecond)
			countAs(t, store, account, int64(serial*7%users)+1, now, fmt.Sprint("/", serial))
		}
		for range rapid.IntRange(0, 150).Draw(t, "entries") {
			use()
		}
		every, reads := rapid.IntRange(1, 9).Draw(t, "reads for each new request"), 0
		var mu sync.Mutex // histories are read at the same time
		store.grow = func() {
			mu.Lock()
			defer mu.Unlock()
			if reads++; reads%every == 0 {
				use()
			}
		}
		got := streamed(t, svc, account, service.HistoryFilter{})
		slices.Sort(got)
		if n := len(slices.Compact(slices.Clone(got))); n != len(got) {
			t.Fatalf("got %d entries, %d of them different: %s", len(got), n, strings.Join(got, " "))
		}
	})
}

// A stream hands over at most 1,000 entries at once, and ends with the error of the reader.
func TestStreamHistoryInSteps(t *testing.T) {
	now, store := at("2026-03-10T12:00:00Z"), memstore.New()
	svc := service.New(store, service.Config{Clock: func() time.Time { return now }})
	account := accountWithUsers(t, svc, store, 1)
	for i := range 2_500 {
		countAs(t, store, account, 1, now.Add(-time.Minute), fmt.Sprint("/", i))
	}
	var steps []int
	stop := errors.New("stop")
	read := func(entries []core.Entry) error {
		if steps = append(steps, len(entries)); len(steps) == 4 {
			return stop
		}
		return nil
	}
	if err := svc.StreamHistory(t.Context(), account, service.HistoryFilter{}, read); err != nil || !slices.Equal(steps, []int{1000, 1000, 500}) {
		t.Errorf("got the steps %v, %v, want 1000, 1000 and 500", steps, err)
	}
	if err := svc.StreamHistory(t.Context(), account, service.HistoryFilter{}, read); !errors.Is(err, stop) || len(steps) != 4 {
		t.Errorf("got %v after %d steps, want the error of the reader after the first", err, len(steps)-3)
	}
}
