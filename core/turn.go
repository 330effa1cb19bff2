package core

import (
	"context"
	"math"
	"sync"
)

// maxWaitingReads is how many large queries of one account wait for their turn. The next one is
// [ErrTooManyRequests].
const maxWaitingReads = 16

// turns let each account run one large query at a time: one that reads all counters of a
// plan, a user or the account. However often an account asks, it keeps at most one CPU busy.
type turns struct {
	mu        sync.Mutex
	byAccount map[string]*accountQueue // while a query runs or waits
}

type accountQueue struct {
	free  chan struct{} // holds a token while no query runs
	reads int           // queries that run or wait
}

// take waits for the turn of an account, and returns the function that ends it.
func (t *turns) take(ctx context.Context, account string) (end func(), err error) {
	q, err := t.join(account)
	if err != nil {
		return nil, err
	}
	select {
	case <-q.free:
		return func() { q.free <- struct{}{}; t.leave(account, q) }, nil
	case <-ctx.Done():
		t.leave(account, q)
		return nil, ctx.Err()
	}
}

// join counts one more query of an account that runs or waits.
func (t *turns) join(account string) (*accountQueue, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.byAccount[account]
	if q == nil {
		q = &accountQueue{free: make(chan struct{}, 1)}
		q.free <- struct{}{}
		if t.byAccount == nil {
			t.byAccount = map[string]*accountQueue{}
		}
		t.byAccount[account] = q
	}
	if q.reads > maxWaitingReads {
		return nil, ErrTooManyRequests
	}
	q.reads++
	return q, nil
}

// leave counts one query less.
func (t *turns) leave(account string, q *accountQueue) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if q.reads--; q.reads == 0 {
		delete(t.byAccount, account)
	}
}

// unbounded is the size of a query that may read all counters of an account.
const unbounded = math.MaxInt

// inTurn runs read, which covers n counters. If n is more than 1,000 (batch), inTurn first
// waits for the account's other large queries.
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
