package redisstore

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

func (n keySlot) deleted() string { return n.key("deleted") }

// keepDeleted adds the days of a deleted user to the days of the deleted users of the account, and replaces the task by deleteUserCounters. It first
// deletes the counter of the user, so that its days no longer change.
func (s *Store) keepDeleted(ctx context.Context, account string, k task) error {
	at := s.userLocation(account, k.from)
	if err := deleteCounterScript.run(ctx, s.writes, []string{at.slot.counters(), at.slot.tombstone(userField)}, []string{tombstoneTTL, userField}).Error(); err != nil {
		return unavailable(err)
	}
	days, err := s.daysAt(ctx, at)
	if err != nil {
		return err
	}
	for range maxAttempts {
		if err = s.moveToDeleted(ctx, account, k, days); err != errStale {
			return err
		}
	}
	return core.Unavailable(errStale)
}

// moveToDeleted adds days to the days of the deleted users of an account, unless the task has left the outbox. The error is errStale if the account
// has changed since the read.
func (s *Store) moveToDeleted(ctx context.Context, account string, k task, days []core.CounterDay) error {
	r := s.newReader(ctx, resource.Scope{Account: account})
	b := newBatchOf(r.version)
	outbox, deleted := r.slot.key("outbox"), r.slot.deleted()
	chunks := record.ChunkNumbers(days)
	b.add("LRANGE", outbox, "0", strconv.Itoa(maxArgs-1))
	for _, n := range chunks {
		b.add("HGET", deleted, strconv.FormatInt(n, 10))
	}
	version, answers, err := s.readBatch(ctx, b)
	if err != nil {
		return err
	}
	tasks, err := answers[0].AsStrSlice()
	if err != nil {
		return unavailable(err)
	}
	if !slices.Contains(tasks, k.String()) { // another process has run the task
		return nil
	}
	b = newBatchOf(r.version)
	read := func(chunk int64) ([]byte, error) {
		known, _ := text(answers[1+slices.Index(chunks, chunk)])
		return []byte(known), nil
	}
	err = record.AddDeleted(days, read, func(chunk int64, value []byte) { b.add("HSET", deleted, strconv.FormatInt(chunk, 10), string(value)) })
	if err != nil {
		return err
	}
	if expired := expiredChunks(days); len(expired) > 0 {
		b.add("HDEL", deleted, expired...)
	}
	b.add("LREM", outbox, "1", k.String())
	k.kind = deleteUserCounters
	b.add("RPUSH", outbox, k.String())
	_, err = s.commit(ctx, b, version)
	return err
}

// expiredChunks returns the names of the records of expired hours in the 90 days before the kept hours, nil if days has no hours. Earlier deletions of users
// have removed still older records.
func expiredChunks(days []core.CounterDay) (names []string) {
	if len(days) == 0 || !days[len(days)-1].Date.IsHour() {
		return nil
	}
	newest := min(days[len(days)-1].Date, core.HourOf(time.Now())) // a wrong clock may have counted an hour of the future
	first := record.DeletedChunk(newest - core.HoursKept)
	for n := first - 1; n >= first-90*24/32; n-- {
		names = append(names, strconv.FormatInt(n, 10))
	}
	return names
}

// daysAt returns the days at a location.
func (s *Store) daysAt(ctx context.Context, at location) ([]core.CounterDay, error) {
	r := s.readDays(daySpan{hours: true})
	result := s.do(ctx, r.command(at, true))
	if notLoaded(result) {
		result = s.do(ctx, r.command(at, false))
	}
	c, _, err := r.decode(at, result)
	if err != nil {
		return nil, err
	}
	return record.Kept(c.days.List()), nil
}

// deletedDays returns the days of the deleted users of an account, oldest first.
func (s *Store) deletedDays(ctx context.Context, account string) (list []core.CounterDay, err error) {
	chunks, err := s.do(ctx, s.client.B().Hgetall().Key(s.o.account(account).deleted()).Build()).AsStrMap()
	if err != nil {
		return nil, unavailable(err)
	}
	for _, b := range chunks {
		days, err := record.DecodeDeleted([]byte(b))
		if err != nil {
			return nil, err
		}
		list = append(list, days...)
	}
	slices.SortFunc(list, func(a, b core.CounterDay) int { return cmp.Compare(a.Date, b.Date) })
	return list, nil
}

// setDeleted replaces the days of the deleted users of an account.
func (s *Store) setDeleted(ctx context.Context, account string, days []core.CounterDay) error {
	if _, err := s.Account(ctx, account); err != nil {
		return cmp.Or(missingUser(err), err)
	}
	days = record.WithoutShared(days)
	chunks, err := record.ChunksOf(record.Kept(days))
	if err != nil {
		return err
	}
	for range maxAttempts {
		r := s.newReader(ctx, resource.Scope{Account: account})
		version, _, err := r.readDrained(s.o.Timeout, func(*batch) {})
		if err != nil {
			return err
		}
		b := newBatchOf(r.version)
		b.addsData = true
		b.add("UNLINK", r.slot.deleted())
		for chunk, text := range chunks {
			b.add("HSET", r.slot.deleted(), strconv.FormatInt(chunk, 10), string(text))
		}
		if _, err = s.commit(ctx, b, version); err != errStale {
			return err
		}
	}
	return core.Unavailable(errStale)
}

// missingUser returns ErrUserNotFound for a missing account, nil for any other error.
func missingUser(err error) error {
	if err == core.ErrAccountNotFound {
		return core.ErrUserNotFound
	}
	return nil
}
