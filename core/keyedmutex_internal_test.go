package core

import (
	"context"
	"errors"
	"testing"
)

// An account runs one large query at a time, and a bounded number waits. Other accounts do not
// wait for it. Idle accounts take no memory.
func TestTurns(t *testing.T) {
	var all turns
	end, err := all.take(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	other, err := all.take(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := all.take(gone, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that is gone: got %v", err)
	}
	next := make(chan func())
	for range maxWaitingReads {
		if _, err := all.join("a"); err != nil { // as take does before it waits
			t.Fatal(err)
		}
	}
	if _, err := all.take(t.Context(), "a"); !errors.Is(err, ErrTooManyRequests) {
		t.Errorf("one more than may wait: got %v, want %v", err, ErrTooManyRequests)
	}
	for range maxWaitingReads {
		all.leave("a", all.byAccount["a"])
	}
	go func() {
		end, err := all.take(t.Context(), "a")
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
	if len(all.byAccount) != 0 {
		t.Errorf("kept: %v", all.byAccount)
	}
}
