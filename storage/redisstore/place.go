package redisstore

import (
	"context"
	"errors"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// place is where the counter of a key or user is, and its history.
type place struct {
	names names
	field string
	moves uint8 // of the key, so far
}

// places returns where counters are; the zero place for what does not exist.
func (s *Store) places(ctx context.Context, ids []core.CounterID) ([]place, error) {
	places := make([]place, len(ids))
	byAccount := map[string][]int{}
	for i, id := range ids {
		byAccount[id.Account] = append(byAccount[id.Account], i)
	}
	for account, which := range byAccount {
		n := s.o.account(account)
		answers, err := s.lookSettled(ctx, account, func(b *batch) {
			for _, i := range which {
				if ids[i].KeyID == "" {
					b.add("EXISTS", n.user(ids[i].UserID))
				} else {
					b.add("GET", n.apiKey(ids[i].KeyID))
				}
			}
		})
		if err != nil {
			return nil, err
		}
		for j, i := range which {
			if ids[i].KeyID == "" {
				if number(answers[j]) > 0 {
					places[i] = place{names: s.o.usage(account, ids[i].UserID), field: userField}
				}
				continue
			}
			r, ok := text(answers[j])
			if !ok {
				continue
			}
			k, err := record.Decode[keyRecord]([]byte(r))
			if err != nil {
				return nil, err
			}
			places[i] = place{s.o.usage(account, k.UserID), fieldOf(k.Seq), k.Moves}
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
