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

// unreadHours returns the deleted users whose hours must be read first, none without a feed.
func (b *Transaction) unreadHours() (list []*core.User) {
	if b.before == nil || b.before.UsageFeed.Next == 0 {
		return nil
	}
	for _, u := range b.deletedUsers {
		if _, read := b.hours[u.ID]; !read {
			list = append(list, u)
		}
	}
	return list
}

// readHours reads the hours of users that the feed of an account has not written.
func (s *Service) readHours(ctx context.Context, a *core.Account, users []*core.User, hours map[int64][]core.CounterDay) error {
	last := core.HourOf(s.now()) + 1 // the clock of another node may be ahead
	for part := range slices.Chunk(users, core.ReadSize) {
		ids, first := make([]core.CounterID, len(part)), last
		for i, u := range part {
			ids[i], first = core.CounterID{Account: a.ID, UserID: u.ID}, min(first, a.UsageFeed.From(u.ID))
		}
		lists, err := s.store.DaysOf(ctx, ids, max(first, last-core.HoursKept), last)
		if err != nil {
			return err
		}
		for i, u := range part {
			from := a.UsageFeed.From(u.ID)
			hours[u.ID] = slices.DeleteFunc(lists[i], func(h core.CounterDay) bool { return h.Date < from })
		}
	}
	return nil
}

// putLastHours puts the events of the last hours of the deleted users, if an active webhook wants them.
func (b *Transaction) putLastHours() error {
	var events []*core.Event
	for _, u := range b.deletedUsers {
		events = append(events, usageEvents(u, "", b.hours[u.ID], b.s.now())...)
	}
	if len(events) == 0 {
		return nil
	}
	if err := b.loadWebhooks(); err != nil || !slices.ContainsFunc(b.webhooks, func(w *core.Webhook) bool { return !w.Inactive && w.Wants(core.EventUsage) }) {
		return err
	}
	return b.PutEvents(events...)
}
