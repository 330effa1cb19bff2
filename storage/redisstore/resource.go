package redisstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// database is the [resource.Database] of a store.
type database struct{ s *Store }

// View implements [resource.Database]. Its reads may see different versions.
func (d database) View(ctx context.Context, in resource.Scope, fn func(resource.Reader) error) error {
	return fn(d.s.newReader(ctx, in))
}

// Change implements [resource.Database]. It also runs the tasks that follow from the changes.
func (d database) Change(ctx context.Context, in resource.Scope, fn func(resource.Reader) (*resource.Changes, error)) error {
	s := d.s
	if err := s.begin(); err != nil { // fn does not run
		return err
	}
	s.end()
	tasks, err := s.change(ctx, in, fn)
	if err != nil || !tasks {
		return err
	}
	s.drains.Forget(in.Account) // a running drain may have read the outbox before the commit
	return s.drain(ctx, in.Account, maxDrainTime)
}

// errStale means that what a transaction has read has changed since it began. The transaction runs again.
var errStale = errors.New("the account has changed since the transaction began")

// Bounds of a transaction.
const (
	maxRetryTime = 5 * time.Second  // for retries because others change the account
	maxDrainTime = 30 * time.Second // for the tasks of the outbox
)

// change commits a transaction, and reports whether it has added tasks to the outbox.
func (s *Store) change(ctx context.Context, in resource.Scope, fn func(resource.Reader) (*resource.Changes, error)) (tasks bool, err error) {
	unlock, err := s.writeLocks.Lock(ctx, s.newReader(ctx, in).version) // transactions of one process need not compete
	if err != nil {
		return false, unavailable(err)
	}
	defer unlock()
	for begun, n := time.Now(), 0; ; n++ {
		r := s.newReader(ctx, in)
		r.tracked = true
		tasks, err := r.try(fn)
		switch {
		case !errors.Is(err, errStale):
			return tasks, err
		case n > 0 && time.Since(begun) > maxRetryTime:
			return false, core.Unavailable(errors.New("redis: too many concurrent changes to the account"))
		}
		time.Sleep(rand.N(time.Millisecond << min(n, 6))) // up to 64 ms
	}
}

// try runs a transaction once. The error is errStale if the account has changed meanwhile. tasks is true if the outbox has new tasks.
func (r *reader) try(fn func(resource.Reader) (*resource.Changes, error)) (tasks bool, err error) {
	c, err := fn(r)
	if err != nil {
		return false, err
	}
	if c.Empty() { // fn may have found the changes of an earlier call that has failed
		return false, r.s.confirm(r.ctx, r.slot)
	}
	w, err := r.writes(c)
	if err != nil {
		return false, err
	}
	if err := w.batch.checkSize(); err != nil {
		return false, err
	}
	// Before the commit, so that a committed key is always found. The other keys of an entry stay: if the commit fails, they still
	// have the digest.
	if err := r.s.eachDigest(r.ctx, claimDigestScript, w.claims); err != nil {
		return false, err
	}
	if c.Purges { // before the commit: after it, nothing lists the digests. The keys of an account that is being removed are unknown already
		if err := r.s.eachDigest(r.ctx, releaseDigestScript, w.releases); err != nil {
			return false, err
		}
	}
	numbers, err := r.s.commit(r.ctx, w.batch, r.seen)
	if err != nil {
		return false, err
	}
	if len(c.Accounts) > 0 {
		r.s.accountStates.Add(1) // before the report of the change arrives
	}
	for i, n := range numbers {
		c.Audit.Append[i].Number = number(n)
	}
	_ = r.s.eachDigest(r.ctx, releaseDigestScript, w.releases) // a key that lacks the digest is ignored
	return w.hasTasks, nil
}

// reader is a [resource.Reader].
type reader struct {
	ctx     context.Context
	s       *Store
	in      resource.Scope
	slot    keySlot
	version string // name of the version that a transaction depends on

	tracked bool   // of a transaction: all reads see one version
	seen    string // the version that it has seen, "" before the first read
}

func (s *Store) newReader(ctx context.Context, in resource.Scope) *reader {
	r := &reader{ctx: ctx, s: s, in: in, slot: s.o.registry()}
	switch {
	case !in.Registry:
		r.slot = s.o.account(in.Account)
		r.version = r.slot.key("version")
	case in.Account == "":
		r.version = r.slot.key("version")
	default:
		r.version = r.slot.key("version:" + in.Account)
	}
	return r
}

// read runs a batch of reads. The first one of a transaction waits until the outbox is empty.
func (r *reader) read(fill func(*batch)) (answers []rueidis.RedisMessage, err error) {
	if r.tracked && r.seen == "" {
		r.seen, answers, err = r.readDrained(maxDrainTime, fill)
		return answers, err
	}
	b := newBatchOf(r.version)
	fill(b)
	version, answers, err := r.s.readBatch(r.ctx, b)
	if err == nil && r.tracked && version != r.seen {
		err = errStale
	}
	return answers, err
}

// Exists implements [resource.Reader].
func (r *reader) Exists() (bool, error) {
	states := r.s.accountStates.Load()
	if known, _ := r.s.knownAccounts.Load(r.in.Account); known == states && r.s.watch.trusted() || r.in.Registry {
		return true, nil
	}
	a, err := r.s.Account(r.ctx, r.in.Account)
	switch {
	case errors.Is(err, core.ErrAccountNotFound):
		return false, nil
	case err != nil || a.Deleting:
		return false, err
	}
	r.s.knownAccounts.Store(r.in.Account, states) // writes to the account need not wait for the master of the registry again
	return true, nil
}

// Records implements [resource.Reader].
func (r *reader) Records(kind resource.Kind, ids ...string) ([][]byte, error) {
	answers, err := r.read(func(b *batch) {
		for _, id := range ids {
			b.add("GET", r.slot.record(kind, id))
		}
	})
	if err != nil {
		return nil, err
	}
	return recordsOf(answers)
}

// recordsOf returns answers as records, nil for a missing one.
func recordsOf(answers []rueidis.RedisMessage) ([][]byte, error) {
	records := make([][]byte, len(answers))
	for i, a := range answers {
		if a.IsNil() {
			continue
		}
		var err error
		if records[i], err = a.AsBytes(); err != nil {
			return nil, unavailable(err)
		}
	}
	return records, nil
}

// Page implements [resource.Reader].
func (r *reader) Page(kind resource.Kind, set string, offset, n int) ([][]byte, int, error) {
	if n == 0 {
		offset = 1 // from 1 to 0: nothing
	}
	return r.page(kind, set, strconv.Itoa(offset), strconv.Itoa(offset+n-1))
}

// After implements [resource.Reader].
func (r *reader) After(kind resource.Kind, set string, number int64, n int) ([][]byte, int, error) {
	return r.page(kind, set, "("+strconv.FormatInt(number, 10), "+inf", "BYSCORE", "LIMIT", "0", strconv.Itoa(n))
}

// page returns the records of the resources that ZRANGE finds in a set, and the size of the set.
func (r *reader) page(kind resource.Kind, set string, zrange ...string) ([][]byte, int, error) {
	answers, err := r.read(func(b *batch) {
		b.add("RECORDS", r.slot.key(set), append([]string{r.slot.record(kind, "")}, zrange...)...)
	})
	if err != nil {
		return nil, 0, err
	}
	all, err := answers[0].ToArray()
	if err != nil {
		return nil, 0, unavailable(err)
	}
	records, err := recordsOf(all[1:])
	return records, int(number(all[0])), err
}

// Members implements [resource.Reader].
func (r *reader) Members(set string, offset, n int) ([]resource.Member, error) {
	answers, err := r.read(func(b *batch) {
		b.add("ZRANGE", r.slot.key(set), strconv.Itoa(offset), strconv.Itoa(offset+n-1), "WITHSCORES")
	})
	if err != nil {
		return nil, err
	}
	pairs, err := answers[0].AsStrSlice()
	if err != nil {
		return nil, unavailable(err)
	}
	members := make([]resource.Member, len(pairs)/2)
	for i := range members {
		members[i].ID = pairs[2*i]
		if members[i].Number, err = strconv.ParseInt(pairs[2*i+1], 10, 64); err != nil {
			return nil, unavailable(err)
		}
	}
	return members, nil
}

// Sizes implements [resource.Reader].
func (r *reader) Sizes(sets ...string) ([]int, error) {
	answers, err := r.read(func(b *batch) {
		for _, set := range sets {
			b.add("ZCARD", r.slot.key(set))
		}
	})
	sizes := make([]int, len(answers))
	for i, a := range answers {
		sizes[i] = int(number(a))
	}
	return sizes, err
}

// Holder implements [resource.Reader].
func (r *reader) Holder(u resource.Unique) (string, error) {
	answers, err := r.read(func(b *batch) { b.add("HGET", r.slot.key(u.Name), u.Value) })
	if err != nil {
		return "", err
	}
	id, _ := text(answers[0])
	return id, nil
}

// Counters implements [resource.Reader].
func (r *reader) Counters(ids []core.CounterID) ([]core.Counter, error) {
	return r.s.Counters(r.ctx, ids)
}

// Last implements [resource.Reader].
func (r *reader) Last(kind resource.Kind) (int64, error) {
	answers, err := r.read(func(b *batch) { b.add("HGET", r.slot.key("last"), string(kind)) })
	if err != nil {
		return 0, err
	}
	return number(answers[0]), nil
}
