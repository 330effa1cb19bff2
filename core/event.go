package core

import (
	"github.com/go-json-experiment/json/jsontext"
	"time"
)

// Event is something that happened in an account: it is told to the webhooks of the account.
type Event struct {
	ID      string         `json:"id"`      // of the account; the same on every repetition of what happened
	Seq     int64          `json:"seq"`     // 0 for a new event
	Type    string         `json:"type"`    // such as limitkeeper.threshold
	Subject string         `json:"subject"` // events of one subject are delivered in the order of their numbers: the counter, key or hold
	At      time.Time      `json:"at"`
	Until   time.Time      `json:"until"` // the id is remembered until then: the end of the window
	Data    jsontext.Value `json:"data,omitempty"`
}
