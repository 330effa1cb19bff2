package keyedmutex

import (
	"context"
	"errors"
	"sync"
	"testing"
)

// One caller at a time holds a key, and callers of other keys do not wait. A caller whose context ends no longer waits. An
// unused key takes no memory.
func TestMutex(t *testing.T) {
	var m Mutex
	unlock, err := m.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if other, err := m.Lock(t.Context(), "b"); err != nil {
		t.Fatal(err)
	} else {
		other()
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Lock(ended, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("a key that another caller holds: got %v, want %v", err, context.Canceled)
	}
	var callers sync.WaitGroup
	n := 0
	for range 50 {
		callers.Go(func() {
			unlock, err := m.Lock(t.Context(), "a")
			if err != nil {
				t.Error(err)
				return
			}
			defer unlock()
			n++ // a second holder is a data race
		})
	}
	unlock()
	callers.Wait()
	if n != 50 || len(m.byKey) != 0 {
		t.Errorf("%d of 50 callers had the key, and %d keys are in memory, want 50 and none", n, len(m.byKey))
	}
}

// The next caller is refused when MaxWaiting callers wait. After these have left, it may wait again.
func TestMaxWaiting(t *testing.T) {
	m := Mutex{MaxWaiting: 16}
	unlock, err := m.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	var waiting []*entry
	for range m.MaxWaiting {
		waiting = append(waiting, m.join("a")) // as Lock does before it waits
	}
	if _, err := m.Lock(t.Context(), "a"); !errors.Is(err, ErrTooMany) {
		t.Errorf("one caller more: got %v, want %v", err, ErrTooMany)
	}
	for _, e := range waiting {
		m.leave("a", e)
	}
	next := make(chan func())
	go func() {
		unlock, err := m.Lock(t.Context(), "a")
		if err != nil {
			t.Error(err)
		}
		next <- unlock
	}()
	select {
	case <-next:
		t.Error("two callers hold the key")
	default:
	}
	unlock()
	(<-next)()
	if len(m.byKey) != 0 {
		t.Errorf("unused keys in memory: %v", m.byKey)
	}
}
