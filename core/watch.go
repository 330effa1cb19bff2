package core

import (
	"sync/atomic"
	"time"
)

// Watched is a [Store] that other processes change, too.
type Watched interface {
	Store
	// Watch tells w of every change to users, plans, keys and owner's keys, until the
	// store is closed. It is called once.
	Watch(w Watcher)
}

// Watcher is told what others change in a store, and how far it may rely on that. Its
// methods may be called by many goroutines at once, and are quick.
type Watcher interface {
	// Changed is called soon after a change, by this process or by another.
	Changed(c Change)
	// Trusted says that every change up to a moment ago was told, and that the next ones
	// will be: what was read since the last call of Lost may be relied on for so long. 0
	// ends it at once.
	Trusted(d time.Duration)
	// Lost says that changes were missed, or may have been.
	Lost()
}

// Change names what was changed, created or deleted: one of its members beside Account
// is set.
type Change struct {
	Account  string
	UserID   int64
	PlanID   string
	Digest   Digest // a key is found by it, or was
	OwnerKey Digest // an owner's key has it; without Account
}

// lease says whether what is in memory may be relied on without asking the store. A nil
// lease always does: nobody else changes the store.
type lease struct {
	begun time.Time    // what until counts from
	until atomic.Int64 // nanoseconds, on a clock that never steps
}

func (l *lease) holds() bool { return l == nil || int64(time.Since(l.begun)) < l.until.Load() }

// newLease returns a lease that does not hold yet when others can change the store.
func newLease(store Store) *lease {
	if _, watched := store.(Watched); watched {
		return &lease{begun: time.Now()}
	}
	return nil
}

// watching passes on to the caches of a service what its store tells.
type watching struct{ s *Service }

// Changed implements [Watcher].
func (w watching) Changed(c Change) {
	switch {
	case c.UserID != 0:
		w.s.users.forget(userRef{c.Account, c.UserID})
	case c.PlanID != "":
		w.s.plans.forget(planRef{c.Account, c.PlanID})
	case c.Digest != Digest{}:
		w.s.keys.forget(c.Digest)
	case c.OwnerKey != Digest{}:
		w.s.ownerKeys.forget(c.OwnerKey)
	}
}

// Trusted implements [Watcher].
func (w watching) Trusted(d time.Duration) {
	l := w.s.lease
	if d <= 0 {
		l.until.Store(0)
		return
	}
	l.until.Store(int64(time.Since(l.begun) + d))
}

// Lost implements [Watcher].
func (w watching) Lost() {
	w.s.users.forgetAll()
	w.s.plans.forgetAll()
	w.s.keys.forgetAll()
	w.s.ownerKeys.forgetAll()
}
