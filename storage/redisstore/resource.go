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
	if err := d.s.begin(); err != nil {
		return err
	}
	defer d.s.end()
	return fn(d.s.newReader(ctx, in))
}

// Change implements [resource.Database]. It also runs the tasks that follow from the changes.
func (d database) Change(ctx context.Context, in resource.Scope, fn func(resource.Reader) (*resource.Changes, error)) error {
	s := d.s
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	tasks, err := s.change(ctx, in, fn)
	if err != nil || !tasks {
		return err
	}
	s.drains.Forget(in.Account) // a running drain may have read the outbox before the commit
	return s.drain(ctx, in.Account, maxDrainTime)
}

// errStale means that what a transaction has read has changed since it began. The transaction runs again.
var errStale = errors.New("the account has changed since the transaction began")

// errPending means that the outbox has tasks of an earlier transaction. They must run first.
var errPending = errors.New("the outbox of the account is not empty")

// maxDrainTime is how long a transaction waits for the tasks of the outbox.
const maxDrainTime = 30 * time.Second

// change commits a transaction, and reports whether it has added tasks to the outbox.
func (s *Store) change(ctx context.Context, in resource.Scope, fn func(resource.Reader) (*resource.Changes, error)) (tasks bool, err error) {
	unlock, err := s.writeLocks.Lock(ctx, s.newReader(ctx, in).version) // transactions of one process need not compete
	if err != nil {
		return false, unavailable(err)
	}
	defer unlock()
	for begun := time.Now(); ; {
		err := s.retryStale(func() (done bool, err error) {
			r := s.newReader(ctx, in)
			r.tracked = true
			done, tasks, err = r.try(fn)
			if errors.Is(err, errStale) {
				return false, nil
			}
			return done, err
		})
		if !errors.Is(err, errPending) || time.Since(begun) > maxDrainTime {
			return tasks, pendingError(err)
		}
		if err := s.drain(ctx, in.Account, maxDrainTime); err != nil {
			return false, err
		}
	}
}

// try runs a transaction once. done is false if the account has changed before the commit; the error is
// errStale if it has changed between two reads. tasks is true if the outbox has new tasks.
func (r *reader) try(fn func(resource.Reader) (*resource.Changes, error)) (done, tasks bool, err error) {
	c, err := fn(r)
	if err != nil || len(c.Records) == 0 {
		return true, false, err
	}
	w, err := r.writes(c)
	if err != nil {
		return false, false, err
	}
	if err := w.batch.checkSize(); err != nil {
		return false, false, err
	}
	if err := r.s.claimDigests(r.ctx, w.claims); err != nil {
		return false, false, err
	}
	if done, err = r.s.commit(r.ctx, w.batch, r.seen); !done || err != nil {
		return done, false, err
	}
	r.s.releaseDigests(r.ctx, w.releases)
	return true, w.hasTasks, nil
}

// pendingError turns errPending into [core.ErrUnavailable].
func pendingError(err error) error {
	if errors.Is(err, errPending) {
		return core.Unavailable(errors.New("redis: concurrent transactions keep adding tasks to the account"))
	}
	return err
}

// backoff returns the random delay before retry n: up to 64 ms.
func backoff(n int) time.Duration {
	return rand.N(time.Millisecond << min(n, 6))
}

// reader is a [resource.Reader].
type reader struct {
	ctx     context.Context
	s       *Store
	in      resource.Scope
	slot    keySlot
	version string // name of the version that a transaction depends on

	tracked bool   // of a transaction: all reads see one version
	begun   bool   // the transaction has read
	seen    string // the version that it has seen

	last map[resource.Kind]int64 // nil before it is read
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

// read runs a batch of reads. The first one of a transaction also looks for tasks in the outbox.
func (r *reader) read(fill func(*batch)) ([]rueidis.RedisMessage, error) {
	b, first := newBatchOf(r.version), r.tracked && !r.begun
	if first {
		b.add("LLEN", r.slot.key("outbox"))
	}
	fill(b)
	version, answers, err := r.s.readBatch(r.ctx, b)
	switch {
	case err != nil:
		return nil, err
	case first && number(answers[0]) > 0:
		return nil, errPending
	case first:
		r.begun, r.seen, answers = true, version, answers[1:]
	case r.tracked && version != r.seen:
		return nil, errStale
	}
	return answers, nil
}

// Exists implements [resource.Reader].
func (r *reader) Exists() (bool, error) {
	if r.in.Registry {
		return true, nil
	}
	return r.s.accountExists(r.ctx, r.in.Account)
}

// accountExists reports whether an account exists.
func (s *Store) accountExists(ctx context.Context, account string) (bool, error) {
	if _, known := s.knownAccounts.Load(account); known {
		return true, nil
	}
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	exists, err := s.do(ctx, s.client.B().Exists().Key(s.o.registry().record(resource.Account, account)).Build()).AsBool()
	if err != nil {
		return false, unavailable(err)
	}
	if exists {
		s.knownAccounts.Store(account, true)
	}
	return exists, nil
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

var kinds = []resource.Kind{resource.Account, resource.OwnerKey, resource.User, resource.Plan, resource.Key}

// Last implements [resource.Reader].
func (r *reader) Last(kind resource.Kind) (int64, error) {
	if r.last == nil {
		answers, err := r.read(func(b *batch) {
			for _, kind := range kinds {
				b.add("HGET", r.slot.key("last"), string(kind))
			}
		})
		if err != nil {
			return 0, err
		}
		r.last = map[resource.Kind]int64{}
		for i, kind := range kinds {
			r.last[kind] = number(answers[i])
		}
	}
	return r.last[kind], nil
}
