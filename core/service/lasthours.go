package service

import (
	"context"
	"errors"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
)

// A deletion of a user writes the hours of the user that the feed has not written, the present one included, in the transaction of the deletion. What the user
// uses in the milliseconds between the reading of the hours and the transaction is missing in the feed.

// errUnreadHours means that the hours of deleted users must be read before the transaction.
var errUnreadHours = errors.New("the hours of the deleted users must be read")

// feedOf returns the progress of the feed of the account, nil if no active webhook wants its events. A feed that has not begun begins with the hour in which
// the oldest of these webhooks was created.
func (b *Transaction) feedOf() (*core.UsageFeed, error) {
	if err := b.loadWebhooks(); err != nil || b.before == nil {
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

// noteUnread returns errUnreadHours if the hours of deleted users must be read first.
func (b *Transaction) noteUnread(feed *core.UsageFeed) error {
	for _, u := range b.deletedUsers {
		if _, read := b.hours[u.ID]; !read {
			b.unread = append(b.unread, u)
		}
	}
	if len(b.unread) > 0 {
		b.feed = feed
		return errUnreadHours
	}
	return nil
}

// readHours reads the hours of users that a feed has not written.
func (s *Service) readHours(ctx context.Context, account string, feed *core.UsageFeed, users []*core.User, hours map[int64][]core.CounterDay) error {
	last := core.HourOf(s.now()) + 1 // the clock of another node may be ahead
	for part := range slices.Chunk(users, core.ReadSize) {
		ids, first := make([]core.CounterID, len(part)), last
		for i, u := range part {
			ids[i], first = core.CounterID{Account: account, UserID: u.ID}, min(first, feed.From(u.ID))
		}
		lists, err := s.store.DaysOf(ctx, ids, max(first, last-core.HoursKept), last)
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

// putLastHours puts the events of the last hours of the deleted users, if an active webhook wants them. The error is errUnreadHours if these hours must be
// read first. A preview has no hours, and stores nothing.
func (b *Transaction) putLastHours() error {
	if len(b.deletedUsers) == 0 || b.hours == nil {
		return nil
	}
	feed, err := b.feedOf()
	if err != nil || feed == nil {
		return err
	}
	if err := b.noteUnread(feed); err != nil {
		return err
	}
	var events []*core.Event
	for _, u := range b.deletedUsers {
		events = append(events, usageEvents(u, "", b.hours[u.ID], b.s.now())...)
	}
	return b.PutEvents(events...)
}
