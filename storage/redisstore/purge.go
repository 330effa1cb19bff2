package redisstore

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// purgeAfter is how long a node waits between the first sight of an account with Deleting and its first removal. It is longer than leaseFor: after it, no
// node takes the account for an existing one, and a transaction that began before finds another version of the account.
const purgeAfter = leaseFor + beat

// PurgeAccount implements [core.Store]. Redis expires the tombstones of users and keys and the versions of the account after a minute, and the records of
// ended holds after two days.
func (s *Store) PurgeAccount(ctx context.Context, id string) (more bool, err error) {
	seen, _ := s.purging.LoadOrStore(id, time.Now())
	if wait := purgeAfter - time.Since(seen.(time.Time)); wait > 0 {
		a, err := s.Account(ctx, id)
		if err != nil || !a.Deleting {
			s.purging.Delete(id)
			return s.Resources.PurgeAccount(ctx, id)
		}
		return true, s.sleep(ctx, min(wait, beat))
	}
	if more, err = s.Resources.PurgeAccount(ctx, id); !more && err == nil {
		s.purging.Delete(id)
	}
	return more, err
}

// sleep waits for d, or until ctx ends.
func (s *Store) sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return unavailable(ctx.Err())
	case <-time.After(d):
		return nil
	}
}

// Purge implements [resource.Database].
func (d database) Purge(ctx context.Context, a *core.Account) (more bool, err error) {
	if more, err := d.s.purgeHolds(ctx, a.ID); more || err != nil {
		return true, err
	}
	r := d.s.newReader(ctx, resource.Scope{Account: a.ID})
	version, _, err := r.readDrained(maxDrainTime, func(*batch) {})
	if err != nil {
		return true, err
	}
	n, b := r.slot, newBatchOf(r.version)
	for _, key := range []string{"last", "emails", "external-ids", "locations", "ranking", "ranked", "ranking-ends", "audit"} {
		b.add("UNLINK", n.key(key))
	}
	for _, meter := range append([]string{core.MeterRequests}, a.Meters...) {
		b.add("UNLINK", n.key("ranked:"+meter))
	}
	b.add("UNLINK", n.deleted())
	b.add("UNLINK", n.holds())
	b.add("UNLINK", n.rankingState())
	b.endVersion(r.version)
	if _, err = d.s.commit(ctx, b, version); err == errStale { // another node removes the account, too
		return true, nil
	}
	return err != nil, err
}

// purgeHolds removes the records of some open holds of an account.
func (s *Store) purgeHolds(ctx context.Context, account string) (more bool, err error) {
	holds := s.o.account(account).holds()
	ids, err := s.do(ctx, s.client.B().Zrange().Key(holds).Min("0").Max(strconv.Itoa(scanBatch-1)).Build()).AsStrSlice()
	if err != nil || len(ids) == 0 {
		return false, unavailable(err)
	}
	removals := make([]rueidis.Completed, len(ids))
	for i, id := range ids {
		user, _ := core.HoldUser(id)
		removals[i] = s.client.B().Del().Key(s.o.usage(account, user).hold(randomPart(id))).Build()
	}
	for _, r := range s.writes.DoMulti(ctx, removals...) {
		if r.Error() != nil {
			return true, unavailable(r.Error())
		}
	}
	return true, unavailable(s.do(ctx, s.client.B().Zrem().Key(holds).Member(ids...).Build()).Error())
}

// purgedVersion is the last version of the slot of an account. When it expires, all transactions that have read an earlier version have ended.
const purgedVersion = "purged"

// endVersion replaces the next version by one that expires.
func (b *batch) endVersion(name string) { b.add("SET", name, purgedVersion, "PX", tombstoneTTL) }
