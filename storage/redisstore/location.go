package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
	"golang.org/x/sync/errgroup"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// location is where the counter and history of a key or user are stored. The zero value means that the key
// or user does not exist.
type location struct {
	slot  keySlot
	field string
	moves uint8 // how often the key has moved, modulo 256
	given bool  // the number of the key was given by a caller: an earlier key may have had it
}

// seq returns the Seq of a key. It returns 0 for a user and for the zero location.
func (p location) seq() int64 {
	n, err := strconv.ParseInt(p.field, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// encodeLocation returns the stored form of a key's location.
func encodeLocation(k *core.Key, moves uint8, given bool) string {
	at := fmt.Sprintf("%d %d %d", k.Seq, k.UserID, moves)
	if given {
		at += " given"
	}
	return at
}

// decodeLocation is the inverse of encodeLocation.
func (s *Store) decodeLocation(account, text string) (location, error) {
	parts := append(strings.Split(text, " "), "", "", "")
	user, err := strconv.ParseInt(parts[1], 10, 64)
	moves, err2 := strconv.ParseUint(parts[2], 10, 8)
	if err := cmp.Or(err, err2); err != nil {
		return location{}, record.ErrDamaged
	}
	return location{s.o.usage(account, user), parts[0], uint8(moves), parts[3] != ""}, nil
}

// locationsOf returns the location of each key with one of the ids.
func (r *reader) locationsOf(ids []string) (map[string]location, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	answers, err := r.read(func(b *batch) {
		for _, id := range ids {
			b.add("HGET", r.slot.key("locations"), id)
		}
	})
	if err != nil {
		return nil, err
	}
	all := map[string]location{}
	for i, id := range ids {
		at, _ := text(answers[i])
		if all[id], err = r.s.decodeLocation(r.in.Account, at); err != nil {
			return nil, core.Unavailable(err)
		}
	}
	return all, nil
}

// locations returns the location of each counter.
func (s *Store) locations(ctx context.Context, ids []core.CounterID) ([]location, error) {
	locs := make([]location, len(ids))
	type lookup struct {
		users, keys []int // indexes in ids
		keyIDs      []string
	}
	byAccount := map[string]*lookup{}
	for i, id := range ids {
		in := byAccount[id.Account]
		if in == nil {
			in = &lookup{}
			byAccount[id.Account] = in
		}
		if id.KeyID == "" {
			in.users = append(in.users, i)
		} else {
			in.keys, in.keyIDs = append(in.keys, i), append(in.keyIDs, id.KeyID)
		}
	}
	for account, in := range byAccount {
		n := s.o.account(account)
		answers, err := s.readDrained(ctx, account, func(b *batch) {
			for _, i := range in.users {
				b.add("EXISTS", n.user(ids[i].UserID))
			}
			b.addMany("HMGET", n.key("locations"), in.keyIDs)
		})
		if err != nil {
			return nil, err
		}
		for j, i := range in.users {
			if number(answers[j]) > 0 {
				locs[i] = location{slot: s.o.usage(account, ids[i].UserID), field: userField}
			}
		}
		var found []rueidis.RedisMessage
		for _, part := range answers[len(in.users):] {
			values, err := part.ToArray()
			if err != nil {
				return nil, unavailable(err)
			}
			found = append(found, values...)
		}
		for j, i := range in.keys {
			if at, ok := text(found[j]); ok {
				if locs[i], err = s.decodeLocation(account, at); err != nil {
					return nil, err
				}
			}
		}
	}
	return locs, nil
}

// existing returns the indexes of the locations that are not zero.
func existing(locs []location) (which []int) {
	for i, p := range locs {
		if p.field != "" {
			which = append(which, i)
		}
	}
	return which
}

// maxReads bounds how often readLocated reads counters that keep moving.
const maxReads = 16

// readLocated reads a value for each counter at its location. read returns the values, and the indexes of
// counters that are absent or about to move. readLocated looks up their locations again, and repeats read
// for each that has changed.
func readLocated[T any](ctx context.Context, s *Store, ids []core.CounterID, read func([]location) (values []T, missing []int, err error)) ([]T, error) {
	list, which := make([]T, len(ids)), make([]int, len(ids))
	for i := range which {
		which[i] = i
	}
	locs, err := s.locations(ctx, ids)
	if err != nil {
		return nil, err
	}
	for range maxReads {
		values, missing, err := read(locs)
		if err != nil {
			return nil, err
		}
		for i, v := range values {
			list[which[i]] = v
		}
		which, locs, err = s.relocated(ctx, ids, which, locs, missing)
		if err != nil || len(which) == 0 {
			return list, err
		}
	}
	return nil, core.Unavailable(errors.New("redis: the keys keep moving between users"))
}

// relocated looks up the missing counters again. It returns those with a new location, as indexes in ids.
func (s *Store) relocated(ctx context.Context, ids []core.CounterID, which []int, locs []location, missing []int) (moved []int, to []location, err error) {
	if len(missing) == 0 {
		return nil, nil, nil
	}
	again := make([]core.CounterID, len(missing))
	for i, m := range missing {
		again[i] = ids[which[m]]
	}
	now, err := s.locations(ctx, again)
	if err != nil {
		return nil, nil, err
	}
	for i, m := range missing {
		if now[i] != locs[m] {
			moved, to = append(moved, which[m]), append(to, now[i])
		}
	}
	return moved, to, nil
}

// A scan reads an index in batches, and processes several batches in parallel.
const (
	scanBatch = 500 // users or keys
	maxScans  = 4   // batches in parallel
)

// keyCounterID returns a function that maps an id in an index to the counter of the key.
func keyCounterID(account string) func(id string) core.CounterID {
	return func(id string) core.CounterID { return core.CounterID{Account: account, KeyID: id} }
}

// userCounterID returns a function that maps an id in an index to the counter of the user.
func userCounterID(account string) func(id string) core.CounterID {
	return func(id string) core.CounterID {
		n, _ := strconv.ParseInt(id, 10, 64) // a damaged id maps to a user that does not exist
		return core.CounterID{Account: account, UserID: n}
	}
}

// scanIndex calls fn with the counters of all users or keys in an index, in parallel. An id that stays in
// the index during the scan occurs exactly once.
func (s *Store) scanIndex(ctx context.Context, index string, counter func(id string) core.CounterID, fn func(context.Context, []core.CounterID) error) error {
	parts, ctx := errgroup.WithContext(ctx)
	parts.SetLimit(maxScans)
	part := func(ids []core.CounterID) error {
		switch {
		case ctx.Err() != nil: // another batch failed
			return unavailable(ctx.Err())
		case s.closing.Load():
			return errClosed
		}
		return fn(ctx, ids)
	}
	var err error
	for after := "-inf"; after != "" && err == nil; {
		var ids []core.CounterID
		ids, after, err = s.readIndexAfter(ctx, index, counter, after)
		if len(ids) > 0 {
			parts.Go(func() error { return part(ids) })
		}
	}
	return cmp.Or(parts.Wait(), err)
}

// readIndexAfter returns the next scanBatch counters of an index, and the score to continue after: empty
// at the end. Scores are unique.
func (s *Store) readIndexAfter(ctx context.Context, index string, counter func(id string) core.CounterID, after string) (ids []core.CounterID, next string, err error) {
	if ctx.Err() != nil {
		return nil, "", unavailable(ctx.Err())
	}
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	entries, err := s.do(ctx, s.client.B().Zrange().Key(index).Min(after).Max("+inf").Byscore().Limit(0, scanBatch).Withscores().Build()).AsZScores()
	if err != nil {
		return nil, "", unavailable(err)
	}
	for _, e := range entries {
		ids = append(ids, counter(e.Member))
	}
	if len(entries) == scanBatch {
		next = "(" + strconv.FormatFloat(entries[len(entries)-1].Score, 'f', -1, 64)
	}
	return ids, next, nil
}
