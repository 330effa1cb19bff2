package core

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// eventIDPrefix begins the id of each event.
const eventIDPrefix = "evt_"

// EventID returns the id of an event of an account: a hash of its type and of parts, such as the counter and the window. The same parts make the same id on
// every node and after every restart.
func EventID(eventType, account string, parts ...any) string {
	h := sha256.New()
	for _, part := range append([]any{eventType, account}, parts...) {
		_, _ = fmt.Fprintf(h, "%q ", fmt.Sprint(part)) // quoted, so that no two lists of parts are the same text
	}
	return eventIDPrefix + hex.EncodeToString(h.Sum(nil)[:16])
}

// EventSource returns the source of all events of an account, as in CloudEvents.
func EventSource(account string) string { return "/limitkeeper/accounts/" + account }

// eventData returns the data of an event. v is a struct whose members can all be written as JSON.
func eventData(v any) jsontext.Value {
	b, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		panic(err)
	}
	return b
}

// eventMemory is how long an account remembers the id of an event that nothing repeats.
const eventMemory = 24 * time.Hour

// keyData is the data of EventKeyCreated and EventKeyExpiring.
type keyData struct {
	UserID    int64      `json:"user_id"`
	KeyID     string     `json:"key_id"`
	PlanID    *string    `json:"plan_id"` // null: the plan of the user
	ExpiresAt *time.Time `json:"expires_at"`
}

// event returns an event of the key. Its id is made of the type, the id of the key and the parts.
func (k *Key) event(eventType string, at, until time.Time, data any, parts ...any) *Event {
	return &Event{ID: EventID(eventType, k.AccountID, append([]any{k.ID}, parts...)...), Type: eventType, Subject: k.ID, At: at.UTC(), Until: until.UTC(), Data: eventData(data)}
}

func (k *Key) eventData() keyData { return keyData{k.UserID, k.ID, orNil(k.PlanID), k.ExpiresAt} }

// CreatedEvent returns the event of a new key.
func (k *Key) CreatedEvent() *Event {
	return k.event(EventKeyCreated, k.CreatedAt, k.CreatedAt.Add(eventMemory), k.eventData())
}

// DisabledHow is the change that ended the use of a key.
type DisabledHow string

// The changes that end the use of a key. The end of its ExpiresAt is not a change.
const (
	HowInactive     DisabledHow = "inactive"      // the status of the key was set
	HowDeleted      DisabledHow = "deleted"       // the key was deleted
	HowUserDisabled DisabledHow = "user_disabled" // the user was disabled
	HowUserDeleted  DisabledHow = "user_deleted"  // the user was deleted with its keys
)

// disabledData is the data of EventKeyDisabled.
type disabledData struct {
	UserID int64       `json:"user_id"`
	KeyID  *string     `json:"key_id"` // null: all keys of the user
	How    DisabledHow `json:"how"`
}

// DisabledEvent returns EventKeyDisabled for the change of a key to after, nil unless the change ends the use of the key. after is nil for a deletion.
func (k *Key) DisabledEvent(after *Key, at time.Time) *Event {
	user := k.UserID
	if after != nil {
		user = after.UserID
	}
	event := func(how DisabledHow, parts ...any) *Event {
		return k.event(EventKeyDisabled, at, at.Add(eventMemory), disabledData{user, &k.ID, how}, append(parts, how)...)
	}
	switch {
	case k.Status != KeyActive:
		return nil
	case after == nil:
		return event(HowDeleted)
	case after.Status != KeyActive:
		return event(HowInactive, after.UpdatedAt.UnixMilli())
	}
	return nil
}

// DisabledEvent returns EventKeyDisabled for the change of a user to after, nil unless the change ends the use of all its keys. after is nil for a deletion.
func (u *User) DisabledEvent(after *User, at time.Time) *Event {
	subject := CounterID{Account: u.AccountID, UserID: u.ID}.Subject()
	event := func(how DisabledHow, parts ...any) *Event {
		return &Event{ID: EventID(EventKeyDisabled, u.AccountID, append([]any{subject, how}, parts...)...), Type: EventKeyDisabled, Subject: subject, At: at.UTC(), Until: at.UTC().Add(eventMemory),
			Data: eventData(disabledData{u.ID, nil, how})}
	}
	switch {
	case u.Disabled:
		return nil
	case after == nil:
		return event(HowUserDeleted)
	case after.Disabled:
		return event(HowUserDisabled, after.UpdatedAt.UnixMilli())
	}
	return nil
}

// ExpiringBefore is how long before its end a key is about to expire.
const ExpiringBefore = 7 * 24 * time.Hour

// ExpiringEvent returns the event of a key that is about to expire, nil for any other key. A key that was created less than ExpiringBefore before its end
// causes no event.
func (k *Key) ExpiringEvent(now time.Time) *Event {
	if k.ExpiresAt == nil || k.Status != KeyActive {
		return nil
	}
	from := k.ExpiresAt.Add(-ExpiringBefore)
	if now.Before(from) || !now.Before(*k.ExpiresAt) || k.CreatedAt.After(from) {
		return nil
	}
	return k.event(EventKeyExpiring, now, k.ExpiresAt.Add(eventMemory), k.eventData(), k.ExpiresAt.UnixMilli())
}

// overrunData is the data of EventHoldOverrun. The maps are by meter.
type overrunData struct {
	UserID  int64            `json:"user_id"`
	KeyID   *string          `json:"key_id"`
	HoldID  string           `json:"hold_id"`
	Held    map[string]int64 `json:"held"`
	Settled map[string]int64 `json:"settled"`
	Overrun map[string]int64 `json:"overrun"`
}

// OverrunEvent returns the event of a settled hold whose final cost exceeds the held cost, nil for any other hold. Meters without a held cost are left out:
// they are always charged afterwards.
func (h *Hold) OverrunEvent(account string) *Event {
	d := overrunData{UserID: h.UserID, KeyID: orNil(h.KeyID), HoldID: h.ID, Held: map[string]int64{}, Settled: map[string]int64{}, Overrun: map[string]int64{}}
	for _, m := range h.Overrun() {
		held := h.Cost
		if m.Meter != MeterRequests {
			held = costIn(h.Costs, m.Meter)
		}
		if held > 0 {
			d.Held[m.Meter], d.Settled[m.Meter], d.Overrun[m.Meter] = held, held+m.Cost, m.Cost
		}
	}
	if len(d.Overrun) == 0 {
		return nil
	}
	counter := CounterID{Account: account, UserID: h.UserID}
	if !h.Shared {
		counter = CounterID{Account: account, KeyID: h.KeyID}
	}
	return &Event{ID: EventID(EventHoldOverrun, account, h.ID), Type: EventHoldOverrun, Subject: counter.Subject(), At: h.ClosedAt.UTC(), Until: h.ClosedAt.UTC().Add(2 * RequestIDRetention),
		Data: eventData(d)}
}
