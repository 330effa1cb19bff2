package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// A snapshot is an account as of one instant, while every node goes on writing. A script that changes a value for the first
// time after the instant saves the earlier value: the before image. A read of the snapshot returns the before image of a value,
// and the present value if there is no before image.
//
// The instant is a time by the clock of each master, soon after the snapshot begins. Before the instant the snapshot is
// announced in every slot that has data of the account: the registry, the slot of the account, and the hash of counters of
// each user. Scripts find the announcement in a key that they read anyway, so that a decision without a snapshot costs
// nothing more. If a slot gets its announcement after the instant, the snapshot begins again with a later instant.
//
// The transactions of the account wait while the clocks of the masters pass the instant, and for a moment before. In that moment
// the outbox runs empty, and the newest users get their announcement. So no task runs that deletes or moves a counter while
// the instant has passed on some masters only.
const (
	firstAhead     = 100 * time.Millisecond // the first attempt chooses an instant that is so far ahead
	aheadPerUser   = 50 * time.Microsecond  // and this far for each user: one announcement took 30 µs on a busy machine
	maxBegins      = 8                      // the largest number of attempts; each attempt doubles the time to the instant
	firstWait      = 60 * time.Millisecond  // transactions wait for this time before the instant of the first attempt
	longestWait    = 2 * time.Second        // the longest such wait; with twice maxClockSkew it is shorter than maxRetryTime
	snapshotLease  = 30 * time.Second       // without a renewal for this time another snapshot of the account may begin
	snapshotLife   = 24 * time.Hour         // Redis drops a snapshot and its before images after this time
	maxClockSkew   = time.Second            // the largest difference between the clocks of two masters
	snapshotPoll   = 10 * time.Millisecond  // the interval at which a snapshot looks whether the outbox is empty
	maxPause       = time.Second            // the longest pause in which a snapshot does not notice that the store is closed
	maxNewUsers    = 500                    // users that get their announcement while transactions wait
	maxClosingTime = 5 * time.Minute        // Close removes announcements and before images for this time at most
)

var (
	errSnapshotOpen = errors.New("another export of the account is running; if its process has died, try again in 30 seconds")
	errSnapshotLost = errors.New("the snapshot is lost, because Redis has failed over or lost data, because a clock was set back, or because it has lasted 24 hours: export the account again")
	errSnapshotLate = errors.New("redis: no instant was found: transactions of the account take too long, or the clocks of the Redis servers differ by about a second")
)

// indexes are the names of the indexes of all users, plans and keys of an account.
var indexes = []string{"users", "plans", "keys"}

// Snapshot is a [core.AccountSnapshot]. It lasts 24 hours at most. Afterwards its methods return an error.
type Snapshot struct {
	s           *Store
	account, id string
	instant     int64         // microseconds since 1970, by the clock of each master
	till        int64         // the end of the snapshot, in microseconds since 1970
	spread      time.Duration // the clocks of two masters differ by at most this duration

	pages map[string]nextPage // by index

	quit  context.CancelFunc // ends the renewal of the lease
	lease sync.WaitGroup
}

// SnapshotAccount implements [core.SnapshotStore].
func (s *Store) SnapshotAccount(ctx context.Context, account string) (core.AccountSnapshot, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.end()
	v := &Snapshot{s: s, account: account, id: strconv.FormatUint(rand.Uint64(), 36), pages: map[string]nextPage{}}
	if err := v.begin(ctx); err != nil {
		if v.quit != nil {
			v.quit()
			v.lease.Wait()
			v.close()
		}
		return nil, fmt.Errorf("a snapshot of account %s: %w", account, err)
	}
	return v, nil
}

// begin announces the snapshot everywhere before its instant, and waits for the instant.
func (v *Snapshot) begin(ctx context.Context) error {
	users, err := v.s.do(ctx, v.s.client.B().Zcard().Key(v.s.o.account(v.account).key("users")).Build()).AsInt64()
	if err != nil {
		return unavailable(err)
	}
	ahead, wait := firstAhead+time.Duration(users)*aheadPerUser, firstWait
	for range maxBegins {
		inTime, err := v.announce(ctx, ahead, wait)
		switch {
		case err != nil:
			return err
		case inTime:
			return v.await(ctx, v.instant+v.spread.Microseconds()) // the instant has passed on all masters
		}
		ahead, wait = 2*ahead, min(2*wait, longestWait)
	}
	return errSnapshotLate
}

// announce announces the snapshot everywhere, with an instant that is so far ahead. It returns false if that took too long.
func (v *Snapshot) announce(ctx context.Context, ahead, wait time.Duration) (inTime bool, err error) {
	if err := v.s.drain(ctx, v.account, maxDrainTime); err != nil {
		return false, err
	}
	if v.spread, err = v.s.clockSpread(ctx); err != nil || v.spread > maxClockSkew {
		return false, err
	}
	waits, inTime, err := v.open(ctx, ahead, wait)
	if err != nil || !inTime {
		return false, err
	}
	last, inTime, err := v.stampAll(ctx)
	if err != nil || !inTime {
		return false, err
	}
	if err := v.await(ctx, waits); err != nil {
		return false, err
	}
	return v.announceLast(ctx, last)
}

// announceLast announces the snapshot in the slots of users with larger IDs, while transactions wait, once the outbox is empty.
func (v *Snapshot) announceLast(ctx context.Context, last int64) (inTime bool, err error) {
	n := v.s.o.account(v.account)
	for {
		b := newBatch(n)
		b.add("LLEN", n.key("chores"))
		b.add("ZRANGE", n.key("users"), "("+strconv.FormatInt(last, 10), "+inf", "BYSCORE", "LIMIT", "0", strconv.Itoa(maxNewUsers))
		_, answers, err := v.s.readBatch(ctx, b)
		if err != nil {
			return false, err
		}
		ids, err := answers[1].AsStrSlice()
		if err != nil {
			return false, unavailable(err)
		}
		empty := number(answers[0]) == 0
		if empty {
			inTime, err = v.stamp(ctx, ids)
			if err != nil || !inTime || len(ids) == maxNewUsers {
				return false, err
			}
		}
		now, err := v.renew(ctx)
		switch {
		case err != nil || now >= v.instant-v.spread.Microseconds():
			return false, err
		case empty:
			return true, nil
		case !sleep(ctx, snapshotPoll): // the transaction that has added the tasks runs them
			return false, ctx.Err()
		}
	}
}

// open announces the snapshot in the slot of the account and in that of the registry. Transactions wait from the returned time
// on, until the instant has passed on all masters. In the slot of the account this end is the instant.
func (v *Snapshot) open(ctx context.Context, ahead, wait time.Duration) (waits int64, inTime bool, err error) {
	of := v.s.o.account(v.account)
	times, err := v.openIn(ctx, of.snapshotKeys(v.account, indexes...), "", ahead+2*v.spread, wait+2*v.spread, snapshotLease)
	switch {
	case err != nil:
		return 0, false, err
	case len(times) != 4:
		return 0, false, errSnapshotOpen
	}
	v.instant, waits, v.till = times[1]-v.spread.Microseconds(), times[2], times[3]
	v.keepLease()
	times, err = v.openIn(ctx, v.s.o.registry().snapshotKeys(v.account), strconv.FormatInt(v.instant, 10), 0, 0, 0)
	return waits, err == nil && times[0] < v.instant, err
}

func (v *Snapshot) openIn(ctx context.Context, keys []string, instant string, ahead, wait, lease time.Duration) ([]int64, error) {
	ctx, cancel := v.s.withTimeout(ctx)
	defer cancel()
	args := []string{v.account, v.id, instant, micros(ahead), micros(wait), micros(snapshotLife), micros(lease)}
	times, err := openSnapshotScript.write(ctx, v.s, keys, args).AsIntSlice()
	return times, unavailable(err)
}

func micros(d time.Duration) string { return strconv.FormatInt(d.Microseconds(), 10) }

// stampAll announces the snapshot in the slots of all users, and returns the largest user ID.
func (v *Snapshot) stampAll(ctx context.Context) (last int64, inTime bool, err error) {
	var mu sync.Mutex // guards last and inTime
	inTime = true
	index := v.s.o.account(v.account).key("users")
	err = v.s.scanIndex(ctx, index, userCounterID(v.account), func(ctx context.Context, users []core.CounterID) error {
		ids := make([]string, len(users))
		for i, u := range users {
			ids[i] = strconv.FormatInt(u.UserID, 10)
		}
		stamped, err := v.stamp(ctx, ids)
		mu.Lock()
		defer mu.Unlock()
		last, inTime = max(last, users[len(users)-1].UserID), inTime && stamped
		return err
	})
	return last, inTime, err
}

// stamp announces the snapshot in the slots of some users.
func (v *Snapshot) stamp(ctx context.Context, ids []string) (inTime bool, err error) {
	keys, args := make([][]string, len(ids)), make([][]string, len(ids))
	for i, id := range ids {
		n := v.slotOf(id)
		keys[i] = []string{n.counters(), n.tombstone(userField), n.countersBefore()}
		args[i] = []string{v.id, strconv.FormatInt(v.instant, 10), strconv.FormatInt(v.till, 10)}
	}
	inTime = true
	for _, r := range stampUserScript.readEach(ctx, v.s, keys, args) {
		now, err := r.AsInt64()
		if err != nil {
			return false, unavailable(err)
		}
		inTime = inTime && now < v.instant
	}
	return inTime, nil
}

// clockSpread returns a bound of the difference between the clocks of any two masters: the measured difference, and the time of
// the measurement.
func (s *Store) clockSpread(ctx context.Context) (time.Duration, error) {
	var keys [][]string
	for _, n := range s.masterNodes() {
		keys = append(keys, []string{s.o.markName(n.markNumber.Load())})
	}
	if len(keys) <= 1 {
		return 0, nil
	}
	begun := time.Now()
	var times []int64
	for _, r := range clockScript.readEach(ctx, s, keys, make([][]string, len(keys))) {
		now, err := r.AsInt64()
		if err != nil {
			return 0, unavailable(err)
		}
		times = append(times, now)
	}
	return time.Duration(slices.Max(times)-slices.Min(times))*time.Microsecond + time.Since(begun), nil
}

func (v *Snapshot) slotOf(user string) keySlot {
	id, _ := strconv.ParseInt(user, 10, 64)
	return v.s.o.usage(v.account, id)
}

// keepLease renews the lease until Close.
func (v *Snapshot) keepLease() {
	if v.quit != nil {
		return
	}
	ctx, quit := context.WithCancel(context.Background())
	v.quit = quit
	v.lease.Go(func() {
		every(ctx, snapshotLease/3, func() {
			_, _ = v.renew(ctx) // the reads find out whether the snapshot is lost
		})
	})
}

// renew renews the lease, and returns the time of the master of the account in microseconds.
func (v *Snapshot) renew(ctx context.Context) (now int64, err error) {
	n := v.s.o.account(v.account)
	ctx, cancel := v.s.withTimeout(ctx)
	defer cancel()
	now, err = renewSnapshotScript.write(ctx, v.s, []string{n.snapshots(), n.before(v.account)}, []string{v.account, v.id, micros(snapshotLease)}).AsInt64()
	if err == nil && now == 0 {
		err = errSnapshotLost
	}
	if err == errSnapshotLost {
		return 0, err
	}
	return now, unavailable(err)
}

// await waits until the clock of the master of the account shows a time. It fails if the clock was set back.
func (v *Snapshot) await(ctx context.Context, at int64) error {
	for before := int64(0); ; {
		now, err := v.renew(ctx)
		switch {
		case err != nil || now >= at:
			return err
		case now < before:
			return errSnapshotLost
		case v.s.closing.Load():
			return errClosed
		case !sleep(ctx, min(time.Duration(at-now)*time.Microsecond, maxPause)):
			return ctx.Err()
		}
		before = now
	}
}

// Close implements [core.AccountSnapshot]. Announcements and before images that Close cannot remove end after snapshotLife, or
// when the next snapshot of the account begins.
func (v *Snapshot) Close() {
	v.quit()
	v.lease.Wait()
	if v.s.begin() == nil {
		defer v.s.end()
		v.close()
	}
}

// close removes the snapshot from all slots. The slots of users come first, because the before images in the slot of the account
// name the deleted users.
func (v *Snapshot) close() {
	ctx, cancel := context.WithTimeout(context.Background(), maxClosingTime)
	defer cancel()
	n := v.s.o.account(v.account)
	err := v.s.scanIndex(ctx, n.key("users"), userCounterID(v.account), func(ctx context.Context, users []core.CounterID) error {
		var slots []keySlot
		for _, u := range users {
			slots = append(slots, v.s.o.usage(v.account, u.UserID))
		}
		return v.unstamp(ctx, slots)
	})
	if err == nil {
		err = v.unstampDeleted(ctx, n)
	}
	for _, keys := range [][]string{n.snapshotKeys(v.account, indexes...), v.s.o.registry().snapshotKeys(v.account)} {
		calls, cancel := v.s.withTimeout(ctx)
		err = errors.Join(err, renewSnapshotScript.write(calls, v.s, keys, []string{v.account, v.id, ""}).Error())
		cancel()
	}
	if err != nil {
		v.s.o.Logger.Warn("what redis has kept for an export could not be removed; it ends within 24 hours", "account", v.account, "error", err)
	}
}

// unstamp removes the snapshot from the slots of users.
func (v *Snapshot) unstamp(ctx context.Context, slots []keySlot) error {
	keys := make([][]string, len(slots))
	for i, n := range slots {
		keys[i] = []string{n.counters(), n.countersBefore()}
	}
	for _, r := range unstampUserScript.readEach(ctx, v.s, keys, slices.Repeat([][]string{{v.id}}, len(keys))) {
		if err := r.Error(); err != nil {
			return unavailable(err)
		}
	}
	return nil
}

// unstampDeleted removes the snapshot from the slots of users that were deleted since the instant.
func (v *Snapshot) unstampDeleted(ctx context.Context, n keySlot) error {
	for cursor := uint64(0); ; {
		calls, cancel := v.s.withTimeout(ctx)
		e, err := v.s.do(calls, v.s.client.B().Hscan().Key(n.before(v.account)).Cursor(cursor).Count(maxArgs).Build()).AsScanEntry()
		cancel()
		if err != nil {
			return unavailable(err)
		}
		var slots []keySlot
		for pair := range slices.Chunk(e.Elements, 2) {
			if user, ok := strings.CutPrefix(pair[0], n.key("u:")); ok {
				slots = append(slots, v.slotOf(user))
			}
		}
		if err := v.unstamp(ctx, slots); err != nil {
			return err
		}
		if cursor = e.Cursor; cursor == 0 {
			return nil
		}
	}
}

var (
	_ core.SnapshotStore   = (*Store)(nil)
	_ core.AccountSnapshot = (*Snapshot)(nil)
)
