package redisstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/redis/rueidis"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// errStale means that the account has changed since the transaction began. The transaction runs again.
var errStale = errors.New("the account has changed since the transaction began")

// errPending means that the outbox has tasks of an earlier transaction. They must run first.
var errPending = errors.New("the outbox of the account is not empty")

// tx is a [core.Tx]. All reads see one version of the account. Commit applies the collected writes if the
// account still has that version.
type tx struct {
	ctx       context.Context
	s         *Store
	account   string
	slot      keySlot
	noAccount bool // the account does not exist

	isTask bool // runs as a task of the outbox, and so ignores pending tasks

	version string
	begun   bool
	readErr error            // the first failed read; the transaction fails or runs again
	last    map[string]int64 // largest user ID, plan Seq and key Seq so far

	users    map[int64]*change[core.User]
	plans    map[string]*change[core.Plan]
	keys     map[string]*change[keyRecord]
	unique   map[uniqueMember]int64 // user ID of each changed email and external id after the commit; 0 for none
	deferred map[int64][]string     // deleted users whose keys a task deletes, with the ids of all plans
}

// change is a resource before and after a transaction. Nil means that it does not exist.
type change[T any] struct {
	before, after *T
	written       bool
	preset        bool // the caller has set its ID or Seq
}

// current returns the resource including the writes of the transaction.
func (c *change[T]) current() *T {
	if c.written {
		return c.after
	}
	return c.before
}

func (c *change[T]) write(after *T) { c.after, c.written = after, true }

// Update implements [core.Store]. The deletion of a user with more than 500 keys commits at once; the keys
// are deleted before Update returns.
func (s *Store) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	known, err := s.accountExists(ctx, account)
	if err != nil {
		return err
	}
	tasks, err := s.update(ctx, account, !known, fn)
	if err != nil || !tasks {
		return err
	}
	s.drains.Forget(account) // a running drain may have read the outbox before the commit
	return s.drain(ctx, account, maxDrainTime)
}

// update commits the transaction, and reports whether it has added tasks to the outbox.
func (s *Store) update(ctx context.Context, account string, missing bool, fn func(core.Tx) error) (tasks bool, err error) {
	unlock, err := s.writeLocks.Lock(ctx, account) // transactions of one process need not compete
	if err != nil {
		return false, unavailable(err)
	}
	defer unlock()
	for begun := time.Now(); ; {
		err := s.retryStale(func() (done bool, err error) {
			t := s.newTx(ctx, account)
			t.noAccount = missing
			done, tasks, err = t.run(fn)
			return done, err
		})
		if !errors.Is(err, errPending) || time.Since(begun) > maxDrainTime {
			return tasks, pendingError(err)
		}
		if err := s.drain(ctx, account, maxDrainTime); err != nil {
			return false, err
		}
	}
}

// pendingError turns errPending into [core.ErrUnavailable].
func pendingError(err error) error {
	if errors.Is(err, errPending) {
		return core.Unavailable(errors.New("redis: concurrent transactions keep adding tasks to the account"))
	}
	return err
}

func (s *Store) newTx(ctx context.Context, account string) *tx {
	return &tx{ctx: ctx, s: s, account: account, slot: s.o.account(account),
		users: map[int64]*change[core.User]{}, plans: map[string]*change[core.Plan]{},
		keys: map[string]*change[keyRecord]{}, unique: map[uniqueMember]int64{}, deferred: map[int64][]string{}}
}

// run runs the transaction once. It returns false if the account was stale, and reports whether it has
// added tasks.
func (t *tx) run(fn func(core.Tx) error) (done, tasks bool, err error) {
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

// commit applies the writes.
func (t *tx) commit() (done, tasks bool, err error) {
	w := t.writes()
	switch {
	case w.err != nil:
		return false, false, w.err
	case w.batch.empty():
		return true, false, nil
	}
	if err := w.batch.checkSize(); err != nil {
		return false, false, err
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

// maxDrainTime is how long Update waits for the tasks of the outbox.
const maxDrainTime = 30 * time.Second

// backoff returns the random delay before retry n: up to 64 ms.
func backoff(n int) time.Duration {
	return rand.N(time.Millisecond << min(n, 6))
}

// begin reads the version, the last ids and the length of the outbox.
func (t *tx) begin() {
	if t.begun || t.readErr != nil || t.noAccount {
		return
	}
	t.begun = true
	b := newBatch(t.slot)
	b.add("HMGET", t.slot.key("last"), "user", "plan", "key")
	b.add("LLEN", t.slot.key("outbox"))
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

// readBatch reads at the version of the transaction. It returns nil after setting readErr.
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

// loadChange returns the change of a resource, and reads the resource at the first call.
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

// countIndex returns the integer answer of a command, such as the size of an index.
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

// assign gives a new resource the next ID or Seq, one more than the largest ever used. It marks the number of another
// resource as used, and reports with preset that the caller has set the number.
func (t *tx) assign(kind string, number *int64) (preset bool, err error) {
	if t.begin(); t.readErr != nil {
		return false, t.readErr
	}
	if preset = *number != 0; !preset {
		*number = t.last[kind] + 1
	}
	t.last[kind] = max(t.last[kind], *number)
	return preset, nil
}

var _ core.Tx = (*tx)(nil)
