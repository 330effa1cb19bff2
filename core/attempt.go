package core

import (
	"strconv"
	"time"
)

// MaxAttempts is how many attempts the delivery log of a webhook keeps.
const MaxAttempts = 100

// Attempt is an entry of the delivery log of a webhook: one request.
type Attempt struct {
	ID       string    `json:"id"`  // unique within the account until the log of the webhook reuses it: see [AttemptID]
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
	NextTime time.Time `json:"next,omitzero"`      // of the next attempt; the zero time for none. After a success: the event had new data
}

// AttemptID returns the id of the nth attempt in the log of a webhook, from 0 to MaxAttempts-1. A later attempt gets the id of the oldest one, and replaces it.
func AttemptID(webhook string, n int) string { return webhook + "/" + strconv.Itoa(n) }

// retryDelays are the times between the attempts to deliver an event: 24 hours in all.
var retryDelays = []time.Duration{5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour,
	2 * time.Hour, 2 * time.Hour, 2 * time.Hour, 2 * time.Hour, 2 * time.Hour, 2 * time.Hour, 2 * time.Hour, 2 * time.Hour, 2 * time.Hour, 2 * time.Hour}

// FailingLimit is how long all deliveries of a webhook fail before Limitkeeper disables the webhook.
const FailingLimit = 24 * time.Hour

// MaxRetryGap is longer than each retry delay. A longer gap between two attempts means that the server was down, or the account disabled: FailingLimit
// then begins again.
const MaxRetryGap = 4 * time.Hour

// RetryDelay returns the time between a failed attempt and the next one, and false after the last attempt. failed is the number of attempts that have
// failed. random, from 0 to 1, moves the delay by at most a fifth, so that the attempts of many webhooks spread.
func RetryDelay(failed int, random float64) (d time.Duration, retry bool) {
	if failed < 1 || failed > len(retryDelays) {
		return 0, false
	}
	d = retryDelays[failed-1]
	return d + time.Duration((random-0.5)*0.4*float64(d)), true
}
