package core

import (
	"context"
	"math"
	"sync"
)

// maxReadings is how many readings of one account wait for their turn. A further one is
// [ErrTooManyRequests].
const maxReadings = 16

// turns let each account run one large reading at a time: one that reads all counters of a
// plan, a user or the account. However often an account asks, it keeps at most one CPU busy.
type turns struct {
	mu sync.Mutex
	of map[string]*turn // by account, while a reading runs or waits
}

type turn struct {
	free  chan struct{} // holds a token while no reading runs
	users int           // readings that run or wait
}

// take waits for the turn of an account, and returns the function that ends it.
func (t *turns) take(ctx context.Context, account string) (end func(), err error) {
	tn, err := t.join(account)
	if err != nil {
		return nil, err
	}
	select {
	case <-tn.free:
		return func() { tn.free <- struct{}{}; t.leave(account, tn) }, nil
	case <-ctx.Done():
		t.leave(account, tn)
		return nil, ctx.Err()
	}
}

// join counts one more reading of an account that runs or waits.
func (t *turns) join(account string) (*turn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	tn := t.of[account]
	if tn == nil {
		tn = &turn{free: make(chan struct{}, 1)}
		tn.free <- struct{}{}
		if t.of == nil {
			t.of = map[string]*turn{}
		}
		t.of[account] = tn
	}
	if tn.users > maxReadings {
		return nil, ErrTooManyRequests
	}
	tn.users++
	return tn, nil
}

// leave counts one reading less.
func (t *turns) leave(account string, tn *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if tn.users--; tn.users == 0 {
		delete(t.of, account)
	}
}

// everything is the size of a reading that may need all that an account has.
const everything = math.MaxInt

// inTurn runs a reading of n counters, keys or users when it is its turn. One of a single batch
// does not wait.
func (s *Service) inTurn(ctx context.Context, account string, n int, read func() error) error {
	if n <= batch {
		return read()
	}
	end, err := s.turns.take(ctx, account)
	if err != nil {
		return err
	}
	defer end()
	return read()
}
