package core

import (
	"errors"
	"testing"
)

// An account runs one large query at a time, and maxWaitingQueries wait. The next one is refused at once.
func TestTooManyLargeQueries(t *testing.T) {
	s := &Service{largeQueries: newLargeQueries()}
	unlock, err := s.largeQueries.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	results := make(chan error)
	for range maxWaitingQueries + 1 {
		go func() { results <- s.runQuery(t.Context(), "a", manyCounters, func() error { return nil }) }()
	}
	if err := <-results; !errors.Is(err, ErrTooManyRequests) { // the others wait
		t.Errorf("got error %v, want %v", err, ErrTooManyRequests)
	}
	unlock()
	for range maxWaitingQueries {
		if err := <-results; err != nil {
			t.Errorf("a query that waited: %v", err)
		}
	}
}
