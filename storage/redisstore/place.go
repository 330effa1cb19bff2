package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// place is where the counter of a key or user is, and its history.
type place struct {
	names names
	field string
	moves uint8 // of the key, so far
}

// seq returns the Seq of a key, 0 of a user or of what does not exist.
func (p place) seq() int64 {
	n, err := strconv.ParseInt(p.field, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// encodePlace returns what is kept of where the counter of a key is.
func encodePlace(k *keyRecord) string {
	return fmt.Sprintf("%d %d %d", k.Seq, k.UserID, k.Moves)
}

// decodePlace reads what encodePlace writes.
func (s *Store) decodePlace(account, text string) (p place, err error) {
	field, rest, _ := strings.Cut(text, " ")
	user, moves, _ := strings.Cut(rest, " ")
	id, err := strconv.ParseInt(user, 10, 64)
	if err != nil {
		return place{}, record.ErrDamaged
	}
	n, err := strconv.ParseUint(moves, 10, 8)
	if err != nil {
		return place{}, record.ErrDamaged
	}
	return place{s.o.usage(account, id), field, uint8(n)}, nil
}

// places returns where counters are; the zero place for what does not exist.
func (s *Store) places(ctx context.Context, ids []core.CounterID) ([]place, error) {
	places := make([]place, len(ids))
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
		answers, err := s.lookSettled(ctx, account, func(b *batch) {
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
				places[i] = place{names: s.o.usage(account, ids[i].UserID), field: userField}
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
				if places[i], err = s.decodePlace(account, at); err != nil {
					return nil, err
				}
			}
		}
	}
	return places, nil
}

// readings is how often something is read that moves meanwhile.
const readings = 16

// atPlaces runs read on the places of counters, again when it has not found all and they
// are elsewhere by now.
func (s *Store) atPlaces(ctx context.Context, ids []core.CounterID, read func([]place) (found bool, err error)) error {
	places, err := s.places(ctx, ids)
	for range readings {
		if err != nil {
			return err
		}
		if found, err := read(places); found || err != nil {
			return err
		}
		before := places
		if places, err = s.places(ctx, ids); err == nil && slices.Equal(places, before) {
			return nil
		}
	}
	return core.Unavailable(errors.New("redis: keys that are read move all the time"))
}
