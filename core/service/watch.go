package service

import (
	"sync/atomic"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// lease says until when cached values may be used without asking the store. A nil lease always
// holds: no other process changes the store.
type lease struct {
	begun time.Time    // the zero of until
	until atomic.Int64 // nanoseconds since begun, by the monotonic clock
}

func (l *lease) holds() bool { return l == nil || int64(time.Since(l.begun)) < l.until.Load() }

// newLease returns nil, or for a store that other processes change a lease that does not hold yet.
func newLease(store core.Store) *lease {
	if _, watched := store.(core.WatchedStore); watched {
		return &lease{begun: time.Now()}
	}
	return nil
}

// invalidator applies the reports of a [core.WatchedStore] to the caches of a service.
type invalidator struct{ s *Service }

// Changed implements [core.Watcher].
func (w invalidator) Changed(c core.Change) {
	switch {
	case c.UserID != 0:
		w.s.users.forget(userRef{c.Account, c.UserID})
	case c.PlanID != "":
		w.s.plans.forget(planRef{c.Account, c.PlanID})
		w.s.meters.forget(c.Account)
		w.s.accounts.forget(c.Account) // its meters
	case c.Prices:
		w.s.prices.forget(c.Account)
		w.s.meters.forget(c.Account)
		w.s.accounts.forget(c.Account) // its meters
	case c.Webhooks:
		w.s.webhookChanges.note(c.Account)
	case c.Digest != secrets.Digest{}:
		w.s.keys.forget(c.Digest)
	case c.OwnerKey != secrets.Digest{}:
		w.s.ownerKeys.forget(c.OwnerKey)
	case c.State:
		w.s.ForgetAll()
		w.s.webhookChanges.note(c.Account)
	case c.KeyPrefix != "": // of any change of an account
		w.s.accounts.forget(c.Account)
		w.s.meters.forget(c.Account)
	}
}

// RenewLease implements [core.Watcher].
func (w invalidator) RenewLease(d time.Duration) {
	l := w.s.lease
	if d <= 0 {
		l.until.Store(0)
		return
	}
	l.until.Store(int64(time.Since(l.begun) + d))
}

// ChangesMissed implements [core.Watcher].
func (w invalidator) ChangesMissed() {
	w.s.ForgetAll()
	w.s.webhookChanges.note("")
}

// ForgetAll empties the caches of resources. Call it after changes that were made with the [core.Store] itself. RankAccounts
// adds them to the rankings within MaxRankingAge.
func (s *Service) ForgetAll() {
	s.accounts.forgetAll() // first: the other caches look up whether the account of a resource is open
	s.users.forgetAll()
	s.externals.forgetAll()
	s.plans.forgetAll()
	s.meters.forgetAll()
	s.prices.forgetAll()
	s.keys.forgetAll()
	s.ownerKeys.forgetAll()
}
