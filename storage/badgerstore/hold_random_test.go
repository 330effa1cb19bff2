package badgerstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

func openIDs(s *Store) map[string]bool {
	ids := map[string]bool{}
	s.counters.each(func(sh *shard) {
		for of, list := range sh.open {
			for _, h := range list {
				if of == h.key {
					ids[h.id] = true
				}
			}
		}
	})
	return ids
}

// TestRandomHolds compares the open holds, and their records, with a model after requests, settlements and deleted users at the failpoints of checkpoints, after
// kills, and after checkpoints that fail half way.
func TestRandomHolds(t *testing.T) {
	for seed := range uint64(2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { randomHolds(t, seed) })
	}
}

func randomHolds(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 77))
	dir := t.TempDir()
	var s *Store
	open := map[string]bool{}
	copies := 0
	var inside func(failpoint)
	o := quiet
	o.failpoint = func(f failpoint) {
		if inside != nil {
			inside(f)
		}
	}
	s = openAlone(t, dir, o)
	keys := []string{"key0", "key1", "key2"}
	known(t, s, keys...)
	nextUser := int64(20)
	step := func() {
		ctx := context.Background()
		if random.IntN(2) == 0 || len(open) == 0 {
			key, user := keys[random.IntN(3)], int64(1)
			if random.IntN(3) == 0 {
				key, user = "", 1+random.Int64N(8)
			}
			c := request(key, user, endless, noon)
			c.Shared = key == "" || random.IntN(2) == 0
			c.Hold = &core.NewHold{ID: core.NewHoldID(user), ExpiresAt: noon.Add(23 * time.Hour), PricedAt: noon}
			v, err := s.Consume(ctx, c)
			if err != nil || v.HoldID == "" {
				t.Fatalf("open: %+v %v", v, err)
			}
			open[c.Hold.ID] = true
			return
		}
		ids := slices.Sorted(maps.Keys(open))
		id := ids[random.IntN(len(ids))]
		h, err := s.Hold(ctx, acct, id)
		if err != nil {
			t.Fatalf("Hold %s: %v", id, err)
		}
		if _, _, err := s.Settle(ctx, h.Settle(acct, core.HoldSettled, 1, nil, noon, time.Hour)); err != nil {
			t.Fatalf("Settle: %v", err)
		}
		delete(open, id)
	}
	deletion := func() { // a user with a hold is deleted
		nextUser++
		key := fmt.Sprint("gone", nextUser)
		addUserAndKey(t, s, nextUser, key)
		for range 2 {
			c := request(key, nextUser, endless, noon)
			c.Shared = random.IntN(2) == 0
			c.Hold = &core.NewHold{ID: core.NewHoldID(nextUser), ExpiresAt: noon.Add(23 * time.Hour), PricedAt: noon}
			if _, err := s.Consume(context.Background(), c); err != nil {
				t.Fatal(err)
			}
			open[c.Hold.ID] = true
		}
		for id := range open {
			if u, ok := core.HoldUser(id); ok && u == nextUser {
				delete(open, id)
			}
		}
		if random.IntN(2) == 0 {
			inside = nil
			writeCheckpoint(t, s)
		}
		user := nextUser
		update(t, s, func(tx core.Tx) error { return tx.DeleteUser(user) })
	}
	check := func(s *Store, what string) {
		t.Helper()
		if got := openIDs(s); !maps.Equal(got, open) {
			t.Fatalf("%s: open %v, want %v", what, len(got), len(open))
		}
		n := 0
		s.holds.mu.Lock()
		for _, x := range s.holds.open {
			n += x
		}
		s.holds.mu.Unlock()
		if n != len(open) {
			t.Fatalf("%s: counted %d, want %d", what, n, len(open))
		}
	}
	verify := func(what string) { // what a kill leaves now
		copies++
		to := filepath.Join(t.TempDir(), "copy")
		copyKilled(t, to, dir)
		for i := range 2 {
			c := openAlone(t, to, quiet)
			check(c, fmt.Sprint(what, " reopened ", i))
			writeCheckpoint(t, c)
			if got := len(stored(t, c, string(rune(kindHold)))); got != len(open) {
				t.Fatalf("%s: %d records of open holds, want %d", what, got, len(open))
			}
			abandon(t, c)
		}
	}
	for round := range 30 {
		for range random.IntN(6) {
			step()
		}
		if random.IntN(5) == 0 {
			deletion()
		}
		kill := failpoint(random.IntN(int(failpoints)))
		when := random.IntN(3)
		killed := false
		inside = func(f failpoint) {
			if f == failPages || f == failPagesWritten || f == failCommit || f == failCommitted || f == failCheckpoint {
				if random.IntN(2) == 0 {
					inner := inside
					inside = nil
					for range random.IntN(4) {
						step()
					}
					if f == kill && !killed && copies < 8 {
						if when--; when < 0 {
							killed = true
							verify(fmt.Sprintf("round %d, failpoint %d", round, f))
						}
					}
					inside = inner
				}
			}
		}
		if random.IntN(4) == 0 { // a checkpoint that fails half way
			n := random.IntN(3)
			s.commits(func() error {
				if n--; n < 0 {
					return errors.New("refused")
				}
				return nil
			})
			_ = s.checkpoint()
			s.commits(func() error { return nil })
		} else {
			writeCheckpoint(t, s)
		}
		inside = nil
		check(s, fmt.Sprint("round ", round))
		if random.IntN(8) == 0 {
			abandon(t, s)
			s = openAlone(t, dir, o)
			check(s, fmt.Sprint("restart ", round))
		}
	}
	writeCheckpoint(t, s)
	writeCheckpoint(t, s)
	if got := len(stored(t, s, string(rune(kindHold)))); got != len(open) {
		t.Fatalf("%d records of open holds, want %d", got, len(open))
	}
	verify("end")
}
