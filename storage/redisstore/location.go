package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/rueidis"
	"golang.org/x/sync/errgroup"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// location is where the counter and history of a key or user are stored. The zero value means that the key
// or user does not exist.
type location struct {
	user  int64
	slot  keySlot // of the user
	field string
	moves uint8 // how often the key has moved, modulo 256
	given bool  // the number of the key was given by a caller: an earlier key may have had it
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
	return location{user, s.o.usage(account, user), parts[0], uint8(moves), parts[3] != ""}, nil
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
	byAccount := map[string][]int{} // indexes in ids
	for i, id := range ids {
		byAccount[id.Account] = append(byAccount[id.Account], i)
	}
	for account, of := range byAccount {
		r := s.newReader(ctx, resource.Scope{Account: account})
		_, answers, err := r.readDrained(s.o.Timeout, func(b *batch) {
			for _, i := range of {
				if ids[i].KeyID == "" {
					b.add("EXISTS", r.slot.user(ids[i].UserID))
				} else {
					b.add("HGET", r.slot.key("locations"), ids[i].KeyID)
				}
			}
		})
		if err != nil {
			return nil, err
		}
		for j, i := range of {
			if ids[i].KeyID == "" && number(answers[j]) > 0 {
				locs[i] = s.userLocation(account, ids[i].UserID)
			} else if at, ok := text(answers[j]); ok {
				if locs[i], err = s.decodeLocation(account, at); err != nil {
					return nil, err
				}
			}
		}
	}
	return locs, nil
}

func (s *Store) userLocation(account string, user int64) location {
	return location{user: user, slot: s.o.usage(account, user), field: userField}
}

// maxReads bounds how often readLocated reads counters that keep moving.
const maxReads = 16

// reading is how to read a value at a location. decode returns false for a counter that is absent or about to move.
type reading[T any] struct {
	command func(at location, loaded bool) rueidis.Completed // loaded: the server has the script that the command names
	decode  func(at location, r rueidis.RedisResult) (v T, here bool, err error)
}

// readLocated reads a value for each counter at its location. It looks up the location of a counter again that was
// not there, and repeats the reading if the location has changed.
func readLocated[T any](ctx context.Context, s *Store, ids []core.CounterID, r reading[T]) ([]T, error) {
	list := make([]T, len(ids))
	locs, err := s.locations(ctx, ids)
	var unread []int // indexes in ids
	for i, at := range locs {
		if at.field != "" {
			unread = append(unread, i)
		}
	}
	for range maxReads {
		if err != nil || len(unread) == 0 {
			return list, err
		}
		cmds := make([]rueidis.Completed, len(unread))
		for j, i := range unread {
			cmds[j] = r.command(locs[i], true)
		}
		var gone []int
		for j, result := range s.reads.DoMulti(ctx, cmds...) {
			i := unread[j]
			if notLoaded(result) {
				result = s.do(ctx, r.command(locs[i], false))
			}
			v, here, err := r.decode(locs[i], result)
			if err != nil {
				return nil, err
			}
			if list[i] = v; !here {
				gone = append(gone, i)
			}
		}
		unread, err = s.relocate(ctx, ids, locs, gone)
	}
	return nil, core.Unavailable(errors.New("redis: the keys keep moving between users"))
}

// relocate looks up the counters again that are gone, and updates locs. It returns the counters with a new location, as
// indexes in ids.
func (s *Store) relocate(ctx context.Context, ids []core.CounterID, locs []location, gone []int) (moved []int, err error) {
	again := make([]core.CounterID, len(gone))
	for j, i := range gone {
		again[j] = ids[i]
	}
	now, err := s.locations(ctx, again)
	for j, at := range now {
		if i := gone[j]; at != locs[i] && at.field != "" {
			locs[i], moved = at, append(moved, i)
		}
	}
	return moved, err
}

// A scan reads an index in batches, and processes several batches in parallel.
const (
	scanBatch = 500 // users or keys
	maxScans  = 4   // batches in parallel
)

// scan calls fn with a value of each counter that matches a filter, in no order and never concurrently.
func scan[T any](ctx context.Context, s *Store, of core.DaysFilter, read func(context.Context, []core.CounterID) ([]T, error), fn func(core.CounterID, T)) error {
	var mu sync.Mutex
	process := func(ctx context.Context, ids []core.CounterID) error {
		values, err := read(ctx, ids)
		mu.Lock()
		defer mu.Unlock()
		for i, v := range values {
			fn(ids[i], v)
		}
		return err
	}
	n := s.o.account(of.Account)
	key := func(id string) core.CounterID { return core.CounterID{Account: of.Account, KeyID: id} }
	user := func(id string) core.CounterID {
		number, _ := strconv.ParseInt(id, 10, 64) // a damaged id maps to a user that does not exist
		return core.CounterID{Account: of.Account, UserID: number}
	}
	switch {
	case of.KeyID != "" || of.UserID != 0:
		return process(ctx, []core.CounterID{{Account: of.Account, KeyID: of.KeyID, UserID: of.UserID}})
	case of.PlanID == "":
		return s.scanIndex(ctx, n.users(core.UserFilter{}), user, process)
	}
	if err := s.scanIndex(ctx, n.keys(core.KeyFilter{PlanID: &of.PlanID}), key, process); err != nil {
		return err
	}
	return s.scanIndex(ctx, n.users(core.UserFilter{PlanID: of.PlanID}), user, process)
}

// scanIndex calls fn with the counters of all users or keys in an index, in parallel. An id that stays in
// the index during the scan occurs exactly once.
func (s *Store) scanIndex(ctx context.Context, index string, counter func(id string) core.CounterID, fn func(context.Context, []core.CounterID) error) error {
	parts, within := errgroup.WithContext(ctx)
	parts.SetLimit(maxScans)
	var err error
	for after := "-inf"; after != "" && err == nil && within.Err() == nil; { // within ends when a batch fails
		var entries []rueidis.ZScore
		entries, err = s.do(within, s.client.B().Zrange().Key(index).Min(after).Max("+inf").Byscore().Limit(0, scanBatch).Withscores().Build()).AsZScores()
		err = unavailable(err)
		ids := make([]core.CounterID, len(entries))
		for i, e := range entries {
			ids[i] = counter(e.Member)
		}
		if after = ""; len(entries) == scanBatch { // scores are unique
			after = "(" + strconv.FormatFloat(entries[len(entries)-1].Score, 'f', -1, 64)
		}
		parts.Go(func() error { return fn(within, ids) })
	}
	return cmp.Or(parts.Wait(), err, unavailable(ctx.Err()))
}
