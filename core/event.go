package core

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// The types of events.
const (
	EventThreshold   = "limitkeeper.threshold"    // a limit has reached a threshold
	EventExhausted   = "limitkeeper.exhausted"    // a limit is used up
	EventForecast    = "limitkeeper.forecast"     // at this pace a limit is used up before it resets
	EventKeyCreated  = "limitkeeper.key_created"  // an API key was created
	EventKeyDisabled = "limitkeeper.key_disabled" // an API key has stopped working
	EventKeyExpiring = "limitkeeper.key_expiring" // an API key expires within 7 days
	EventHoldOverrun = "limitkeeper.hold_overrun" // a settlement has cost more than its hold
	EventUsage       = "limitkeeper.usage"        // what a key or user has used in an hour
	EventTest        = "limitkeeper.test"         // a test that a person sends; each webhook accepts this type
)

// EventTypes returns the types of events that a webhook may want.
func EventTypes() []string {
	return []string{EventThreshold, EventExhausted, EventForecast, EventKeyCreated, EventKeyDisabled, EventKeyExpiring, EventHoldOverrun, EventUsage}
}

// The bounds of events.
const (
	MaxEventID       = 256       // bytes of the id, and of the subject
	MaxEventData     = 12 << 10  // bytes: an hour of MaxMetersEver meters
	MaxPendingEvents = 50_000    // events of an account that wait for a delivery: with MaxEventData at most 600 MiB, usually 25 MB
	MaxEvents        = 2_000_000 // events that an account remembers
)

// Event is something that has happened in an account. The webhooks of the account deliver it.
type Event struct {
	ID      string         `json:"id"`                // unique in the account; a repetition of the same occurrence has the same id
	Seq     int64          `json:"seq"`               // from 1, in the order of creation within the account; 0 for a new event
	Type    string         `json:"type"`              // such as limitkeeper.threshold
	Subject string         `json:"subject,omitempty"` // a counter, key or hold: the events of one subject are delivered in the order of Seq
	At      time.Time      `json:"at"`
	Until   time.Time      `json:"until"`          // the account remembers the id until then, and while deliveries are pending
	Data    jsontext.Value `json:"data,omitempty"` // an object; nil as soon as no delivery is pending

	Deliveries []Delivery `json:"deliveries,omitempty"` // that are pending, one for each webhook
}

// Delivery is an event that waits for a webhook.
type Delivery struct {
	Webhook  string    `json:"webhook"`
	Attempts int       `json:"attempts,omitempty"` // that have failed
	Next     time.Time `json:"next,omitzero"`      // no attempt before; the zero time before the first attempt
}

// Check returns an error unless the members of the event are within their bounds.
func (e *Event) Check() error {
	isHeader := func(s string) bool { return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) }
	switch {
	case e.ID == "" || len(e.ID) > MaxEventID || !isHeader(e.ID):
		return Invalid("id", fmt.Sprintf("The id of an event has 1 to %d visible ASCII characters", MaxEventID))
	case e.Type == "" || len(e.Type) > 64 || !isHeader(e.Type):
		return Invalid("type", "The type of an event has 1 to 64 visible ASCII characters")
	case len(e.Subject) > MaxEventID:
		return Invalid("subject", fmt.Sprintf("The subject of an event has at most %d bytes", MaxEventID))
	case len(e.Data) > MaxEventData:
		return Invalid("data", fmt.Sprintf("The data of an event has at most %d bytes, and not %d", MaxEventData, len(e.Data)))
	case len(e.Deliveries) > MaxWebhooks:
		return Invalid("deliveries", fmt.Sprintf("An event has at most %d deliveries", MaxWebhooks))
	case e.Data != nil && (e.Data.Kind() != '{' || !e.Data.IsValid()):
		return Invalid("data", "The data of an event is an object")
	}
	return nil
}

// Deliver gives a new event a pending delivery for each active webhook that wants its type. Without one, the event has no data.
func (e *Event) Deliver(webhooks []*Webhook) {
	e.Deliveries = nil
	for _, w := range webhooks {
		if w.Gets(e.Type) {
			e.Deliveries = append(e.Deliveries, Delivery{Webhook: w.ID})
		}
	}
	if e.Deliveries == nil {
		e.Data = nil
	}
}

// DeliverAgain makes a new event replace known, the stored event with the same id: the new event takes over the Seq and the pending deliveries of known.
// DeliverAgain reports whether that changes known: a pending delivery is new, or has new data.
func (e *Event) DeliverAgain(known *Event) (changed bool) {
	again := e.Deliveries
	e.Seq, e.Deliveries = known.Seq, slices.Clone(known.Deliveries)
	for _, d := range again {
		if e.PendingFor(d.Webhook) == nil {
			e.Deliveries, changed = append(e.Deliveries, d), true
		}
	}
	return changed || len(e.Deliveries) > 0 && !bytes.Equal(e.Data, known.Data)
}

// PendingFor returns the pending delivery for a webhook, nil for none.
func (e *Event) PendingFor(webhook string) *Delivery {
	for i := range e.Deliveries {
		if e.Deliveries[i].Webhook == webhook {
			return &e.Deliveries[i]
		}
	}
	return nil
}

// EndDelivery ends the delivery for a webhook. An event without a pending delivery needs no data.
func (e *Event) EndDelivery(webhook string) {
	e.Deliveries = slices.DeleteFunc(e.Deliveries, func(d Delivery) bool { return d.Webhook == webhook })
	if len(e.Deliveries) == 0 {
		e.Deliveries, e.Data = nil, nil
	}
}

// Forgettable reports whether the account need not remember the event any longer at the time now.
func (e *Event) Forgettable(now time.Time) bool {
	return len(e.Deliveries) == 0 && !now.Before(e.Until)
}

// EventFilter selects events of an account. At most one member is set.
type EventFilter struct {
	Pending bool   // events with a pending delivery
	Webhook string // events with a pending delivery for this webhook
	Until   Date   // events whose Until is on this day
}

// Filters returns the filters that the event matches, the empty one included.
func (e *Event) Filters() []EventFilter {
	list := []EventFilter{{}, {Until: max(1, DateOf(e.Until))}}
	if len(e.Deliveries) > 0 {
		list = append(list, EventFilter{Pending: true})
	}
	for _, d := range e.Deliveries {
		list = append(list, EventFilter{Webhook: d.Webhook})
	}
	return list
}
