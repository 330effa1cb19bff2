package redisstore_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// clockTest simulates nodes, some with wrong clocks, and remembers the entries in order of arrival.
type clockTest struct {
	*world
	t      *testing.T
	server *redistest.Server
	now    time.Time
	n      int // number of entries
}

func newClockTest(t *testing.T, history int) *clockTest {
	t.Helper()
	server := redistest.Start(t)
	s := open(t, redisstore.Options{Addresses: []string{server.Addr()}, History: history})
	t.Cleanup(func() { _ = s.Close() })
	return &clockTest{world: newWorld(t, s, 2), t: t, server: server, now: time.Now().UTC().Truncate(time.Millisecond)}
}

// entry returns the next entry of a key.
func (c *clockTest) entry(k *core.Key, at time.Time) core.Entry {
	c.n++
	return core.Entry{At: at, KeyID: k.ID, UserID: k.UserID, Cost: 1, Method: "GET", Endpoint: strconv.Itoa(c.n)}
}

// count counts a request with a key at a time, or denies it if limit is 0.
func (c *clockTest) count(k *core.Key, at time.Time, limit int64) {
	c.t.Helper()
	r := consumption(k, "", true)
	r.Limit, r.Entry = limit, c.entry(k, at)
	if _, err := c.s.Consume(c.t.Context(), r); err != nil {
		c.t.Fatalf("Consume: %v", err)
	}
}

// write imports n entries of a key, one a second. late returns the lateness of each.
func (c *clockTest) write(k *core.Key, n int, late func(i int) time.Duration) {
	c.t.Helper()
	var entries []core.Entry
	for i := range n {
		c.now = c.now.Add(time.Second)
		entries = append(entries, c.entry(k, c.now.Add(-late(i))))
	}
	for some := range slices.Chunk(entries, 500) {
		for _, of := range []core.CounterID{{Account: c.account, KeyID: k.ID}, {Account: c.account, UserID: k.UserID}} {
			if err := c.s.AppendHistory(c.t.Context(), of, some, core.DefaultRetention); err != nil {
				c.t.Fatalf("AppendHistory: %v", err)
			}
		}
	}
}

// onceLate returns a late function for write: entry i has the given lateness, all others none.
func onceLate(i int, late time.Duration) func(int) time.Duration {
	return func(n int) time.Duration {
		if n == i {
			return late
		}
		return 0
	}
}

// moveKey moves a key to a user.
func (c *clockTest) moveKey(k *core.Key, user int64) {
	c.t.Helper()
	err := c.s.Update(c.t.Context(), c.account, func(tx core.Tx) error {
		moved, err := tx.Key(k.ID)
		if err != nil {
			return err
		}
		moved.UserID = user
		return tx.PutKey(moved)
	})
	if err != nil {
		c.t.Fatalf("Update: %v", err)
	}
	k.UserID = user
}

// history returns a page of a history since a time, and the number of its entries.
func (c *clockTest) history(of core.CounterID, since time.Time, p core.Page) ([]core.Entry, int) {
	c.t.Helper()
	entries, total, err := c.s.History(c.t.Context(), of, since, p)
	if err != nil {
		c.t.Fatalf("History: %v", err)
	}
	return entries, total
}

// check fails the test unless the histories of user and key list entries in order of arrival, and random
// searches find exactly the later entries, in pages.
func (c *clockTest) check(k *core.Key, random *rand.Rand) {
	c.t.Helper()
	for _, of := range []core.CounterID{{Account: c.account, KeyID: k.ID}, {Account: c.account, UserID: k.UserID}} {
		all, total := c.history(of, time.Time{}, core.Page{Number: 1, Size: 1_000_000})
		if len(all) != total {
			c.t.Fatalf("history of %+v: %d entries of %d", of, len(all), total)
		}
		for i := 1; i < total; i++ {
			if number(c.t, &all[i-1]) <= number(c.t, &all[i]) {
				c.t.Fatalf("history of %+v: %s is before %s", of, all[i-1].Endpoint, all[i].Endpoint)
			}
		}
		for range min(total, 20) {
			since := between(all[random.IntN(total)].At, all[random.IntN(total)].At, random)
			want := slices.DeleteFunc(slices.Clone(all), func(e core.Entry) bool { return !e.At.After(since) })
			size := 1 + random.IntN(50)
			page := core.Page{Number: 1 + random.IntN(2+len(want)/size), Size: size}
			got, n := c.history(of, since, page)
			first := min(page.Offset(), len(want))
			if wanted := want[first:min(first+size, len(want))]; n != len(want) || !slices.EqualFunc(got, wanted, func(a, b core.Entry) bool { return reflect.DeepEqual(a, b) }) {
				c.t.Fatalf("history of %+v after %v of %d entries, page %+v: got %d of %d, want %d of %d\nlateness: %q",
					of, since, total, page, len(got), n, len(wanted), len(want), c.lateness(of.UserID, k))
			}
		}
	}
}

// between returns a random time: in half of the calls near a, otherwise from a to b.
func between(a, b time.Time, random *rand.Rand) time.Time {
	if random.IntN(2) == 0 {
		return a.Add(time.Duration(random.IntN(40_001)-20_000) * time.Millisecond / time.Duration(1+random.IntN(20_000)))
	}
	return a.Add(time.Duration(random.Float64() * float64(b.Sub(a))))
}

func number(t *testing.T, e *core.Entry) int {
	t.Helper()
	n, err := strconv.Atoi(e.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// lateness returns the stored lateness of a history: of the user, or of a key unless k is nil.
func (c *clockTest) lateness(user int64, k *core.Key) string {
	c.t.Helper()
	if user != 0 {
		return c.server.Do(c.t, "HGET", fmt.Sprintf("%s{%s/%d}c", redisstore.DefaultPrefix, c.account, user), "lu")
	}
	return c.server.Do(c.t, "HGET", fmt.Sprintf("%s{%s/%d}c", redisstore.DefaultPrefix, c.account, k.UserID), fmt.Sprint("l", k.Seq))
}

// A search in a history finds exactly the later entries, in order of arrival, whatever the clocks show:
// small differences, a clock that is ahead or behind once or for long, days without requests, expired
// entries, full histories, and moved keys.
func TestLateEntries(t *testing.T) {
	for seed := range uint64(2) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			c, random := newClockTest(t, 3000), rand.New(rand.NewPCG(seed, 0))
			k := &c.keys[0]
			for range 12 {
				c.change(k, random)
				c.check(k, random)
			}
		})
	}
}

// change counts requests with right or wrong clocks. Then it may advance the time, move the key, or change
// the length of histories.
func (c *clockTest) change(k *core.Key, random *rand.Rand) {
	c.t.Helper()
	wrong := time.Duration(random.NormFloat64() * float64(time.Hour) * float64(random.IntN(30)))
	often := []int{2, 3, 50, 1 << 20}[random.IntN(4)]
	c.write(k, random.IntN(800), func(i int) time.Duration {
		late := time.Duration(random.IntN(3000)) * time.Millisecond
		if i == 10 || random.IntN(often) == 0 {
			late += wrong
		}
		return late
	})
	for range random.IntN(60) {
		at := c.now.Add(time.Duration(random.IntN(5)) * time.Millisecond)
		if random.IntN(4) == 0 {
			at = c.now.Add(-wrong)
		}
		c.count(k, at, int64(random.IntN(2))*core.MaxLimit)
	}
	switch random.IntN(6) {
	case 0:
		c.now = c.now.Add(time.Duration(random.IntN(72)) * time.Hour)
	case 1:
		c.moveKey(k, 3-k.UserID)
	case 2:
		c.s.SetHistoryCap(200 + random.IntN(3000))
	}
}

// While a history holds an entry from a day ahead, searches read more of the list, in chunks. Afterwards
// they are fast again.
func TestDayAhead(t *testing.T) {
	const entries = 5000
	c := newClockTest(t, entries)
	k, random := &c.keys[0], rand.New(rand.NewPCG(1, 1))
	c.write(k, entries, onceLate(entries/10, -24*time.Hour))
	c.check(k, random)
	for _, user := range []int64{0, k.UserID} {
		if late := c.lateness(user, k); !regexp.MustCompile(`^\d \d{5} \d+$`).MatchString(late) {
			t.Errorf("lateness: %q, want small, a day, and a time", late)
		}
	}
	of := core.CounterID{Account: c.account, KeyID: k.ID}
	for i := 0; i < entries; i += 500 {
		c.server.Do(t, "CONFIG", "RESETSTAT")
		c.history(of, c.now.Add(-time.Duration(i)*time.Second), core.Page{Number: 1, Size: 10})
		if n := c.commands(); n > 100 {
			t.Errorf("a search %d s before the end reads the list %d times, want 100 at most", i, n)
		}
	}
	c.now = c.now.Add(25 * time.Hour)
	for i := range 4 { // two clocks that differ by seconds
		c.write(k, entries/3, func(i int) time.Duration { return time.Duration(i%2) * 3 * time.Second })
		if i == 1 && len(c.lateness(0, k)) == 1 {
			t.Error("the lateness is dropped while the entry is in the list")
		}
	}
	c.check(k, random)
	for _, user := range []int64{0, k.UserID} {
		if late := c.lateness(user, k); late != "3" && late != "4" {
			t.Errorf("lateness: %q, want a few seconds", late)
		}
	}
}

// commands returns the number of LRANGE and LINDEX calls since CONFIG RESETSTAT.
func (c *clockTest) commands() (sum int) {
	for _, m := range regexp.MustCompile(`cmdstat_(?:lindex|lrange):calls=(\d+)`).FindAllStringSubmatch(c.server.Do(c.t, "INFO", "commandstats"), -1) {
		n, _ := strconv.Atoi(m[1])
		sum += n
	}
	return sum
}

// Searches find late denials, although a key stores only the time of its last one.
func TestLateDenials(t *testing.T) {
	for name, seconds := range map[string][]int{
		"ahead again": {1000, 200, 201, 202, 1000, 210, 211},
		"ever later":  {200, 192, 210, 208, 206, 204, 202, 200, 198, 196, 194, 192, 190},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, random := newClockTest(t, 10_000), rand.New(rand.NewPCG(1, 1))
			k := &c.keys[0]
			for i := range 200 {
				c.count(k, c.now.Add(time.Duration(i)*time.Second), 0)
			}
			for _, i := range seconds {
				c.count(k, c.now.Add(time.Duration(i)*time.Second), 0)
				for range 10 {
					c.check(k, random)
				}
			}
		})
	}
}

// A move takes the lateness of a history along.
func TestLatenessMoves(t *testing.T) {
	c := newClockTest(t, 10_000)
	k, random := &c.keys[0], rand.New(rand.NewPCG(1, 1))
	c.write(k, 1000, onceLate(500, -24*time.Hour))
	before := c.lateness(0, k)
	if before == "" {
		t.Fatal("no lateness is stored")
	}
	for range 2 {
		c.moveKey(k, 3-k.UserID)
		if got := c.lateness(0, k); got != before {
			t.Errorf("lateness after a move: %q, want %q", got, before)
		}
		c.check(k, random)
	}
}

// A history lives as long as its newest entry, even if an older entry is from a clock ahead.
func TestHistoryTTLWithClockAhead(t *testing.T) {
	c := newClockTest(t, 10_000)
	k := &c.keys[0]
	list := fmt.Sprintf("%s{%s/%d}h:%d", redisstore.DefaultPrefix, c.account, k.UserID, k.Seq)
	c.count(k, c.now.Add(24*time.Hour), core.MaxLimit)
	for range 3 {
		c.server.Do(t, "PEXPIRE", list, "60000")
		c.now = c.now.Add(time.Hour)
		c.count(k, c.now, core.MaxLimit)
		if lives, err := strconv.Atoi(c.server.Do(t, "PTTL", list)); err != nil || lives < int(core.DefaultRetention.Milliseconds()) {
			t.Errorf("the history lives for %d ms, %v; want as long as its entries are kept", lives, err)
		}
	}
}

// Entries keep their lateness when the entry that has made them late is dropped: else they would move in a list, and be listed again.
func TestLatenessStays(t *testing.T) {
	c := newClockTest(t, 64)
	k, ahead := &c.keys[0], c.now.Add(20*time.Second)
	c.count(k, ahead, core.MaxLimit)
	for i := range 200 {
		c.count(k, c.now.Add(time.Duration(i)*time.Millisecond), core.MaxLimit)
	}
	for _, of := range []core.CounterID{{Account: c.account, KeyID: k.ID}, {Account: c.account, UserID: k.UserID}} {
		list, _, err := c.s.History(t.Context(), of, time.Time{}, core.Page{Number: 1, Size: 300})
		if err != nil || len(list) == 0 || len(list) > 199 {
			t.Fatalf("%+v: got %d entries, %v; want fewer than were counted", of, len(list), err)
		}
		for _, e := range list {
			if !e.LatestSoFar().Equal(ahead) {
				t.Errorf("%+v: the entry of %v is %v late, want %v", of, e.At, e.Late, ahead.Sub(e.At))
			}
		}
	}
}
