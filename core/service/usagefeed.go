package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// The usage feed of an account consists of the events [core.EventUsage]: one for each hour with traffic of a user or key. An hour is written once its
// numbers are final, so no event corrects another one. An hour is final [core.UsageDelay] after its end, and after the user's holds of this and earlier
// hours have ended.
//
// A scan writes a range of hours of all users, and then of all keys. It leaves out users with open holds, and their keys. These users wait, and
// writeWaiting writes their hours later.
//
// [core.Account.UsageFeed] has the progress. WriteUsage stores the progress after the events. After a crash between the two, the next call writes the
// events again, with the same ids.

// The bounds of the work of WriteUsage.
const (
	feedBatch       = 500                       // users or keys that are read together
	maxScanHours    = 24                        // hours of one scan
	maxFeedBatches  = 20                        // batches of the scan in one call
	maxFeedPending  = core.MaxPendingEvents / 5 // pending events of a webhook from which on nothing more is written
	feedDeadlineGap = 24                        // an hour is written this many hours before the store deletes it, even if holds are open
)

// WriteUsage writes a bounded part of the feed of an account, if an active webhook wants [core.EventUsage]. It reports whether more can be written now.
// Call it once a minute, and again soon if there is more. Only one process at a time may call it.
func (s *Service) WriteUsage(ctx context.Context, account string) (more bool, err error) {
	list, _, err := s.store.Webhooks(ctx, account, core.Page{Number: 1, Size: core.MaxWebhooks})
	since, wanting := feedWebhooks(list)
	if err != nil || len(wanting) == 0 {
		return false, err
	}
	a, err := s.store.Account(ctx, account)
	if err != nil || a.Incomplete() || a.Closed() {
		return false, err
	}
	w := &feedWriter{Service: s, ctx: ctx, account: account, now: s.now(), webhooks: wanting, feed: a.UsageFeed}
	w.feed.Waiting = slices.Clone(w.feed.Waiting)
	lost := w.startScan(since)
	more, err = w.write()
	return more, errors.Join(lost, err, w.save(a.UsageFeed))
}

// feedWebhooks returns the ids of the active webhooks that want [core.EventUsage], and the time at which the oldest of them was created.
func feedWebhooks(list []*core.Webhook) (since time.Time, ids []string) {
	for _, w := range list {
		if w.Gets(core.EventUsage) {
			if ids = append(ids, w.ID); len(ids) == 1 || w.CreatedAt.Before(since) {
				since = w.CreatedAt
			}
		}
	}
	return since, ids
}

// feedWriter is the state of one call of WriteUsage.
type feedWriter struct {
	*Service
	feed    core.UsageFeed
	ctx     context.Context
	account string
	now     time.Time

	webhooks []string            // the ids of the active webhooks that want the feed
	oldest   map[int64]time.Time // the oldest open hold of each user
}

// startScan starts a scan of the writable hours, unless a scan is running. A feed that has not begun begins with the hour of since, or with the first
// hour that the store keeps. Later, hours that the store no longer keeps are left out, and lost names them.
func (w *feedWriter) startScan(since time.Time) (lost error) {
	kept := w.firstKept()
	if w.feed.Next == 0 {
		w.feed.Next = max(core.HourOf(since), kept)
	}
	if w.feed.Next < kept {
		lost = fmt.Errorf("the hours from %v to %v are no longer kept, and were not all written", w.feed.Next, kept-1)
		w.feed.EndScan(kept)
	}
	users := 0
	for i := range w.feed.Waiting {
		if from := &w.feed.Waiting[i].From; *from < kept {
			*from, users = kept, users+1
		}
	}
	if users > 0 {
		lost = errors.Join(lost, fmt.Errorf("the hours of %d waiting users before %v are no longer kept, and were not all written", users, kept))
	}
	if last := core.LastWritableHour(w.now); !w.feed.Scanning() && w.feed.Next <= last {
		w.feed.StartScan(min(last, w.feed.Next+maxScanHours-1))
	}
	return lost
}

// firstKept returns the first hour that the store keeps.
func (w *feedWriter) firstKept() core.Date { return core.FirstHourKept(w.now) }

// write writes a part of the scan. After the end of the scan, it writes the final hours of the waiting users.
func (w *feedWriter) write() (more bool, err error) {
	if !w.feed.Scanning() && len(w.feed.Waiting) == 0 {
		return false, nil
	}
	if backlog, err := w.hasBacklog(); err != nil || backlog {
		return false, err // more is false even if hours are left: the webhooks need time to deliver
	}
	if w.oldest, err = w.store.OldestHolds(w.ctx, w.account); err != nil {
		return false, err
	}
	if len(w.feed.Waiting) > core.MaxWaitingUsers/2 { // make room for the users that the scan adds
		if backlog, err := w.writeWaiting(); err != nil || backlog {
			return backlog, err
		}
	}
	for n := 0; w.feed.Scanning(); n++ {
		backlog, err := w.hasBacklog()
		if err != nil || backlog || n == maxFeedBatches {
			return err == nil, err
		}
		scan := w.scanUsers
		if w.feed.Keys {
			scan = w.scanKeys
		}
		if err := w.runQuery(scan); err != nil {
			return false, err
		}
	}
	backlog, err := w.writeWaiting()
	return backlog || w.feed.Next <= core.LastWritableHour(w.now), err
}

// hasBacklog reports whether at least maxFeedPending events wait for one of the webhooks that want the feed.
func (w *feedWriter) hasBacklog() (bool, error) {
	for _, id := range w.webhooks {
		_, pending, err := w.PendingEvents(w.ctx, w.account, id, 0, 0)
		if err != nil || pending >= maxFeedPending {
			return true, err
		}
	}
	return false, nil
}

// runQuery runs fn as a large query. The key of its queue differs from that of reports, so reports of the account do not delay the feed.
func (w *feedWriter) runQuery(fn func() error) error {
	return w.runLargeQuery(w.ctx, "feed of "+w.account, reportRest, fn)
}

// scanUsers writes the hours of the next batch of users. Users with open holds from these hours, or from earlier ones, begin to wait.
func (w *feedWriter) scanUsers() error {
	users, err := itemsAfter(w.feed.User, func(u *core.User) int64 { return u.ID }, func(p core.Page) ([]*core.User, int, error) {
		return w.store.Users(w.ctx, w.account, core.UserFilter{}, p)
	})
	if err != nil || len(users) == 0 {
		w.feed.Keys = err == nil
		return err
	}
	var final, waiting []*core.User
	for _, u := range users {
		switch at, holds := w.oldest[u.ID]; {
		case w.feed.IsWaiting(u.ID):
		case holds && core.HourOf(at) <= w.feed.Last:
			waiting = append(waiting, u)
		default:
			final = append(final, u)
		}
	}
	if len(w.feed.Waiting)+len(waiting) > core.MaxWaitingUsers {
		return errTooManyWaiting
	}
	if err := w.writeUsers(final, w.feed.Next, w.feed.Last); err != nil {
		return err
	}
	for _, u := range waiting {
		w.feed.AddWaiting(u.ID, w.feed.Next)
	}
	w.feed.User = users[len(users)-1].ID
	return nil
}

// errTooManyWaiting means that more than [core.MaxWaitingUsers] users have open holds from past hours.
var errTooManyWaiting = errors.New("too many users have open holds from past hours")

// scanKeys writes the hours of the next batch of keys, except keys of waiting users. After the last key, it ends the scan.
func (w *feedWriter) scanKeys() error {
	keys, err := itemsAfter(w.feed.Key, func(k *core.Key) int64 { return k.Seq }, func(p core.Page) ([]*core.Key, int, error) {
		return w.store.Keys(w.ctx, w.account, core.KeyFilter{}, p)
	})
	if err != nil {
		return err
	}
	if len(keys) == 0 {
		w.feed.EndScan(w.feed.Last + 1)
		return nil
	}
	final := slices.DeleteFunc(slices.Clone(keys), func(k *core.Key) bool { return w.feed.IsWaiting(k.UserID) })
	if err := w.writeKeys(final, w.feed.Next, w.feed.Last); err != nil {
		return err
	}
	w.feed.Key = keys[len(keys)-1].Seq
	return nil
}

// writeWaiting writes the hours of each waiting user up to the hour of its oldest open hold, without that hour. A user without an open hold from a
// scanned hour no longer waits. feedDeadlineGap before the store deletes an hour, the hour is written even if a hold is still open. backlog reports that
// hours are left because too many events wait.
func (w *feedWriter) writeWaiting() (backlog bool, err error) {
	for _, waiting := range slices.Clone(w.feed.Waiting) {
		last := w.feed.LastScanned(waiting.UserID)
		if at, holds := w.oldest[waiting.UserID]; holds {
			last = min(last, max(core.HourOf(at)-1, w.firstKept()+feedDeadlineGap-1))
		}
		if last < waiting.From {
			continue
		}
		for from := waiting.From; from <= last; from += maxScanHours {
			if backlog, err := w.hasBacklog(); err != nil || backlog {
				return backlog, err
			}
			to := min(last, from+maxScanHours-1)
			if err := w.runQuery(func() error { return w.writeUser(waiting.UserID, from, to) }); err != nil {
				return false, err
			}
			w.feed.AdvanceWaiting(waiting.UserID, to+1)
		}
	}
	return false, nil
}

// writeUser writes hours of a user and of its keys. It skips a deleted user: the deletion has written the hours.
func (w *feedWriter) writeUser(id int64, first, last core.Date) error {
	u, err := w.store.User(w.ctx, w.account, id)
	if errors.Is(err, core.ErrUserNotFound) {
		return nil
	}
	if err == nil {
		err = w.writeUsers([]*core.User{u}, first, last)
	}
	for done := int64(0); err == nil; {
		var keys []*core.Key
		keys, err = itemsAfter(done, func(k *core.Key) int64 { return k.Seq }, func(p core.Page) ([]*core.Key, int, error) {
			return w.store.Keys(w.ctx, w.account, core.KeyFilter{UserID: id}, p)
		})
		if len(keys) == 0 || err != nil {
			return err
		}
		done, err = keys[len(keys)-1].Seq, w.writeKeys(keys, first, last)
	}
	return err
}

// writeUsers writes hours of users.
func (w *feedWriter) writeUsers(users []*core.User, first, last core.Date) error {
	ids := make([]core.CounterID, len(users))
	for i, u := range users {
		ids[i] = core.CounterID{Account: w.account, UserID: u.ID}
	}
	return w.writeHours(ids, first, last, func(i int) (*core.User, error) { return users[i], nil })
}

// writeKeys writes hours of keys. It reads each user once.
func (w *feedWriter) writeKeys(keys []*core.Key, first, last core.Date) error {
	users := map[int64]*core.User{}
	ids := make([]core.CounterID, len(keys))
	for i, k := range keys {
		ids[i] = core.CounterID{Account: w.account, KeyID: k.ID}
	}
	return w.writeHours(ids, first, last, func(i int) (u *core.User, err error) {
		if u = users[keys[i].UserID]; u == nil {
			u, err = w.store.User(w.ctx, w.account, keys[i].UserID)
			users[keys[i].UserID] = u
		}
		return u, err
	})
}

// writeHours writes hours of counters. userOf returns the user of the counter at an index. writeHours calls it only for counters with traffic.
func (w *feedWriter) writeHours(ids []core.CounterID, first, last core.Date, userOf func(int) (*core.User, error)) error {
	lists, err := w.store.DaysOf(w.ctx, ids, first, last)
	if err != nil {
		return err
	}
	var events []*core.Event
	for i, hours := range lists {
		if len(hours) == 0 {
			continue
		}
		u, err := userOf(i)
		if errors.Is(err, core.ErrUserNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		events = append(events, usageEvents(u, ids[i].KeyID, hours, w.now)...)
	}
	return w.PutEvents(w.ctx, w.account, events...)
}

// usageEvents returns the events of hours of a user or key.
func usageEvents(u *core.User, keyID string, hours []core.CounterDay, now time.Time) (events []*core.Event) {
	for i := range hours {
		if e := u.UsageEvent(keyID, new(hours[i].Totals(false)), now); e != nil {
			events = append(events, e)
		}
	}
	return events
}

// save stores the progress, unless a rewind has changed the feed since it was read.
func (w *feedWriter) save(read core.UsageFeed) error {
	s, ctx := w.Service, w.ctx
	_, err := s.store.UpdateAccount(s.acting(ctx), w.account, func(a *core.Account) error {
		if w.feed.Equal(&read) || !a.UsageFeed.Equal(&read) {
			return errUnchanged
		}
		a.UsageFeed = w.feed
		return nil
	})
	if errors.Is(err, errUnchanged) {
		return nil
	}
	s.accounts.forget(w.account)
	return err
}

// itemsAfter returns the first items of a list whose numbers are larger than after, at most feedBatch. The list is sorted by the numbers of its items.
// At the end of the list, itemsAfter returns none. It finds the position of the first item by binary search.
func itemsAfter[T any](after int64, number func(T) int64, list func(core.Page) ([]T, int, error)) ([]T, error) {
	_, total, err := list(core.Page{Number: 1, Size: 1})
	position := sort.Search(total, func(i int) bool {
		one, _, failed := list(core.Page{Number: i + 1, Size: 1})
		err = cmp.Or(err, failed)
		return len(one) == 0 || number(one[0]) > after
	})
	if err != nil {
		return nil, err
	}
	items, _, _, err := pageAfter(after, core.Page{Number: position/feedBatch + 1, Size: feedBatch}, number, list)
	return items, err
}
