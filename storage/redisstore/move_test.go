package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// Two processes move keys back and forth between users under load. Every answered request counts exactly
// once: counters, histories and request ids move along. Concurrent reads never return less than was
// answered.
func TestMovesUnderLoad(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	o := faulty(c.Addrs()...)
	o.Timeout = 0 // that of open: no call may time out
	w := newWorld(t, openFaulty(t, o), 2)
	for i := range w.keys { // moves one key with request ids and one without
		if w.keys[i].UserID != 1 {
			w.keys = w.keys[:i]
			break
		}
	}
	m := &moves{w: w, answered: make([]atomic.Int64, len(w.keys))}
	ctx, quit := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer quit()
	for g := range 2 {
		s := openFaulty(t, o)
		all.Go(func() { m.moveKeys(ctx, t, s, g) })
	}
	for g := range 6 {
		all.Go(func() { m.send(ctx, t, g) })
	}
	all.Go(func() { m.read(ctx, t) })
	time.Sleep(3 * time.Second)
	until(t, "10 moves", func() bool { return m.moved.Load() >= 10 })
	quit()
	all.Wait()

	t.Logf("%d moves, %d requests asked again since the key had moved, %d reads", m.moved.Load(), m.again.Load(), m.reads.Load())
	sum := 0
	for i := range w.keys {
		want := int(m.answered[i].Load())
		sum += want
		if used, entries := w.used(t, w.keys[i].ID, 0), w.entries(t, w.keys[i].ID, 0); used != want || entries != want {
			t.Errorf("%s has counted %d, its history has %d; want the %d that were answered", w.keys[i].ID, used, entries, want)
		}
		if n := w.onDays(t, core.DaysFilter{Account: w.account, KeyID: w.keys[i].ID}); n != want {
			t.Errorf("%s was allowed %d on its days, want the %d that were answered", w.keys[i].ID, n, want)
		}
	}
	if used, entries := w.used(t, "", 1)+w.used(t, "", 2), w.entries(t, "", 1)+w.entries(t, "", 2); used != sum || entries != sum {
		t.Errorf("both users have counted %d, %d in their histories; want the %d that were answered", used, entries, sum)
	}
	if n := w.onDays(t, core.DaysFilter{Account: w.account}); n != sum {
		t.Errorf("the account was allowed %d on its days, want the %d that were answered", n, sum)
	}
}

type moves struct {
	w                   *world
	answered            []atomic.Int64 // by key
	moved, again, reads atomic.Int64
}

// moveKeys moves keys back and forth.
func (m *moves) moveKeys(ctx context.Context, t *testing.T, s *redisstore.Store, g int) {
	for n := 0; ctx.Err() == nil; n++ {
		err := s.Update(t.Context(), m.w.account, func(tx core.Tx) error {
			k, err := tx.Key(m.w.keys[(n+g)%len(m.w.keys)].ID)
			if err != nil {
				return err
			}
			k.UserID = 3 - k.UserID
			return tx.PutKey(k)
		})
		if err != nil {
			t.Errorf("Update: %v", err)
			return
		}
		m.moved.Add(1)
		time.Sleep(5 * time.Millisecond)
	}
}

// send sends requests. It looks up a key that has moved, and repeats the request. It sends half of the
// requests with an id, twice.
func (m *moves) send(ctx context.Context, t *testing.T, g int) {
	for n := 0; ctx.Err() == nil; n++ {
		i, id := n%len(m.w.keys), ""
		if i%2 == 0 {
			id = fmt.Sprintf("%d-%d", g, n)
		}
		if !m.count(t, i, id) {
			return
		}
		m.answered[i].Add(1)
		if id != "" && n%4 == 0 && !m.count(t, i, id) {
			return
		}
	}
}

func (m *moves) count(t *testing.T, i int, id string) bool {
	for {
		k, err := m.w.s.Key(t.Context(), m.w.account, m.w.keys[i].ID)
		if err != nil {
			t.Errorf("Key: %v", err)
			return false
		}
		v, err := m.w.s.Consume(t.Context(), consumption(k, id, true))
		switch {
		case err == nil && v.Allowed:
			return true
		case !errors.Is(err, core.ErrKeyNotFound):
			t.Errorf("Consume: %v, %v; want it allowed", v.Allowed, err)
			return false
		}
		m.again.Add(1)
	}
}

// read reads counters and histories of the keys.
func (m *moves) read(ctx context.Context, t *testing.T) {
	for n := 0; ctx.Err() == nil; n++ {
		i := n % len(m.w.keys)
		id, want := m.w.keys[i].ID, int(m.answered[i].Load())
		if used := m.w.used(t, id, 0); used < want {
			t.Errorf("%s has counted %d while it moves, want %d at least", id, used, want)
		}
		want = int(m.answered[i].Load())
		if entries := m.w.entries(t, id, 0); entries < want {
			t.Errorf("the history of %s has %d while it moves, want %d at least", id, entries, want)
		}
		m.reads.Add(1)
	}
}
