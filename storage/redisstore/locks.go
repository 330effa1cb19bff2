package redisstore

import (
	"context"
	"sync"
)

// locks are locks by name. One that nobody holds or waits for takes no room.
type locks struct {
	mu  sync.Mutex
	all map[string]*lock
}

type lock struct {
	free  chan struct{} // holds one while nobody holds the lock
	users int           // who hold it or wait for it
}

// lock waits for a lock no longer than the context, and returns how to unlock it.
func (l *locks) lock(ctx context.Context, name string) (unlock func(), err error) {
	k := l.use(name)
	select {
	case <-k.free:
		return func() {
			k.free <- struct{}{}
			l.leave(name, k)
		}, nil
	case <-ctx.Done():
		l.leave(name, k)
		return nil, ctx.Err()
	}
}

func (l *locks) use(name string) *lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.all[name]
	if k == nil {
		k = &lock{free: make(chan struct{}, 1)}
		k.free <- struct{}{}
		if l.all == nil {
			l.all = map[string]*lock{}
		}
		l.all[name] = k
	}
	k.users++
	return k
}

func (l *locks) leave(name string, k *lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.users--; k.users == 0 {
		delete(l.all, name)
	}
}
