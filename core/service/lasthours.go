package service

import (
	"context"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
)

// The last hours of a deleted user are the hours that the feed has not written, including the present one. The service reads the last hours before the
// transaction that deletes the user, and the transaction writes their events. The feed lacks the usage that is counted in the milliseconds in between.

// unreadHoursError is the error of a transaction that deletes users whose last hours were not read before.
type unreadHoursError struct {
	feed  *core.UsageFeed
	users []*core.User
}

// Error implements error.
func (*unreadHoursError) Error() string { return "the last hours of the deleted users must be read" }

// wantedFeed returns the progress of the feed of the account, nil if no active webhook wants the feed. A feed that has not begun begins with the hour in
// which the oldest of these webhooks was created.
func (b *Transaction) wantedFeed() (*core.UsageFeed, error) {
	if err := b.loadWebhooks(); err != nil {
		return nil, err
	}
	since, wanting := feedWebhooks(b.webhooks)
	if len(wanting) == 0 {
		return nil, nil
	}
	feed := b.before.UsageFeed
	if feed.Next == 0 {
		feed.Next = core.HourOf(since)
	}
	return &feed, nil
}

// readLastHours adds the hours that the feed has not written to hours, by user.
func (s *Service) readLastHours(ctx context.Context, account string, unread *unreadHoursError, hours map[int64][]core.CounterDay) error {
	now, feed := s.now(), unread.feed
	last := core.HourOf(now) + 1 // the clock of another node may be ahead
	for batch := range slices.Chunk(unread.users, core.ReadSize) {
		ids, first := make([]core.CounterID, len(batch)), last
		for i, u := range batch {
			ids[i], first = core.CounterID{Account: account, UserID: u.ID}, min(first, feed.NextOf(u.ID))
		}
		lists, err := s.store.DaysOf(ctx, ids, max(first, core.FirstHourKept(now)), last)
		if err != nil {
			return err
		}
		for i, u := range batch {
			next := feed.NextOf(u.ID)
			hours[u.ID] = slices.DeleteFunc(lists[i], func(h core.CounterDay) bool { return h.Date < next })
		}
	}
	return nil
}

// putLastHours puts the events of the last hours of the deleted users, if an active webhook wants them. It returns an unreadHoursError if these hours
// must be read first. In a preview lastHours is nil, and putLastHours does nothing.
func (b *Transaction) putLastHours() error {
	if len(b.deletedUsers) == 0 || b.lastHours == nil {
		return nil
	}
	feed, err := b.wantedFeed()
	if err != nil || feed == nil {
		return err
	}
	unread := &unreadHoursError{feed: feed}
	var events []*core.Event
	for _, u := range b.deletedUsers {
		hours, read := b.lastHours[u.ID]
		if !read {
			unread.users = append(unread.users, u)
		}
		events = append(events, usageEvents(u, "", hours, b.s.now())...)
	}
	if len(unread.users) > 0 {
		return unread
	}
	return b.PutEvents(events...)
}
