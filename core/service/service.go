package service

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/sync/semaphore"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/signin"
	"github.com/limitkeeper/limitkeeper/internal/keyedmutex"
)

// DefaultKeyCache is the default size of the key cache, in keys.
const DefaultKeyCache = 100_000

// ownerKeyCache is the size of the cache of owner's keys.
const ownerKeyCache = 10_000

// Config configures a [Service]. The zero value of every member stands for its default.
type Config struct {
	// Clock returns the time; a [core.Clock] of the machine by default.
	Clock func() time.Time
	// OnDecision is called with every decision, from many goroutines at once. It must not keep or
	// change the decision.
	OnDecision func(*Decision)
	// OnEvent is called once for each event that this service has stored, or would have stored for a webhook, in the goroutine of the change. It returns
	// quickly, and does not keep or change the event. After an error of the store, the event may be stored without a call.
	OnEvent func(account string, e *core.Event)
}

// Tunables are the settings that may change while a [Service] runs. The zero value of every member
// but ThrottleLimit stands for its default.
type Tunables struct {
	KeyCache  int           // keys kept in memory
	Retention time.Duration // how long the history is kept

	ThrottleLimit  int           // requests of an owner's key in any window; 0: no bound
	ThrottleWindow time.Duration // the length of the window

	MaxUsers, MaxKeys, MaxPlans int // of an account

	WebhookAllowPrivate bool // webhooks may have private and loopback addresses

	EventThresholds []int64 // in per cent, see [core.CheckEventThresholds]
}

// DefaultTunables returns the tunables that the documentation names as defaults.
func DefaultTunables() Tunables {
	return Tunables{KeyCache: DefaultKeyCache, Retention: core.DefaultRetention,
		ThrottleLimit: DefaultThrottleLimit, ThrottleWindow: DefaultThrottleWindow,
		MaxUsers: core.DefaultMaxUsers, MaxKeys: core.DefaultMaxKeys, MaxPlans: core.DefaultMaxPlans,
		EventThresholds: core.DefaultEventThresholds()}
}

// userRef and planRef name a user and a plan of an account.
type (
	userRef struct {
		account string
		id      int64
	}
	planRef struct{ account, id string }
)

// Service is the rules of core over a [core.Store]. It is safe for concurrent use. It does not close its
// store.
type Service struct {
	SignIn *signin.Service // people of the accounts

	store             core.Store
	clock             func() time.Time
	onDecision        func(*Decision)
	onEvent           func(account string, e *core.Event)
	tunables          atomic.Pointer[Tunables]
	throttle          *Throttle           // of requests, for each owner's key
	accountThrottle   *Throttle           // of requests, for each account
	pageThrottle      *Throttle           // of pages of the dashboard, for each account
	processors        *semaphore.Weighted // see newProcessors
	lastUse           sync.Map            // of each owner's key that is stored: secrets.Digest → *atomic.Int64, Unix seconds
	largeQueries      *keyedmutex.Mutex   // one large query at a time for each account
	ownerKeyCreations keyedmutex.Mutex    // by account: so that a creation sees those before it
	givenDigests      sync.Mutex          // held by a transaction that gives digests to keys, so that no two keys get the same digest

	lease     *lease // of the caches
	ownerKeys *cache[secrets.Digest, core.OwnerKey]
	keys      *cache[secrets.Digest, cachedKey]
	users     *cache[userRef, cachedUser]
	externals *cache[externalRef, int64] // the numbers of users, by external id
	plans     *cache[planRef, cachedPlan]
	meters    *cache[string, metersOf] // by account
	prices    *cache[string, core.PriceList]
	accounts  *cache[string, core.Account] // open ones, for their key prefixes; other members may be outdated

	due            dueCounters // for the rankings
	webhookChanges webhookChanges
	addresses      recentAddresses

	eventQueue eventQueue
	storedIDs  *simplelru.LRU[string, struct{}] // ids of events that are stored; writing guards it
	writing    sync.Mutex                       // held by writeEventsOf
	rankAfter  atomic.Int64                     // RankAccounts ranks each account whose ranking is older than this time, in Unix milliseconds

	pendingDecisions sync.Pool      // of *pendingDecision
	hits             stripedCounter // look-ups of keys, users and plans answered from memory
}

// New returns a service over the store with the default tunables.
func New(store core.Store, c Config) *Service {
	s := &Service{largeQueries: newLargeQueries(), store: store, clock: c.Clock, onDecision: c.OnDecision, onEvent: c.OnEvent,
		lease: newLease(store), processors: newProcessors()}
	if s.clock == nil {
		s.clock = core.NewClock(nil, nil).Now
	}
	s.SignIn = signin.New(actingStore{store, s.acting}, s.clock, s.processors)
	if s.onDecision == nil {
		s.onDecision = func(*Decision) {}
	}
	if s.onEvent == nil {
		s.onEvent = func(string, *core.Event) {}
	}
	s.newCaches(store)
	s.webhookChanges = newWebhookChanges()
	s.addresses = newRecentAddresses()
	s.storedIDs, _ = simplelru.NewLRU[string, struct{}](maxStoredIDs, nil) // the size is positive
	s.pendingDecisions.New = func() any { return &pendingDecision{stripe: s.hits.stripe()} }
	s.throttle = NewThrottle(DefaultThrottleLimit, DefaultThrottleWindow, s.clock())
	s.accountThrottle = NewThrottle(accountThrottleFactor*DefaultThrottleLimit, DefaultThrottleWindow, s.clock())
	s.pageThrottle = NewThrottle(DashboardLimit, DashboardWindow, s.clock())
	s.Tune(DefaultTunables())
	if w, watched := store.(core.WatchedStore); watched {
		w.Watch(invalidator{s})
	}
	return s
}

func (s *Service) newCaches(store core.Store) {
	s.ownerKeys = newCache(ownerKeyCache, s.clock, s.lease, core.ErrOwnerKeyNotFound, s.loadOwnerKey)
	s.keys = newCache(DefaultKeyCache, s.clock, s.lease, core.ErrKeyNotFound,
		func(ctx context.Context, d secrets.Digest) (*cachedKey, error) {
			k, err := store.KeyByDigest(ctx, d)
			return newCachedKey(ofOpenAccount(ctx, s, k, err, func(k *core.Key) string { return k.AccountID }, core.ErrKeyNotFound))
		})
	s.users = newCache(DefaultKeyCache, s.clock, s.lease, core.ErrUserNotFound,
		func(ctx context.Context, r userRef) (*cachedUser, error) {
			u, err := store.User(ctx, r.account, r.id)
			return newCachedUser(ofOpenAccount(ctx, s, u, err, func(*core.User) string { return r.account }, core.ErrUserNotFound))
		})
	s.plans = newCache(DefaultKeyCache, s.clock, s.lease, core.ErrPlanNotFound,
		func(ctx context.Context, r planRef) (*cachedPlan, error) {
			return newCachedPlan(store.Plan(ctx, r.account, r.id))
		})
	s.externals = newCache(DefaultKeyCache, s.clock, s.lease, core.ErrUserNotFound, s.loadExternal)
	s.accounts = newCache(DefaultKeyCache, s.clock, s.lease, core.ErrAccountNotFound, s.loadAccount)
	s.meters = newCache(DefaultKeyCache, s.clock, s.lease, core.ErrPlanNotFound, s.loadMeters)
	s.prices = newCache(DefaultKeyCache, s.clock, s.lease, core.ErrAccountNotFound, s.loadPrices)
}

// Tune changes the tunables of a running service. Counts are kept. If the bound of the throttle
// changes, the throttle forgets the requests that it has admitted.
func (s *Service) Tune(t Tunables) {
	orDefault := func(n *int, of int) { *n = cmp.Or(max(*n, 0), of) }
	orDefault(&t.KeyCache, DefaultKeyCache)
	orDefault(&t.MaxUsers, core.DefaultMaxUsers)
	orDefault(&t.MaxKeys, core.DefaultMaxKeys)
	orDefault(&t.MaxPlans, core.DefaultMaxPlans)
	t.Retention = cmp.Or(max(t.Retention, 0), core.DefaultRetention)
	t.ThrottleWindow = cmp.Or(max(t.ThrottleWindow, 0), DefaultThrottleWindow)
	if len(t.EventThresholds) == 0 {
		t.EventThresholds = core.DefaultEventThresholds()
	}
	if had := s.tunables.Swap(&t); had == nil || !slices.Equal(had.EventThresholds, t.EventThresholds) {
		s.rankAfter.Store(s.now().UnixMilli()) // after a crash, and for new thresholds
	}
	s.keys.resize(t.KeyCache)
	s.users.resize(t.KeyCache)
	s.externals.resize(t.KeyCache)
	s.plans.resize(t.KeyCache)
	s.throttle.SetLimit(t.ThrottleLimit, t.ThrottleWindow)
	s.accountThrottle.SetLimit(accountThrottleFactor*t.ThrottleLimit, t.ThrottleWindow)
}

// Admit counts a request against two bounds: service_rate_limit for its owner's key, and ten times that for its account. Beyond a bound,
// ok is false, and wait is the time until Admit would admit a request. A request that the bound of the account refuses still counts for its key.
func (s *Service) Admit(k *core.OwnerKey) (wait time.Duration, ok bool) {
	now := s.clock()
	if wait, ok = s.throttle.Admit(k.ID, now); !ok {
		return wait, false
	}
	return s.accountThrottle.Admit(k.AccountID, now)
}

// ThrottleLimit returns how many requests of an owner's key Admit admits in any window, 0 for no bound, and the window.
func (s *Service) ThrottleLimit() (int, time.Duration) { return s.throttle.Limit() }

// CountRefusal counts a request that Admit refused. At most once a minute for each owner's key
// it returns the refusals since the last report, including this one; otherwise 0.
func (s *Service) CountRefusal(k *core.OwnerKey) (report int64) {
	return s.throttle.CountRefusal(k.ID, s.clock())
}

// AdmitPage reports whether a page of the dashboard is within the bound of its bucket and, if
// not, how long until it would admit a page. The dashboard names the buckets: pages of an account,
// refreshes of parts of its open pages, and pages of one session that end access.
func (s *Service) AdmitPage(bucket string) (wait time.Duration, ok bool) {
	return s.pageThrottle.Admit(bucket, s.clock())
}

// Now returns the time of the service's clock, in UTC.
func (s *Service) Now() time.Time { return s.clock().UTC() }

// now returns the time as it is stored and shown: in UTC, in milliseconds.
func (s *Service) now() time.Time { return s.clock().UTC().Truncate(time.Millisecond) }

// after returns the time now, or t plus 1 ms if the clock has not passed t: updated_at never goes
// back.
func (s *Service) after(t time.Time) time.Time {
	if now := s.now(); now.After(t) {
		return now
	}
	return t.Add(time.Millisecond)
}

func (s *Service) retention() time.Duration { return s.tunables.Load().Retention }

// Stats are figures of a running service, for metrics.
type Stats struct {
	CacheHits   uint64 // look-ups of keys, users and plans answered from memory
	CacheMisses uint64 // look-ups that asked the store
	CachedKeys  int    // keys in memory

	CacheEvictions uint64 // keys, users and plans that were removed from memory to make room
	Throttled      uint64 // requests with an owner's key that were over service_rate_limit
	EventsDropped  uint64 // readings of limits and events that found no room in memory. RankAccounts finds the readings again
}

// Stats returns the figures since the service was created.
func (s *Service) Stats() Stats {
	return Stats{
		CacheHits:   s.hits.sum(),
		CacheMisses: s.keys.misses.Load() + s.users.misses.Load() + s.plans.misses.Load(),
		CachedKeys:  s.keys.Len(),

		CacheEvictions: s.keys.evictions.Load() + s.users.evictions.Load() + s.plans.evictions.Load(),
		Throttled:      s.throttle.refused.Load(),
		EventsDropped:  s.eventQueue.droppedSoFar(),
	}
}

// stripedCounter is a sum that many goroutines increment at once. Each adds to one of 64 stripes:
// one shared number would move between the processors with every decision.
type stripedCounter struct {
	stripes [counterStripes]struct {
		n atomic.Uint64
		_ [120]byte // processors fetch two lines of 64 bytes at a time
	}
	assigned atomic.Uint32
}

const counterStripes = 64

// stripe assigns a stripe to a caller, which keeps it for its additions.
func (t *stripedCounter) stripe() int { return int(t.assigned.Add(1) % counterStripes) }

func (t *stripedCounter) add(stripe int, n uint64) { t.stripes[stripe].n.Add(n) }

func (t *stripedCounter) sum() (n uint64) {
	for i := range t.stripes {
		n += t.stripes[i].n.Load()
	}
	return n
}
