package redisstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// errStale means that the account has changed since the transaction began: it is run
// again.
var errStale = errors.New("the account has changed meanwhile")

// errUnsettled means that an earlier transaction has left something to do, which must
// not be overtaken.
var errPending = errors.New("the account has chores left")

// tx is a [core.Tx]. Its reads are those of one version of the account; its writes are
// collected, and happen if the account still has it.
type tx struct {
	ctx       context.Context
	s         *Store
	account   string
	slot      keySlot
	noAccount bool // the account

	isTask bool // it does one itself, and does not wait until there are none

	version string
	begun   bool
	readErr error            // of a read: the transaction is to be given up or run again
	last    map[string]int64 // the largest ID and Seqs that were given

	users    map[int64]*change[core.User]
	plans    map[string]*change[core.Plan]
	keys     map[string]*change[keyRecord]
	emails   map[string]int64   // who has an email afterwards, 0 for nobody
	deferred map[int64][]string // deleted users whose keys are left to a chore, and all plans
}

// change is a resource as it was when the transaction began and as it is after it; nil
// when it is not there.
type change[T any] struct {
	before, after *T
	written       bool
	preset        bool // it came with its number
}

// now returns the resource as it is for what the transaction writes next.
func (c *change[T]) current() *T {
	if c.written {
		return c.after
	}
	return c.before
}

func (c *change[T]) write(after *T) { c.after, c.written = after, true }

// Update implements [core.Store]. A user with very many keys is gone at once, and its keys
// are before Update returns.
func (s *Store) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	known, err := s.accountExists(ctx, account)
	if err != nil {
		return err
	}
	chores, err := s.update(ctx, account, !known, fn)
	if err != nil || !chores {
		return err
	}
	s.drains.Forget(account) // who is at it may have looked before there were these
	return s.drain(ctx, account, maxDrainTime)
}

// update is Update without what follows from it, and reports whether something does.
func (s *Store) update(ctx context.Context, account string, missing bool, fn func(core.Tx) error) (chores bool, err error) {
	unlock, err := s.writeLocks.lock(ctx, account) // those of this process do not get into each other's way
	if err != nil {
		return false, unavailable(err)
	}
	defer unlock()
	for begun := time.Now(); ; {
		err := s.retryStale(func() (done bool, err error) {
			t := s.newTx(ctx, account)
			t.noAccount = missing
			done, chores, err = t.run(fn)
			return done, err
		})
		if !errors.Is(err, errPending) || time.Since(begun) > maxDrainTime {
			return chores, pendingError(err)
		}
		if err := s.drain(ctx, account, maxDrainTime); err != nil {
			return false, err
		}
	}
}

// unsettled makes errUnsettled, if that is the error, one for callers.
func pendingError(err error) error {
	if errors.Is(err, errPending) {
		return core.Unavailable(errors.New("redis: others leave more to do on the account all the time"))
	}
	return err
}

func (s *Store) newTx(ctx context.Context, account string) *tx {
	return &tx{ctx: ctx, s: s, account: account, slot: s.o.account(account),
		users: map[int64]*change[core.User]{}, plans: map[string]*change[core.Plan]{},
		keys: map[string]*change[keyRecord]{}, emails: map[string]int64{}, deferred: map[int64][]string{}}
}

// run runs a transaction once. It reports whether it is over, and whether it leaves
// chores.
func (t *tx) run(fn func(core.Tx) error) (done, chores bool, err error) {
	err = fn(t)
	if t.readErr != nil {
		err = t.readErr
	}
	switch {
	case errors.Is(err, errStale):
		return false, false, nil
	case err != nil || t.noAccount:
		return err == nil, false, err
	}
	return t.commit()
}

// commit makes the writes happen.
func (t *tx) commit() (done, chores bool, err error) {
	w := t.writes()
	switch {
	case w.err != nil:
		return false, false, w.err
	case w.batch.empty():
		return true, false, nil
	case w.batch.tooLarge():
		return false, false, errTooLarge
	}
	if err := t.s.claimDigests(t.ctx, w.claims); err != nil {
		return false, false, err
	}
	if done, err = t.s.commit(t.ctx, w.batch, t.version); !done || err != nil {
		return done, false, err
	}
	t.s.releaseDigests(t.ctx, w.releases)
	return true, w.hasTasks, nil
}

// patience is for how long a transaction waits for what follows from it.
const maxDrainTime = 30 * time.Second

// backoff is how long to wait before the nth try.
func backoff(n int) time.Duration {
	return rand.N(time.Millisecond << min(n, 6))
}

// begin reads what every transaction needs.
func (t *tx) begin() {
	if t.begun || t.readErr != nil || t.noAccount {
		return
	}
	t.begun = true
	b := newBatch(t.slot)
	b.add("HMGET", t.slot.key("last"), "user", "plan", "key")
	b.add("LLEN", t.slot.key("chores"))
	version, answers, err := t.s.readBatch(t.ctx, b)
	if err != nil {
		t.readErr = err
		return
	}
	given, err := answers[0].ToArray()
	if err != nil {
		t.readErr = unavailable(err)
		return
	}
	if number(answers[1]) > 0 && !t.isTask {
		t.readErr = errPending
		return
	}
	t.version = version
	t.last = map[string]int64{"user": number(given[0]), "plan": number(given[1]), "key": number(given[2])}
}

// look reads from the version of the account with which the transaction began. It
// returns no answers when there is a fault.
func (t *tx) readBatch(b *batch) []rueidis.RedisMessage {
	t.begin()
	if t.readErr != nil {
		return nil
	}
	version, answers, err := t.s.readBatch(t.ctx, b)
	if err == nil && version != t.version {
		err = errStale
	}
	if err != nil {
		t.readErr = err
		return nil
	}
	return answers
}

// get reads one record.
func (t *tx) get(key string) (string, bool) {
	if t.noAccount {
		return "", false
	}
	b := newBatch(t.slot)
	b.add("GET", key)
	answers := t.readBatch(b)
	if answers == nil {
		return "", false
	}
	return text(answers[0])
}

// changing returns a resource for the transaction to change, read once.
func loadChange[K comparable, T any](t *tx, all map[K]*change[T], id K, key string) (*change[T], error) {
	if c := all[id]; c != nil {
		return c, nil
	}
	c := &change[T]{}
	if r, ok := t.get(key); ok {
		before, err := record.Decode[T]([]byte(r))
		if err != nil {
			return nil, err
		}
		c.before = before
	} else if t.readErr != nil {
		return nil, t.readErr
	}
	all[id] = c
	return c, nil
}

// count reads how many an index has.
func (t *tx) countIndex(command, key string, args ...string) (int, error) {
	if t.noAccount {
		return 0, nil
	}
	b := newBatch(t.slot)
	b.add(command, key, args...)
	answers := t.readBatch(b)
	if answers == nil {
		return 0, t.readErr
	}
	return int(number(answers[0])), nil
}

// next gives the next number of a kind.
func (t *tx) nextNumber(kind string) (int64, error) {
	if t.begin(); t.readErr != nil {
		return 0, t.readErr
	}
	t.last[kind]++
	return t.last[kind], nil
}

// given notes that a number was given.
func (t *tx) noteNumber(kind string, n int64) error {
	if t.begin(); t.readErr != nil {
		return t.readErr
	}
	t.last[kind] = max(t.last[kind], n)
	return nil
}

var _ core.Tx = (*tx)(nil)

// locks are locks by name. One that nobody holds or waits for takes no room.
type keyedMutex struct {
	mu      sync.Mutex
	entries map[string]*mutexEntry
}

type mutexEntry struct {
	token chan struct{} // holds one while nobody holds the lock
	users int           // who hold it or wait for it
}

// lock waits for a lock no longer than the context, and returns how to unlock it.
func (l *keyedMutex) lock(ctx context.Context, name string) (unlock func(), err error) {
	k := l.join(name)
	select {
	case <-k.token:
		return func() {
			k.token <- struct{}{}
			l.leave(name, k)
		}, nil
	case <-ctx.Done():
		l.leave(name, k)
		return nil, ctx.Err()
	}
}

func (l *keyedMutex) join(name string) *mutexEntry {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.entries[name]
	if k == nil {
		k = &mutexEntry{token: make(chan struct{}, 1)}
		k.token <- struct{}{}
		if l.entries == nil {
			l.entries = map[string]*mutexEntry{}
		}
		l.entries[name] = k
	}
	k.users++
	return k
}

func (l *keyedMutex) leave(name string, k *mutexEntry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.users--; k.users == 0 {
		delete(l.entries, name)
	}
}
