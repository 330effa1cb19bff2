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
	"sync/atomic"
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
// For a moment before the instant the transactions of the account wait. In that moment the outbox runs empty, and the newest
// users get their announcement. So no counter is on its way from one slot to another at the instant.
const (
	firstAhead     = 100 * time.Millisecond // from the begin to the first choice of the instant
	aheadPerUser   = 50 * time.Microsecond  // to announce the snapshot to one more user: 30 µs were measured on a busy machine
	maxBegins      = 8                      // instants that are tried, each twice as far ahead
	firstWait      = 60 * time.Millisecond  // how long transactions wait before the first choice of the instant
	longestWait    = 2 * time.Second        // how long they wait at most: less than maxRetryTime
	snapshotLease  = 30 * time.Second       // another snapshot may begin when a process has not renewed the lease for so long
	snapshotLife   = 24 * time.Hour         // before images of a process that has died end after this time
	maxClockSkew   = 5 * time.Second        // between the masters, until a snapshot fails
	snapshotPoll   = 10 * time.Millisecond  // the pause before a snapshot asks again
	maxNewUsers    = 500                    // that get their announcement while transactions wait
	maxClosingTime = 5 * time.Minute        // Close gives up afterwards, and snapshotLife ends the rest
)

var (
	errSnapshotOpen = errors.New("another export of the account is running; if its process has died, try again in 30 seconds")
	errSnapshotLost = errors.New("the snapshot is lost, because Redis has failed over or lost data, or because it has lasted 24 hours: export the account again")
	errSnapshotLate = errors.New("redis: no instant was found: transactions of the account take too long, or the clocks of the Redis servers differ")
	errSnapshotSkew = errors.New("the clocks of the Redis servers differ by more than 5 seconds: no instant is the same on all of them")
)

// indexes are the names of the indexes of all users, plans and keys of an account.
var indexes = []string{"users", "plans", "keys"}

// Snapshot is a [core.AccountSnapshot].
type Snapshot struct {
	s           *Store
	account, id string
	instant     int64 // microseconds since 1970, by the clock of each master
	till        int64 // the end
	openedAt    int64 // the time of the master of the account at the time opened of this process
	opened      time.Time

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
			return v.awaitInstant(ctx)
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
	waits, inTime, err := v.open(ctx, ahead, wait)
	if err != nil || !inTime {
		return false, err
	}
	var last atomic.Int64
	inTime, err = v.stampAll(ctx, &last)
	if err != nil || !inTime {
		return false, err
	}
	if err := v.await(ctx, v.s.o.account(v.account), waits, ahead+maxClockSkew); err != nil {
		return false, err
	}
	return v.announceLast(ctx, last.Load())
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
		now, err := v.renew(ctx, n)
		switch {
		case err != nil || now >= v.instant:
			return false, err
		case empty:
			return true, nil
		case !sleep(ctx, snapshotPoll): // the transaction that has added the tasks runs them
			return false, ctx.Err()
		}
	}
}

// open announces the snapshot in the slot of the account and in that of the registry. Transactions wait from the returned time on.
func (v *Snapshot) open(ctx context.Context, ahead, wait time.Duration) (waits int64, inTime bool, err error) {
	of := v.s.o.account(v.account)
	times, err := v.openIn(ctx, of.snapshotKeys(v.account, indexes...), "", ahead, wait, snapshotLease)
	switch {
	case err != nil:
		return 0, false, err
	case len(times) != 4:
		return 0, false, errSnapshotOpen
	}
	v.openedAt, v.instant, waits, v.till, v.opened = times[0], times[1], times[2], times[3], time.Now()
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

// stampAll announces the snapshot in the slots of all users, and notes the largest user ID.
func (v *Snapshot) stampAll(ctx context.Context, last *atomic.Int64) (inTime bool, err error) {
	var late atomic.Bool
	err = v.s.scanIndex(ctx, v.s.o.account(v.account).key("users"), userCounterID(v.account), func(ctx context.Context, users []core.CounterID) error {
		ids := make([]string, len(users))
		for i, u := range users {
			ids[i] = strconv.FormatInt(u.UserID, 10)
		}
		for id := users[len(users)-1].UserID; ; {
			before := last.Load()
			if before >= id || last.CompareAndSwap(before, id) {
				break
			}
		}
		inTime, err := v.stamp(ctx, ids)
		if err == nil && !inTime {
			late.Store(true)
		}
		return err
	})
	return !late.Load(), err
}

// stamp announces the snapshot in the slots of some users.
func (v *Snapshot) stamp(ctx context.Context, ids []string) (inTime bool, err error) {
	keys, args := make([][]string, len(ids)), make([][]string, len(ids))
	for i, id := range ids {
		n := v.slotOf(id)
		keys[i] = []string{n.counters(), n.tombstone(userField)}
		args[i] = []string{v.id, strconv.FormatInt(v.instant, 10), strconv.FormatInt(v.till, 10)}
	}
	inTime = true
	for _, r := range stampUserScript.readEach(ctx, v.s, keys, args) {
		now, err := r.AsInt64()
		if err != nil {
			return false, unavailable(err)
		}
		if skew := now - v.clock(); now != 0 && max(skew, -skew) > maxClockSkew.Microseconds() {
			return false, errSnapshotSkew
		}
		inTime = inTime && now < v.instant
	}
	return inTime, nil
}

// clock returns about the time of the master of the account in microseconds.
func (v *Snapshot) clock() int64 { return v.openedAt + time.Since(v.opened).Microseconds() }

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
			_, _ = v.renew(ctx, v.s.o.account(v.account)) // the reads find out whether the snapshot is lost
		})
	})
}

// renew renews the lease in a slot, and returns the time of its master in microseconds.
func (v *Snapshot) renew(ctx context.Context, n keySlot) (now int64, err error) {
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

// awaitInstant waits until the instant has passed for the account and for the registry.
func (v *Snapshot) awaitInstant(ctx context.Context) error {
	for _, n := range []keySlot{v.s.o.account(v.account), v.s.o.registry()} {
		if err := v.await(ctx, n, v.instant, longestWait+maxClockSkew); err != nil {
			return err
		}
	}
	return nil
}

// await waits until the clock of the master of a slot shows a time.
func (v *Snapshot) await(ctx context.Context, n keySlot, at int64, atMost time.Duration) error {
	for begun := time.Now(); ; {
		now, err := v.renew(ctx, n)
		switch {
		case err != nil:
			return err
		case now >= at:
			return nil
		case time.Since(begun) > atMost:
			return errSnapshotSkew
		case !sleep(ctx, time.Duration(at-now)*time.Microsecond):
			return ctx.Err()
		}
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
