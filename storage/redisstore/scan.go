package redisstore

import (
	"cmp"
	"context"
	"strconv"

	"golang.org/x/sync/errgroup"

	"github.com/limitkeeper/limitkeeper/core"
)

// What is added up over all users or keys of an index is read a part at a time.

// partSize is how many users or keys a part has; partsAtOnce is how many are read at the same
// time.
const (
	scanBatch = 500
	maxScans  = 4
)

// keyOf returns the counter of a key by the id that an index has.
func keyCounterID(account string) func(id string) core.CounterID {
	return func(id string) core.CounterID { return core.CounterID{Account: account, KeyID: id} }
}

// userOf does for users what keyOf does for keys.
func userCounterID(account string) func(id string) core.CounterID {
	return func(id string) core.CounterID {
		n, _ := strconv.ParseInt(id, 10, 64) // a damaged id is that of nobody
		return core.CounterID{Account: account, UserID: n}
	}
}

// eachPart calls fn with the counters of all users or keys of an index, a part at a time and
// several at the same time. Who is in the index all the while is in one part, whatever comes
// and goes.
func (s *Store) scanIndex(ctx context.Context, index string, counter func(id string) core.CounterID, fn func(context.Context, []core.CounterID) error) error {
	parts, ctx := errgroup.WithContext(ctx)
	parts.SetLimit(maxScans)
	part := func(ids []core.CounterID) error {
		switch {
		case ctx.Err() != nil: // nobody waits for it any more
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

// idsAfter returns as many of an index as a part has, in their order, and after which score
// the next ones are: none when that is all. No two have the same score.
func (s *Store) readIndexAfter(ctx context.Context, index string, counter func(id string) core.CounterID, after string) (ids []core.CounterID, next string, err error) {
	if ctx.Err() != nil {
		return nil, "", unavailable(ctx.Err())
	}
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	some, err := s.do(ctx, s.client.B().Zrange().Key(index).Min(after).Max("+inf").Byscore().Limit(0, scanBatch).Withscores().Build()).AsZScores()
	if err != nil {
		return nil, "", unavailable(err)
	}
	for _, one := range some {
		ids = append(ids, counter(one.Member))
	}
	if len(some) == scanBatch {
		next = "(" + strconv.FormatFloat(some[len(some)-1].Score, 'f', -1, 64)
	}
	return ids, next, nil
}
