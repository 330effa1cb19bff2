package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
)

// What the store is filled with: so many users with a key each. The numbers of users
// have as many digits as those that redis-benchmark draws.
const (
	aloneKeys    = 10_000
	aloneAccount = "acct_bench"
	firstUser    = 1e11
	fillAtOnce   = 500
)

// redisLoad loads a store on Redis from this process, without HTTP.
type redisLoad struct {
	store *redisstore.Store
	keys  []redisKey
}

// redisKey is a key with what core keeps with it.
type redisKey struct {
	id           string
	seq, user    int64
	handle, upon core.Handle // its counter, that of its user
}

// openRedisLoad opens a store on a server, fills it, and asks once for each key.
func openRedisLoad(ctx context.Context, addr string, keys int) (*redisLoad, error) {
	s, err := redisstore.Open(ctx, redisstore.Options{Addresses: []string{addr}, Timeout: 5 * time.Second})
	if err != nil {
		return nil, err
	}
	r := &redisLoad{store: s, keys: make([]redisKey, keys)}
	if err := r.fill(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return r, nil
}

// fill makes the account, the users and the keys.
func (r *redisLoad) fill(ctx context.Context) error {
	now := time.Now().UTC().Truncate(time.Millisecond)
	owner := &core.OwnerKey{ID: "okey_bench", AccountID: aloneAccount, Name: "bench", Digest: core.DigestOf("bench"), CreatedAt: now}
	err := r.store.CreateAccount(ctx, &core.Account{ID: aloneAccount, Name: "bench", CreatedAt: now}, owner)
	for first := 0; first < len(r.keys) && err == nil; first += fillAtOnce {
		err = r.store.Update(ctx, aloneAccount, func(tx core.Tx) error { return r.put(tx, first, min(first+fillAtOnce, len(r.keys)), now) })
	}
	if err != nil {
		return err
	}
	return r.each(ctx)
}

// each makes one decision on every key.
func (r *redisLoad) each(ctx context.Context) error {
	var next atomic.Int64
	callers := make([]error, 64)
	var group sync.WaitGroup
	for c := range callers {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(r.keys) && callers[c] == nil; i = int(next.Add(1)) - 1 {
				callers[c] = r.decide(ctx, i)
			}
		})
	}
	group.Wait()
	return errors.Join(callers...)
}

// put makes the users and keys with numbers from first up to and without end.
func (r *redisLoad) put(tx core.Tx, first, end int, now time.Time) error {
	for i := first; i < end; i++ {
		u := &core.User{AccountID: aloneAccount, ID: firstUser + int64(i), Name: fmt.Sprint("user ", i), CreatedAt: now, UpdatedAt: now}
		secret := fmt.Sprintf("lk_user_%032d", i)
		k := &core.Key{AccountID: aloneAccount, ID: fmt.Sprintf("key_%020d", i), Name: fmt.Sprint("key ", i), UserID: u.ID, Status: core.KeyActive,
			Digest: core.DigestOf(secret), Hint: core.HintOf(secret), CreatedAt: now, UpdatedAt: now}
		if err := errors.Join(tx.PutUser(u), tx.PutKey(k)); err != nil {
			return err
		}
		r.keys[i].id, r.keys[i].seq, r.keys[i].user = k.ID, k.Seq, u.ID
	}
	return nil
}

// decide makes a decision on a key, which must be allowed.
func (r *redisLoad) decide(ctx context.Context, i int) error {
	k := &r.keys[i]
	v, err := r.store.Consume(ctx, &core.Consumption{
		Account: aloneAccount, KeyID: k.id, KeySeq: k.seq, UserID: k.user, Cost: 1, Retention: core.DefaultRetention,
		Terms: core.Terms{PlanID: "plan_large", PlanName: "Large", Period: core.Month, Limit: core.MaxLimit},
		Entry: core.Entry{At: time.Now().UTC().Truncate(time.Millisecond), KeyID: k.id, UserID: k.user, Cost: 1,
			Endpoint: "/v1/items/17", Method: "GET", IP: "192.0.2.17"},
		KeyHandle: &k.handle, UserHandle: &k.upon,
	})
	if err == nil && !v.Allowed {
		err = fmt.Errorf("a request with the key %s was denied", k.id)
	}
	return err
}

// timedOne is of how many decisions one is timed.
const timedOne = 16

// run makes decisions for a while, with as many callers as there are connections to be.
func (r *redisLoad) run(ctx context.Context, l load) (s sample, err error) {
	var stop atomic.Bool
	defer time.AfterFunc(l.duration, func() { stop.Store(true) }).Stop()
	callers := make([]redisCaller, l.connections)
	before, start := usedCPU(), time.Now()
	var group sync.WaitGroup
	for i := range callers {
		group.Go(func() { callers[i].run(ctx, r, &stop, uint64(i)) })
	}
	group.Wait()
	s.Elapsed, s.Client = time.Since(start), usedCPU()-before
	var waits []time.Duration
	for _, c := range callers {
		s.Requests += c.n
		waits = append(waits, c.waits...)
		err = errors.Join(err, c.err)
	}
	slices.Sort(waits)
	s.P50, s.P99 = quantile(waits, 0.5), quantile(waits, 0.99)
	return s, err
}

// redisCaller makes one decision after the other.
type redisCaller struct {
	n     int64
	waits []time.Duration
	err   error
}

func (c *redisCaller) run(ctx context.Context, r *redisLoad, stop *atomic.Bool, number uint64) {
	draw := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), number))
	for !stop.Load() {
		start := time.Now()
		if c.err = r.decide(ctx, draw.IntN(len(r.keys))); c.err != nil {
			stop.Store(true)
			return
		}
		if c.n%timedOne == 0 {
			c.waits = append(c.waits, time.Since(start))
		}
		c.n++
	}
}

// counted returns what all counters have together.
func (r *redisLoad) counted(ctx context.Context) (sum int64, err error) {
	for keys := range slices.Chunk(r.keys, 1000) {
		var ids []core.CounterID
		for i := range keys {
			ids = append(ids, core.CounterID{Account: aloneAccount, KeyID: keys[i].id})
		}
		list, err := r.store.Counters(ctx, ids)
		if err != nil {
			return 0, err
		}
		for _, c := range list {
			sum += c.Usage(core.Year, time.Now()).Used
		}
	}
	return sum, nil
}

// quantile returns the duration that a part of all, from 0 to 1, do not exceed. They are
// sorted.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(q*float64(len(sorted)-1))]
}

// usedCPU returns the processor time of this process.
func usedCPU() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
