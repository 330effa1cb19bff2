package service

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// The bounds of one step of [Service.StreamHistory]. Each step is a large query of its own, so that no query waits for a slow client.
const (
	streamedAtOnce = 1_000                  // matching entries
	readAtOnce     = 10_000                 // entries read, when few match
	stepRetry      = 100 * time.Millisecond // pause before a step tries again while too many large queries wait
)

// StreamHistory calls write with all matching entries of an account, newest first, at most 1,000 in one call. The slice is valid during the
// call. Without f.To the stream ends at the present: it leaves out the entries that are counted meanwhile. f.After is not used. The stream keeps
// about 10,000 entries in memory, and 32 bytes for each user; on a store with a cap also an entry or two of each user. It ends with the error of write.
// If too many large queries wait at the beginning, the error is [ErrTooManyRequests]; later steps try again.
func (s *Service) StreamHistory(ctx context.Context, account string, f HistoryFilter, write func([]core.Entry) error) error {
	if f.After = nil; f.To.IsZero() {
		f.To = s.now().Add(historyGranularity)
	}
	m := s.newHistoryMerge(&f)
	m.endless = true
	opened, ended, list := false, false, make([]core.Entry, 0, streamedAtOnce)
	step := func() (err error) {
		if !opened {
			err, opened = m.open(ctx, account), true
		}
		for n := 0; n < readAtOnce && len(list) < streamedAtOnce && !ended && err == nil; n++ {
			var e *core.Entry
			if e, err = m.next(ctx); e != nil && f.matches(e) {
				list = append(list, *e)
			}
			ended = e == nil
		}
		return err
	}
	for !ended {
		list = list[:0]
		err := s.runQuery(ctx, account, wholeAccount, step)
		for opened && errors.Is(err, ErrTooManyRequests) && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(stepRetry):
				err = s.runQuery(ctx, account, wholeAccount, step)
			}
		}
		if err == nil && len(list) > 0 {
			err = write(list)
		}
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return err
		}
	}
	return nil
}
