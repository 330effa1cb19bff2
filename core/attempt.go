package core

import "time"

// MaxAttempts is how many attempts the delivery log of a webhook keeps.
const MaxAttempts = 100

// Attempt is an entry of the delivery log of a webhook: one request.
type Attempt struct {
	ID       string    `json:"id"`  // within the account; the log of a webhook uses its ids again: see [AttemptID]
	Seq      int64     `json:"seq"` // 0 for a new attempt
	Webhook  string    `json:"webhook"`
	EventID  string    `json:"event_id"`
	Type     string    `json:"type"` // of the event
	At       time.Time `json:"at"`
	Attempt  int       `json:"attempt"`            // from 1
	Status   int       `json:"status,omitempty"`   // of the answer; 0 without an answer
	Problem  string    `json:"problem,omitempty"`  // "" for a delivered event
	Millis   int64     `json:"millis"`             // duration of the request in milliseconds
	GivenUp  bool      `json:"given_up,omitempty"` // no further attempt follows
	NextTime time.Time `json:"next,omitzero"`      // of the next attempt; the zero time for none
}
