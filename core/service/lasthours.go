package service

import (
	"context"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
)

// A deletion of a user writes the hours of the user that the feed has not written, the present one included, in the transaction of the deletion. What the user
// uses in the milliseconds between the reading of the hours and the transaction is missing in the feed.

// unreadHours is the error of a transaction that deletes users whose hours must be read before it.
type unreadHours struct {
	feed  *core.UsageFeed
	users []*core.User
}

// Error implements error.
func (*unreadHours) Error() string { return "the hours of the deleted users must be read" }

// feedOf returns the progress of the feed of the account, nil if no active webhook wants its events. A feed that has not begun begins with the hour in which
// the oldest of these webhooks was created.
func (b *Transaction) feedOf() (*core.UsageFeed, error) {
	if err := b.loadWebhooks(); err != nil {
		return nil, err
	}
	since, wanting := usageWanted(b.webhooks)
	if len(wanting) == 0 {
		return nil, nil
	}
	feed := b.before.UsageFeed
	if feed.Next == 0 {
		feed.Next = core.HourOf(since)
	}
	return &feed, nil
}

// readHours reads the hours of users that the feed has not written, into a map.
func (s *Service) readHours(ctx context.Context, account string, of *unreadHours, hours map[int64][]core.CounterDay) error {
	now, feed := s.now(), of.feed
	last := core.HourOf(now) + 1 // the clock of another node may be ahead
	for part := range slices.Chunk(of.users, core.ReadSize) {
		ids, first := make([]core.CounterID, len(part)), last
		for i, u := range part {
			ids[i], first = core.CounterID{Account: account, UserID: u.ID}, min(first, feed.From(u.ID))
		}
		lists, err := s.store.DaysOf(ctx, ids, max(first, core.FirstHourKept(now)), last)
		if err != nil {
			return err
		}
		for i, u := range part {
			from := feed.From(u.ID)
			hours[u.ID] = slices.DeleteFunc(lists[i], func(h core.CounterDay) bool { return h.Date < from })
		}
	}
	return nil
}

// putLastHours puts the events of the last hours of the deleted users, if an active webhook wants them. The error is unreadHours if these hours must be
// read first. A preview has no hours, and stores nothing.
func (b *Transaction) putLastHours() error {
	if len(b.deletedUsers) == 0 || b.hours == nil {
		return nil
	}
	feed, err := b.feedOf()
	if err != nil || feed == nil {
		return err
	}
	unread := &unreadHours{feed: feed}
	var events []*core.Event
	for _, u := range b.deletedUsers {
		hours, read := b.hours[u.ID]
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
