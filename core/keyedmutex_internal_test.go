package core

import (
	"context"
	"errors"
	"testing"
)

// An account runs one large query at a time, and a bounded number waits. Other accounts are not
// delayed. Idle accounts take no memory.
func TestKeyedMutex(t *testing.T) {
	var all keyedMutex
	end, err := all.lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	other, err := all.lock(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := all.lock(gone, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled caller: got %v", err)
	}
	next := make(chan func())
	for range maxWaitingQueries {
		if _, err := all.addWaiter("a"); err != nil { // as lock does before it waits
			t.Fatal(err)
		}
	}
	if _, err := all.lock(t.Context(), "a"); !errors.Is(err, ErrTooManyRequests) {
		t.Errorf("one waiter above the bound: got %v, want %v", err, ErrTooManyRequests)
	}
	for range maxWaitingQueries {
		all.release("a", all.byKey["a"])
	}
	go func() {
		end, err := all.lock(t.Context(), "a")
		if err != nil {
			t.Error(err)
		}
		next <- end
	}()
	select {
	case <-next:
		t.Error("two large queries of one account run")
	default:
	}
	end()
	(<-next)()
	other()
	if len(all.byKey) != 0 {
		t.Errorf("idle accounts in memory: %v", all.byKey)
	}
}
