package core

import (
	"slices"
	"time"
)

// UsageFeed says up to which hour the events [EventUsage] of an account are written. An hour is written once its numbers cannot change any more.
// The zero UsageFeed is that of an account whose webhooks have never wanted these events.
type UsageFeed struct {
	Next Date `json:"next"` // the first hour that is not written yet

	// While a scan writes the hours from Next to Last: the users up to User are done, and then the keys up to Key, a [Key.Seq].
	Last Date  `json:"last,omitzero"`
	User int64 `json:"user,omitempty"`
	Keys bool  `json:"keys,omitempty"` // all users are done
	Key  int64 `json:"key,omitempty"`

	// Waiting lists the users with open holds when the scan came to them, sorted: a settlement still changes an hour before Next, or before the end
	// of the scan.
	Waiting []WaitingUser `json:"waiting,omitempty"`
}

// WaitingUser is a user whose hours from From on are not written yet.
type WaitingUser struct {
	UserID int64 `json:"user_id"`
	From   Date  `json:"from"`
}

// MaxWaitingUsers bounds [UsageFeed.Waiting]. If more users would wait, all others wait, too.
const MaxWaitingUsers = 5_000

// UsageDelay is the time from the end of an hour to its events: the clocks of the nodes may differ, and a request may take this long.
const UsageDelay = 5 * time.Minute

// LastHour returns the last hour that can be written at a time.
func LastHour(now time.Time) Date { return HourOf(now.Add(-UsageDelay)) - 1 }

// From returns the first hour of a user that is not written.
func (f *UsageFeed) From(user int64) Date {
	if i, waits := f.find(user); waits {
		return f.Waiting[i].From
	}
	return f.LastOf(user) + 1
}

// LastOf returns the last hour that is written of a user that does not wait.
func (f *UsageFeed) LastOf(user int64) Date {
	if f.Scans() && (f.Keys || user <= f.User) {
		return f.Last
	}
	return f.Next - 1
}

// Wait makes a user wait from an hour on.
func (f *UsageFeed) Wait(user int64, from Date) {
	if i, waits := f.find(user); !waits {
		f.Waiting = slices.Insert(f.Waiting, i, WaitingUser{user, from})
	}
}

// Continue makes a waiting user wait from a later hour on. After the last hour that is written of others, the user no longer waits.
func (f *UsageFeed) Continue(user int64, from Date) {
	i, waits := f.find(user)
	switch {
	case !waits:
	case from > f.LastOf(user):
		f.Waiting = slices.Delete(f.Waiting, i, i+1)
	default:
		f.Waiting[i].From = from
	}
}

// Rewind makes the hours from an hour on be written again, with the same ids. Users that wait stay waiting: a settlement may still change their hours.
func (f *UsageFeed) Rewind(from Date) {
	f.Waiting = slices.Clone(f.Waiting)
	for i := range f.Waiting {
		f.Waiting[i].From = min(f.Waiting[i].From, from)
	}
	f.Begin(from, 0)
}

// Begin begins a scan of the hours from next to last, in place of the present scan. A last of 0 begins none: next is then the first hour that is not written.
func (f *UsageFeed) Begin(next, last Date) {
	*f = UsageFeed{Next: next, Last: last, Waiting: f.Waiting}
}

// FirstWaiting returns the first waiting users, at most 100: for people.
func (f *UsageFeed) FirstWaiting() []WaitingUser { return f.Waiting[:min(len(f.Waiting), 100)] }

// Scans reports whether a scan has begun and not ended.
func (f *UsageFeed) Scans() bool { return f.Last >= f.Next && f.Next != 0 }

// Equal reports whether two feeds have the same progress.
func (f *UsageFeed) Equal(other *UsageFeed) bool {
	return f.Next == other.Next && f.Last == other.Last && f.User == other.User && f.Keys == other.Keys && f.Key == other.Key && slices.Equal(f.Waiting, other.Waiting)
}

// Waits reports whether a user waits.
func (f *UsageFeed) Waits(user int64) bool {
	_, waits := f.find(user)
	return waits
}

func (f *UsageFeed) find(user int64) (int, bool) {
	return slices.BinarySearchFunc(f.Waiting, user, func(w WaitingUser, id int64) int { return int(w.UserID - id) })
}

// UsageData is the data of [EventUsage].
type UsageData struct {
	UserID     int64                 `json:"user_id"`
	ExternalID *string               `json:"external_id"`
	KeyID      *string               `json:"key_id"` // null: all requests of the user
	Hour       Date                  `json:"hour"`
	Requests   Traffic               `json:"requests"` // the numbers of requests, whatever they cost
	Meters     map[string]UsageMeter `json:"meters"`   // with requests, whose units are costs
}

// UsageMeter is the traffic of a meter in an event, in units of its cost.
type UsageMeter struct {
	MeterTraffic
	Used int64 `json:"used"` // see [MeterTraffic.Used]
}

// Plus returns the sum of m and n.
func (m UsageMeter) Plus(n UsageMeter) UsageMeter {
	return UsageMeter{m.MeterTraffic.Plus(n.MeterTraffic), AddSigned(m.Used, n.Used)}
}

// UsageEvent returns the event with the traffic of an hour of the user, or with keyID of a key of the user: nil for an hour without traffic. The same hour has the
// same id each time.
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
