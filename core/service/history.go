package service

import (
	"context"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// Maximum lengths of the fields of a Request, in bytes.
const (
	maxEndpointLength = 2048
	maxMethodLength   = core.MaxEntryMethod
	maxAddressLength  = 128
)

const historyGranularity = time.Millisecond

// KeyHistory returns a page of the requests of a key, newest first, and the number of kept
// requests.
func (s *Service) KeyHistory(ctx context.Context, account, id string, p core.Page) ([]core.Entry, int, error) {
	if _, err := s.store.Key(ctx, account, id); err != nil {
		return nil, 0, err
	}
	return s.history(ctx, core.CounterID{Account: account, KeyID: id}, p)
}

// UserHistory returns a page of the requests of a user, newest first, and the number of kept
// requests. A request belongs to the user that had the key at the time.
func (s *Service) UserHistory(ctx context.Context, account string, id int64, p core.Page) ([]core.Entry, int, error) {
	if _, err := s.store.User(ctx, account, id); err != nil {
		return nil, 0, err
	}
	return s.history(ctx, core.CounterID{Account: account, UserID: id}, p)
}

func (s *Service) history(ctx context.Context, of core.CounterID, p core.Page) ([]core.Entry, int, error) {
	return s.store.History(ctx, of, s.now().Add(-s.retention()), p)
}
