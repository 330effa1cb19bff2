package service

import (
	"context"

	"github.com/limitkeeper/limitkeeper/core"
)

// The bounds of one step of [Service.StreamHistory]. A large query is one step, so that a slow reader keeps none waiting.
const (
	streamedAtOnce = 1_000  // matching entries
	readAtOnce     = 10_000 // entries read, when few match
)

// StreamHistory calls write with all matching entries of an account, newest first, at most 1,000 in one call. The slice is valid during the
// call. Without f.To the stream ends at the present: it leaves out the entries that are counted meanwhile. f.After is not used. The stream keeps
// about 8,192 entries in memory for up to 32 histories, and a few more for each further history. It ends with the error of write.
func (s *Service) StreamHistory(ctx context.Context, account string, f HistoryFilter, write func([]core.Entry) error) error {
	if f.After = nil; f.To.IsZero() {
		f.To = s.now().Add(historyGranularity)
	}
	m := s.newHistoryMerge(&f)
	m.endless = true
	opened, list := false, make([]core.Entry, 0, streamedAtOnce)
	for ended := false; !ended; {
		list = list[:0]
		err := s.runQuery(ctx, account, f.size(), func() (err error) {
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
		})
		if err == nil && len(list) > 0 {
			err = write(list)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
