package service

import (
	"context"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
)

// A transaction writes hours that the feed cannot write later. The service reads the hours before the transaction, and the transaction writes their events:
//   - of a deleted user, the hours that the feed has not written, including the present one. The feed lacks the usage that is counted in the milliseconds
//     in between.
//   - of a key that moves to another user, the hours that wait for the open holds of its former user. The open holds of the key end with the move and stay
//     counted, so these hours are final. A hold that is settled in the milliseconds in between has its held cost in the event.

// lastHours are hours that a transaction writes.
type lastHours struct {
	user        *core.User // the deleted user, or the former user of the key
	keyID       string     // "" for the hours of the user
	first, last core.Date
}

func (h *lastHours) counter() core.CounterID {
	if h.keyID != "" {
		return core.CounterID{Account: h.user.AccountID, KeyID: h.keyID}
	}
	return core.CounterID{Account: h.user.AccountID, UserID: h.user.ID}
}

// unreadHoursError is the error of a transaction whose last hours were not read before.
type unreadHoursError struct{ hours []lastHours }

// Error implements error.
func (*unreadHoursError) Error() string {
	return "the last hours of the deleted users and moved keys must be read"
}

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

// readLastHours adds the unread hours to hours.
func (s *Service) readLastHours(ctx context.Context, unread []lastHours, hours map[core.CounterID][]core.CounterDay) error {
	kept := core.FirstHourKept(s.now())
	for batch := range slices.Chunk(unread, core.ReadSize) {
		ids, first, last := make([]core.CounterID, len(batch)), batch[0].first, batch[0].last
		for i := range batch {
			ids[i], first, last = batch[i].counter(), min(first, batch[i].first), max(last, batch[i].last)
		}
		lists, err := s.store.DaysOf(ctx, ids, max(first, kept), last)
		if err != nil {
			return err
		}
		for i, id := range ids {
			hours[id] = slices.DeleteFunc(lists[i], func(h core.CounterDay) bool { return h.Date < batch[i].first || h.Date > batch[i].last })
		}
	}
	return nil
}

// putLastHours puts the events of the last hours of the deleted users and moved keys, if an active webhook wants them. It returns an unreadHoursError if
// these hours must be read first. In a preview lastHours is nil, and putLastHours does nothing.
func (b *Transaction) putLastHours() error {
	if len(b.deletedUsers)+len(b.movedKeys) == 0 || b.lastHours == nil {
		return nil
	}
	feed, err := b.wantedFeed()
	if err != nil || feed == nil {
		return err
	}
	list, err := b.hoursOfMovedKeys(feed)
	if err != nil {
		return err
	}
	for _, u := range b.deletedUsers {
		list = append(list, lastHours{u, "", feed.NextOf(u.ID), core.HourOf(b.s.now()) + 1}) // the clock of another node may be ahead
	}
	unread := &unreadHoursError{}
	var events []*core.Event
	for _, h := range list {
		hours, read := b.lastHours[h.counter()]
		if !read {
			unread.hours = append(unread.hours, h)
		}
		events = append(events, usageEvents(h.user, h.keyID, hours, b.s.now())...)
	}
	if len(unread.hours) > 0 {
		return unread
	}
	return b.PutEvents(events...)
}

// maxMovedHours bounds the hours of moved keys that a transaction writes: at least [core.HoursKept], the hours of one key.
const maxMovedHours = 200

// hoursOfMovedKeys returns the hours of the moved keys whose former user waits, at most maxMovedHours in all. Of a key whose former user does not wait, it
// returns the last writable hour, unless that hour is written: a running call of WriteUsage may be about to make the user wait.
func (b *Transaction) hoursOfMovedKeys(feed *core.UsageFeed) (list []lastHours, err error) {
	last, n := core.LastWritableHour(b.s.now()), 0
	for _, k := range b.movedKeys {
		first := max(feed.NextOf(k.UserID), core.FirstHourKept(b.s.now()))
		if !feed.IsWaiting(k.UserID) {
			first = max(first, last)
		}
		if first > last {
			continue
		}
		if n += int(last - first + 1); n > maxMovedHours {
			break
		}
		u, err := b.tx.User(k.UserID)
		if err != nil {
			return nil, err
		}
		list = append(list, lastHours{u, k.ID, first, last})
	}
	return list, nil
}
