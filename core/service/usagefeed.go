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

// The feed of an account is the events [core.EventUsage]: the hours of its users and keys. An hour is written when nothing can change it any more, so that no
// event corrects another one: [core.UsageDelay] after its end, and, for a user and its keys, after the end of the holds of that hour.
//
// [core.Account.UsageFeed] has the progress. WriteUsage stores it after the events. If the process dies between the two, the next call writes the events
// again, with the same ids.

// The bounds of the work of WriteUsage.
const (
	feedCounters = 500                       // counters that are read together
	feedHours    = 24                        // hours that one scan writes
	feedPages    = 20                        // pages of feedCounters in one call
	feedPending  = core.MaxPendingEvents / 5 // no more is written while so many events wait for webhooks
	feedMargin   = 24                        // hours before an hour is no longer kept at which it is written, whatever holds are open
)

// WriteUsage writes a bounded part of the feed of an account, for the webhooks that want [core.EventUsage]. It reports whether it could write more at once. Call it
// once a minute, and again while there is more. One process of all calls it.
func (s *Service) WriteUsage(ctx context.Context, account string) (more bool, err error) {
	list, _, err := s.store.Webhooks(ctx, account, core.Page{Number: 1, Size: core.MaxWebhooks})
	since, wanting := usageWanted(list)
	if err != nil || len(wanting) == 0 {
		return false, err
	}
	a, err := s.store.Account(ctx, account)
	if err != nil || a.Incomplete() || a.Closed() {
		return false, err
	}
	w := &feedWriter{Service: s, ctx: ctx, account: account, now: s.now(), webhooks: wanting, feed: a.UsageFeed}
	w.feed.Waiting = slices.Clone(w.feed.Waiting)
	lost := w.begin(since)
	more, err = w.write()
	return more, errors.Join(lost, err, w.save(a.UsageFeed))
}

// usageWanted returns the ids of the active webhooks that want [core.EventUsage], and the creation of the oldest one.
func usageWanted(list []*core.Webhook) (since time.Time, ids []string) {
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

	webhooks []string            // that want the feed
	oldest   map[int64]time.Time // the oldest open hold of each user
}

// begin begins the feed with the hour of since, and a scan of the hours that have ended since the last scan. Hours that are no longer kept are left out:
// the error says which.
func (w *feedWriter) begin(since time.Time) (lost error) {
	if w.feed.Next == 0 {
		w.feed.Next = core.HourOf(since)
	}
	if kept := w.kept(); w.feed.Next < kept {
		lost = fmt.Errorf("the hours from %v to %v are no longer kept, and were not all written", w.feed.Next, kept-1)
		w.feed.Begin(kept, 0)
	}
	if last := core.LastHour(w.now); !w.feed.Scans() && w.feed.Next <= last {
		w.feed.Begin(w.feed.Next, min(last, w.feed.Next+feedHours-1))
	}
	return lost
}

// kept returns the first hour that the store keeps.
func (w *feedWriter) kept() core.Date { return core.FirstHourKept(w.now) }

// write writes a part of the scan. After the end of the scan, it writes the hours of the users that have waited.
func (w *feedWriter) write() (more bool, err error) {
	if !w.feed.Scans() && len(w.feed.Waiting) == 0 {
		return false, nil
	}
	if full, err := w.isFull(); err != nil || full {
		return false, err // the deliveries take longer than a second
	}
	if w.oldest, err = w.store.OldestHolds(w.ctx, w.account); err != nil {
		return false, err
	}
	if len(w.feed.Waiting) > core.MaxWaitingUsers/2 { // the scan may need their places
		if full, err := w.writeWaiting(); err != nil || full {
			return full, err
		}
	}
	for n := 0; w.feed.Scans(); n++ {
		full, err := w.isFull()
		if err != nil || full || n == feedPages {
			return err == nil, err
		}
		scan := w.scanUsers
		if w.feed.Keys {
			scan = w.scanKeys
		}
		if err := w.read(scan); err != nil {
			return false, err
		}
	}
	full, err := w.writeWaiting()
	return full || w.feed.Next <= core.LastHour(w.now), err
}

// isFull reports whether too many events wait for one of the webhooks that want the feed.
func (w *feedWriter) isFull() (bool, error) {
	for _, id := range w.webhooks {
		_, pending, err := w.PendingEvents(w.ctx, w.account, id, 0, 0)
		if err != nil || pending >= feedPending {
			return true, err
		}
	}
	return false, nil
}

// read runs fn as a large query. The feed of an account waits for no report of the account.
func (w *feedWriter) read(fn func() error) error {
	return w.runLargeQuery(w.ctx, "feed of "+w.account, reportRest, fn)
}

// scanUsers writes the hours of the next users. Users with holds that were opened in these hours, or earlier, wait.
func (w *feedWriter) scanUsers() error {
	users, err := nextItems(w.feed.User, func(u *core.User) int64 { return u.ID }, func(p core.Page) ([]*core.User, int, error) {
		return w.store.Users(w.ctx, w.account, core.UserFilter{}, p)
	})
	if err != nil || len(users) == 0 {
		w.feed.Keys = err == nil
		return err
	}
	var free, waiting []*core.User
	for _, u := range users {
		switch at, holds := w.oldest[u.ID]; {
		case w.feed.Waits(u.ID):
		case holds && core.HourOf(at) <= w.feed.Last:
			waiting = append(waiting, u)
		default:
			free = append(free, u)
		}
	}
	if len(w.feed.Waiting)+len(waiting) > core.MaxWaitingUsers {
		return errTooManyWait
	}
	if err := w.writeUsers(free, w.feed.Next, w.feed.Last); err != nil {
		return err
	}
	for _, u := range waiting {
		w.feed.Wait(u.ID, w.feed.Next)
	}
	w.feed.User = users[len(users)-1].ID
	return nil
}

// errTooManyWait means that more than [core.MaxWaitingUsers] users have open holds of past hours.
var errTooManyWait = errors.New("too many users have holds that were opened an hour ago and are still open")

// scanKeys writes the hours of the next keys, except keys of users that wait. After the last key, it ends the scan.
func (w *feedWriter) scanKeys() error {
	keys, err := nextItems(w.feed.Key, func(k *core.Key) int64 { return k.Seq }, func(p core.Page) ([]*core.Key, int, error) {
		return w.store.Keys(w.ctx, w.account, core.KeyFilter{}, p)
	})
	if err != nil {
		return err
	}
	if len(keys) == 0 {
		w.feed.Begin(w.feed.Last+1, 0)
		return nil
	}
	free := slices.DeleteFunc(slices.Clone(keys), func(k *core.Key) bool { return w.feed.Waits(k.UserID) })
	if err := w.writeKeys(free, w.feed.Next, w.feed.Last); err != nil {
		return err
	}
	w.feed.Key = keys[len(keys)-1].Seq
	return nil
}

// writeWaiting writes the hours of waiting users before their oldest open holds. Users without such a hold no longer wait. A hold that is extended for days does not
// keep the hours of its user until they are gone: they are written feedMargin before. full reports that users are left because too many events wait.
func (w *feedWriter) writeWaiting() (full bool, err error) {
	for _, waiting := range slices.Clone(w.feed.Waiting) {
		last := w.feed.LastOf(waiting.UserID)
		if at, holds := w.oldest[waiting.UserID]; holds {
			last = min(last, max(core.HourOf(at)-1, w.kept()+feedMargin-1))
		}
		if last < waiting.From {
			continue
		}
		for from := max(waiting.From, w.kept()); from <= last; from += feedHours {
			if full, err := w.isFull(); err != nil || full {
				return full, err
			}
			to := min(last, from+feedHours-1)
			if err := w.read(func() error { return w.writeUser(waiting.UserID, from, to) }); err != nil {
				return false, err
			}
			w.feed.Continue(waiting.UserID, to+1)
		}
	}
	return false, nil
}

// writeUser writes hours of a user and of its keys. The hours of a deleted user were written before its deletion.
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
		keys, err = nextItems(done, func(k *core.Key) int64 { return k.Seq }, func(p core.Page) ([]*core.Key, int, error) {
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

// writeHours writes hours of counters. userOf returns the user of a counter by its index; it is called for counters with traffic only.
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

// save stores the progress, unless the feed has been moved since it was read.
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

// nextItems returns the next items of a list that is sorted by their numbers: at most feedCounters whose numbers are larger than after, none at the end. It searches
// the page of the first one.
func nextItems[T any](after int64, number func(T) int64, list func(core.Page) ([]T, int, error)) ([]T, error) {
	_, total, err := list(core.Page{Number: 1, Size: 1})
	position := sort.Search(total, func(i int) bool {
		one, _, failed := list(core.Page{Number: i + 1, Size: 1})
		err = cmp.Or(err, failed)
		return len(one) == 0 || number(one[0]) > after
	})
	if err != nil {
		return nil, err
	}
	items, _, _, err := pageAfter(after, core.Page{Number: position/feedCounters + 1, Size: feedCounters}, number, list)
	return items, err
}
