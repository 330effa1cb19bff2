package dashboard

import (
	"context"
	"errors"
	"sync"
	"time"
)

// What was added up is shown as it was for so much longer than it took, and no longer than
// this: a small account sees what is, and a large one costs little.
const (
	memoTimes = 50
	memoMost  = 15 * time.Second
)

// errAdding is what others get who waited for an add that panicked.
var errAdding = errors.New("adding up was given up")

// memo keeps what is dear to add up, for a moment. Who asks for the same at the same time
// waits for one answer.
type memo struct {
	mu   sync.Mutex // guards what follows
	kept map[string]*kept
}

type kept struct {
	once  sync.Once
	until time.Time // zero while it is made
	value any
	err   error
}

// remembered returns what add adds up, or what it has added up a moment ago for the same
// name.
func remembered[T any](q *request, name string, add func(context.Context) (T, error)) (T, error) {
	return recall(q.r.Context(), &q.s.memo, name, add)
}

func recall[T any](ctx context.Context, m *memo, name string, add func(context.Context) (T, error)) (T, error) {
	k := m.get(name)
	k.once.Do(func() {
		began := time.Now()
		k.err = errAdding // unless add comes back
		defer func() { m.keep(k, time.Since(began)) }()
		k.value, k.err = add(context.WithoutCancel(ctx)) // who waits for it may be another one
	})
	if k.err != nil {
		var none T
		return none, k.err
	}
	return k.value.(T), nil
}

// get returns what is kept for a name, or is being made.
func (m *memo) get(name string) *kept {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for n, k := range m.kept {
		if !k.until.IsZero() && !now.Before(k.until) {
			delete(m.kept, n)
		}
	}
	if m.kept == nil {
		m.kept = map[string]*kept{}
	}
	if m.kept[name] == nil {
		m.kept[name] = new(kept)
	}
	return m.kept[name]
}

// keep says how long something is kept that took so long. A failure is not.
func (m *memo) keep(k *kept, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k.until = time.Now()
	if k.err == nil {
		k.until = k.until.Add(min(memoTimes*took, memoMost))
	}
}
