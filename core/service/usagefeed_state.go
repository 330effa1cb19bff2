package service

import (
	"context"
	"fmt"

	"github.com/limitkeeper/limitkeeper/core"
)

// UsageFeedState is the progress of the usage feed of an account, and whether a webhook wants the feed.
type UsageFeedState struct {
	core.UsageFeed      // the zero value before the feed begins
	Wanted         bool // an active webhook names [core.EventUsage]; while none does, no event is written
}

// UsageFeed returns the state of the usage feed of an account.
func (s *Service) UsageFeed(ctx context.Context, account string) (UsageFeedState, error) {
	a, err := s.Account(ctx, account)
	if err != nil {
		return UsageFeedState{}, err
	}
	return s.usageFeedState(ctx, a)
}

func (s *Service) usageFeedState(ctx context.Context, a *core.Account) (UsageFeedState, error) {
	list, _, err := s.store.Webhooks(ctx, a.ID, core.Page{Number: 1, Size: core.MaxWebhooks})
	if err != nil {
		return UsageFeedState{}, err
	}
	_, wanting := feedWebhooks(list)
	return UsageFeedState{a.UsageFeed, len(wanting) > 0}, nil
}

// RewindUsageFeed makes the feed of an account write the hours from an hour on again, with the same ids. Use it for a receiver that has lost events. It
// returns the state afterwards. The hour must be kept, not in the future, and not after the first hour that is not written. Otherwise the error is a
// validation error of next_hour.
//
// A concurrent [Service.WriteUsage] does not overwrite the rewound progress.
func (s *Service) RewindUsageFeed(ctx context.Context, account string, from core.Date) (UsageFeedState, error) {
	now, kept := s.ThisHour(), core.FirstHourKept(s.now())
	switch {
	case from > now:
		return UsageFeedState{}, core.Invalid("next_hour", fmt.Sprintf("The hour %v is in the future: choose %v or an earlier one", from, now))
	case from < kept:
		return UsageFeedState{}, core.Invalid("next_hour", fmt.Sprintf("The hour %v is not kept any more: the first of the last %d hours is %v", from, core.HoursKept, kept))
	}
	a, err := s.store.UpdateAccount(s.acting(ctx), account, func(a *core.Account) error {
		if a.Closed() {
			return core.ErrAccountNotFound
		}
		if next := max(kept, a.UsageFeed.Next); a.UsageFeed.Next != 0 && from > next {
			return core.Invalid("next_hour", fmt.Sprintf("The hours from %v on are not written yet, and a later hour would leave some out: choose %v or an earlier one", next, next))
		}
		a.UsageFeed.Rewind(from)
		return nil
	})
	s.accounts.forget(account)
	if err != nil {
		return UsageFeedState{}, err
	}
	return s.usageFeedState(ctx, a)
}
