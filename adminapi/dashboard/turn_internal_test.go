package dashboard

import (
	"context"
	"errors"
	"testing"
)

// An account has one turn, which the next one gets, and others are not in its way.
func TestTurns(t *testing.T) {
	var all turns
	back, err := all.take(t.Context(), "a")
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
		t.Errorf("who does not wait any more: got %v", err)
	}
	next := make(chan func())
	go func() {
		back, err := all.take(t.Context(), "a")
		if err != nil {
			t.Error(err)
		}
		next <- back
	}()
	select {
	case <-next:
		t.Error("two have the turn")
	default:
	}
	back()
	(<-next)()
	other()
	if len(all.of) != 0 {
		t.Errorf("kept: %v", all.of)
	}
}
