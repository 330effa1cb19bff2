package core

import (
	"slices"
	"time"
)

// UsageFeed is the progress of the usage feed of an account: the hours whose events [EventUsage] are written. An hour is written once nothing can
// change its numbers any more. The zero UsageFeed is that of a feed that has not begun.
type UsageFeed struct {
	Next Date `json:"next"` // the first hour that is not written yet

	// The position of the scan that writes the hours from Next to Last, first of all users by id, then of all keys by [Key.Seq]. Last is 0 between two scans.
	Last Date  `json:"last,omitzero"`
	User int64 `json:"user,omitempty"` // the last user that the scan has passed
	Keys bool  `json:"keys,omitempty"` // the scan has passed all users
	Key  int64 `json:"key,omitempty"`  // the Seq of the last key that the scan has passed

	// Rewinds counts the rewinds. A call of WriteUsage that a rewind overtakes does not store its progress, also when the rewind changes nothing else.
	Rewinds int64 `json:"rewinds,omitempty"`

	// Waiting lists the users whose open holds may still change an hour that the scan has passed. It is sorted by user.
	Waiting []WaitingUser `json:"waiting,omitempty"`
}

// WaitingUser is a user whose hours from From on are not written yet.
type WaitingUser struct {
	UserID int64 `json:"user_id"`
	From   Date  `json:"from"`
}

// MaxWaitingUsers bounds [UsageFeed.Waiting]. With more such users, the scan stops until some of them no longer wait.
const MaxWaitingUsers = 5_000

// UsageDelay is the time from the end of an hour until its events are written. It covers the clock difference of the nodes, and requests that are
// still running.
const UsageDelay = 5 * time.Minute

// LastWritableHour returns the last hour that the feed may write at the time now.
func LastWritableHour(now time.Time) Date { return HourOf(now.Add(-UsageDelay)) - 1 }

// NextOf returns the first hour of a user that is not written.
func (f *UsageFeed) NextOf(user int64) Date {
	if i, waits := f.find(user); waits {
		return f.Waiting[i].From
	}
	return f.LastScanned(user) + 1
}

// LastScanned returns the last hour in which the scans have passed a user. The hour is written unless the user waits.
func (f *UsageFeed) LastScanned(user int64) Date {
	if f.Scanning() && (f.Keys || user <= f.User) {
		return f.Last
	}
	return f.Next - 1
}

// AddWaiting makes a user wait from an hour on. A user that waits already keeps its hour.
func (f *UsageFeed) AddWaiting(user int64, from Date) {
	if i, waits := f.find(user); !waits {
		f.Waiting = slices.Insert(f.Waiting, i, WaitingUser{user, from})
	}
}

// AdvanceWaiting makes a waiting user wait from a later hour on. From an hour after [UsageFeed.LastScanned] on, the user no longer waits.
func (f *UsageFeed) AdvanceWaiting(user int64, from Date) {
	i, waits := f.find(user)
	switch {
	case !waits:
	case from > f.LastScanned(user):
		f.Waiting = slices.Delete(f.Waiting, i, i+1)
	default:
		f.Waiting[i].From = from
	}
}

// Rewind makes the feed write the hours from an hour on again, with the same ids. Waiting users stay waiting: a settlement may still change their hours.
func (f *UsageFeed) Rewind(from Date) {
	f.Waiting = slices.Clone(f.Waiting)
	for i := range f.Waiting {
		f.Waiting[i].From = min(f.Waiting[i].From, from)
	}
	f.Rewinds++
	f.EndScan(from)
}

// StartScan starts a scan of the hours from Next to last.
func (f *UsageFeed) StartScan(last Date) {
	*f = UsageFeed{Next: f.Next, Last: last, Rewinds: f.Rewinds, Waiting: f.Waiting}
}

// EndScan ends the scan, if one is running, and makes next the first hour that is not written.
func (f *UsageFeed) EndScan(next Date) {
	*f = UsageFeed{Next: next, Rewinds: f.Rewinds, Waiting: f.Waiting}
}

// FirstWaiting returns the first waiting users for display, at most 100.
func (f *UsageFeed) FirstWaiting() []WaitingUser { return f.Waiting[:min(len(f.Waiting), 100)] }

// Scanning reports whether a scan has started and not ended.
func (f *UsageFeed) Scanning() bool { return f.Last >= f.Next && f.Next != 0 }

// Equal reports whether two feeds have the same progress.
func (f *UsageFeed) Equal(other *UsageFeed) bool {
	return f.Next == other.Next && f.Last == other.Last && f.User == other.User && f.Keys == other.Keys && f.Key == other.Key && f.Rewinds == other.Rewinds &&
		slices.Equal(f.Waiting, other.Waiting)
}

// IsWaiting reports whether a user waits.
func (f *UsageFeed) IsWaiting(user int64) bool {
	_, waits := f.find(user)
	return waits
}

// find returns the index of a user in Waiting, or the index where to insert it.
func (f *UsageFeed) find(user int64) (i int, waits bool) {
	return slices.BinarySearchFunc(f.Waiting, user, func(w WaitingUser, id int64) int { return int(w.UserID - id) })
}

// UsageData is the data of [EventUsage].
type UsageData struct {
	UserID     int64                 `json:"user_id"`
	ExternalID *string               `json:"external_id"`
	KeyID      *string               `json:"key_id"` // nil in an event of a user, which includes its keys
	Hour       Date                  `json:"hour"`
	Requests   Traffic               `json:"requests"` // the number of requests, each counted once whatever its cost
	Meters     map[string]UsageMeter `json:"meters"`   // the costs by meter; the meter requests is always present
}

// UsageMeter is the cost on one meter in an event.
type UsageMeter struct {
	MeterTraffic
	Used int64 `json:"used"` // see [MeterTraffic.Used]
}

// Plus returns the sum of m and n.
func (m UsageMeter) Plus(n UsageMeter) UsageMeter {
	return UsageMeter{m.MeterTraffic.Plus(n.MeterTraffic), AddSigned(m.Used, n.Used)}
}

// UsageEvent returns the event [EventUsage] of an hour of the user. With a keyID, the event is that of a key of the user. UsageEvent returns nil for an
// hour without traffic. The id depends only on the user or key and the hour. The account forgets the event once it is delivered, so that it can be
// written again.
func (u *User) UsageEvent(keyID string, hour *DayTotals, now time.Time) *Event {
	id := CounterID{Account: u.AccountID, UserID: u.ID}
	if keyID != "" {
		id = CounterID{Account: u.AccountID, KeyID: keyID}
	}
	d := UsageData{UserID: u.ID, ExternalID: orNil(u.ExternalID), KeyID: orNil(keyID), Hour: hour.Date, Requests: hour.Requests(), Meters: map[string]UsageMeter{MeterRequests: {}}}
	for _, m := range hour.Meters {
		if m.Meter != MeterCount {
			d.Meters[m.Meter] = UsageMeter{m.MeterTraffic, m.Used()}
		}
	}
	if len(d.Meters) == 1 && d.Meters[MeterRequests] == (UsageMeter{}) && d.Requests == (Traffic{}) {
		return nil
	}
	return &Event{ID: UsageEventID(id, hour.Date), Type: EventUsage, Subject: id.Subject(), At: hour.Date.Start(), Until: now.UTC(), Data: eventData(d)}
}

// UsageEventID returns the id of the event [EventUsage] of an hour of a counter.
func UsageEventID(id CounterID, hour Date) string {
	return EventID(EventUsage, id.Account, id.Subject(), hour)
}
