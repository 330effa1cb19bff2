package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// place is where the counter of a key or user is, and its history.
type location struct {
	slot  keySlot
	field string
	moves uint8 // of the key, so far
}

// seq returns the Seq of a key, 0 of a user or of what does not exist.
func (p location) seq() int64 {
	n, err := strconv.ParseInt(p.field, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// encodePlace returns what is kept of where the counter of a key is.
func encodeLocation(k *keyRecord) string {
	return fmt.Sprintf("%d %d %d", k.Seq, k.UserID, k.Moves)
}

// decodePlace reads what encodePlace writes.
func (s *Store) decodeLocation(account, text string) (p location, err error) {
	field, rest, _ := strings.Cut(text, " ")
	user, moves, _ := strings.Cut(rest, " ")
	id, err := strconv.ParseInt(user, 10, 64)
	if err != nil {
		return location{}, record.ErrDamaged
	}
	n, err := strconv.ParseUint(moves, 10, 8)
	if err != nil {
		return location{}, record.ErrDamaged
	}
	return location{s.o.usage(account, id), field, uint8(n)}, nil
}

// places returns where counters are; the zero place for what does not exist.
func (s *Store) locations(ctx context.Context, ids []core.CounterID) ([]location, error) {
	places := make([]location, len(ids))
	type some struct {
		users, keys []int // in ids
		of          []string
	}
	byAccount := map[string]*some{}
	for i, id := range ids {
		in := byAccount[id.Account]
		if in == nil {
			in = &some{}
			byAccount[id.Account] = in
		}
		if id.KeyID == "" {
			in.users = append(in.users, i)
		} else {
			in.keys, in.of = append(in.keys, i), append(in.of, id.KeyID)
		}
	}
	for account, in := range byAccount {
		n := s.o.account(account)
		answers, err := s.readDrained(ctx, account, func(b *batch) {
			for _, i := range in.users {
				b.add("EXISTS", n.user(ids[i].UserID))
			}
			b.addMany("HMGET", n.key("places"), in.of)
		})
		if err != nil {
			return nil, err
		}
		for j, i := range in.users {
			if number(answers[j]) > 0 {
				places[i] = location{slot: s.o.usage(account, ids[i].UserID), field: userField}
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
				if places[i], err = s.decodeLocation(account, at); err != nil {
					return nil, err
				}
			}
		}
	}
	return places, nil
}

// placed returns which places are those of something.
func existing(places []location) (which []int) {
	for i, p := range places {
		if p.field != "" {
			which = append(which, i)
		}
	}
	return which
}

// readings is how often something is read that moves meanwhile.
const maxReads = 16

// atPlaces reads something of counters where they are, and returns it in their order. read
// returns it of places, and which of them have not got it for good: that is read again where
// it is by now, if it has moved.
func readLocated[T any](ctx context.Context, s *Store, ids []core.CounterID, read func([]location) (some []T, missing []int, err error)) ([]T, error) {
	list, which := make([]T, len(ids)), make([]int, len(ids))
	for i := range which {
		which[i] = i
	}
	places, err := s.locations(ctx, ids)
	if err != nil {
		return nil, err
	}
	for range maxReads {
		some, missing, err := read(places)
		if err != nil {
			return nil, err
		}
		for i, v := range some {
			list[which[i]] = v
		}
		which, places, err = s.relocated(ctx, ids, which, places, missing)
		if err != nil || len(which) == 0 {
			return list, err
		}
	}
	return nil, core.Unavailable(errors.New("redis: keys that are read move all the time"))
}

// moved returns which of the missing are elsewhere by now, and where.
func (s *Store) relocated(ctx context.Context, ids []core.CounterID, which []int, places []location, missing []int) (moved []int, to []location, err error) {
	if len(missing) == 0 {
		return nil, nil, nil
	}
	some := make([]core.CounterID, len(missing))
	for i, m := range missing {
		some[i] = ids[which[m]]
	}
	now, err := s.locations(ctx, some)
	if err != nil {
		return nil, nil, err
	}
	for i, m := range missing {
		if now[i] != places[m] {
			moved, to = append(moved, which[m]), append(to, now[i])
		}
	}
	return moved, to, nil
}
