package redisstore

import (
	"cmp"
	"context"
	"strconv"

	"golang.org/x/sync/errgroup"

	"github.com/limitkeeper/limitkeeper/core"
)

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
