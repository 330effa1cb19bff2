package service

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// HistoryCursor is a place in the history of an account. The entries are in the order of their time [core.Entry.LatestSoFar], newest first;
// entries of one time by the id of the user, then by arrival. In front of the cursor are
//   - the entries with a later time than At
//   - the entries with the time At of users with a lower id than UserID
//   - the entries with the time At of the user UserID, except the last Left of them
//
// New entries come in front and change no other. A list that continues at a cursor repeats no entry and leaves out none, while the store drops
// no entry with the time At.
type HistoryCursor struct {
	At     time.Time // of LatestSoFar
	UserID int64     // of the history; 0 for the history of a key
	Left   int       // 0…maxSearched
}

// String returns the form for a client.
func (c HistoryCursor) String() string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d %d %d", c.At.UnixNano(), c.UserID, c.Left))
}

// ParseHistoryCursor parses the result of String. The error is a validation error.
func ParseHistoryCursor(text string) (*HistoryCursor, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	var nano int64
	c := &HistoryCursor{}
	if err == nil {
		_, err = fmt.Sscanf(string(b), "%d %d %d", &nano, &c.UserID, &c.Left)
	}
	c.At = time.Unix(0, nano).UTC()
	if err != nil || c.Left < 0 || c.Left > maxSearched || c.String() != text {
		return nil, core.Invalid("cursor", "Must be the cursor of an earlier answer")
	}
	return c, nil
}

// compare orders an entry and the cursor as a list does.
func (c *HistoryCursor) compare(e *core.Entry, user int64) int {
	return cmp.Or(c.At.Compare(e.LatestSoFar()), cmp.Compare(user, c.UserID))
}

// pass returns the cursor behind an entry. A nil cursor stands in front of all.
func (c *HistoryCursor) pass(e *core.Entry, user int64) *HistoryCursor {
	if c == nil || c.compare(e, user) > 0 {
		return &HistoryCursor{At: e.LatestSoFar(), UserID: user}
	}
	return c
}
