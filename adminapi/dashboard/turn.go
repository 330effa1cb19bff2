package dashboard

import (
	"context"
	"sync"
)

// turns let an account do one thing at a time that reads all it has: others are not to feel
// how often it asks.
type turns struct {
	mu sync.Mutex
	of map[string]*turn // by account, while someone has it or waits
}

type turn struct {
	free  chan struct{} // has something in it while nobody has the turn
	users int           // who have it or wait
}

// take waits for the turn of an account, and returns what gives it back.
func (t *turns) take(ctx context.Context, account string) (back func(), err error) {
	t.mu.Lock()
	if t.of == nil {
		t.of = map[string]*turn{}
	}
	tn := t.of[account]
	if tn == nil {
		tn = &turn{free: make(chan struct{}, 1)}
		tn.free <- struct{}{}
		t.of[account] = tn
	}
	tn.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if tn.users--; tn.users == 0 {
			delete(t.of, account)
		}
	}
	select {
	case <-tn.free:
		return func() { tn.free <- struct{}{}; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// inTurn runs fn, which reads all that an account has, when it is its turn.
func inTurn[T any](ctx context.Context, q *request, fn func(context.Context) (T, error)) (T, error) {
	back, err := q.s.turns.take(ctx, q.account())
	if err != nil {
		var none T
		return none, err
	}
	defer back()
	return fn(ctx)
}
