// Package archive is the portable format of Limitkeeper: a text file with accounts, their resources, counters and
// histories. Backup, restore, export, import and the move from one store to another are [Export] and [Import].
//
// An archive is NDJSON, compressed with gzip or zstd if its name ends in .gz or .zst. Each line is an object with one
// member, whose name is the kind of the record. The first line is the [Header], and the last one the [Trailer] with the
// number of records and the SHA-256 of all lines before it. In between are the accounts, each followed by its records in
// the order of [Kinds]. A [Reader] finds every cut, changed, added or missing line. docs/archive.md documents each record.
package archive

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// Version is the version of the format. A reader refuses every other one.
const Version = 1

// maxLine is the largest length of a line in bytes. The largest record, a counter with 64 meters, has about 50 KiB. A value in
// Badger has at most 1 MiB.
const maxLine = 256 << 10

// Kind is the kind of a record, as it is written.
type Kind string

// The kinds of records.
const (
	KindHeader       Kind = "archive"
	KindAccount      Kind = "account"
	KindOwnerKey     Kind = "owner_key"
	KindAccess       Kind = "access"
	KindPrices       Kind = "prices"
	KindWebhook      Kind = "webhook"
	KindWebhookEvent Kind = "webhook_event"
	KindPlan         Kind = "plan"
	KindUser         Kind = "user"
	KindKey          Kind = "key"
	KindCounter      Kind = "counter"
	KindDay          Kind = "day"
	KindEvent        Kind = "event"
	KindAudit        Kind = "audit"
	KindEnd          Kind = "end"
)

// Kinds lists the kinds of the records of an account in their order. The days of a key or user follow its counter.
func Kinds() []Kind {
	return []Kind{KindAccount, KindOwnerKey, KindAccess, KindPrices, KindWebhook, KindWebhookEvent, KindPlan, KindUser, KindKey, KindCounter, KindDay, KindAudit, KindEvent}
}

var (
	// ErrDamaged means that an archive is cut, was changed, or has another format or version.
	ErrDamaged = errors.New("the archive cannot be read")
	// ErrRefused means that the target cannot take the records of an archive. Nothing was written.
	ErrRefused = errors.New("the import was refused, and nothing was changed")
	// ErrTakenOver means that a later run of the same import writes its accounts.
	ErrTakenOver = errors.New("another run of this import has taken over")
	// ErrDiffers means that the target, after the import, exports other records than the archive has.
	ErrDiffers = errors.New("the target has other records than the archive")
)

// IncompleteError returns the error for accounts whose import has not finished, nil without accounts.
func IncompleteError(names []string) error {
	if len(names) == 0 {
		return nil
	}
	quoted, nouns := strconv.Quote(names[0]), "account %s is"
	for _, name := range names[1:] {
		quoted, nouns = quoted+", "+strconv.Quote(name), "accounts %s are"
	}
	return fmt.Errorf(nouns+" incomplete: run the restore or import again", quoted)
}

// Header is the first line of an archive.
type Header struct {
	Version int       `json:"version"`
	Source  string    `json:"source"` // the program that wrote the archive
	Time    time.Time `json:"time"`   // when the archive was begun
}

// Trailer is the last line of an archive.
type Trailer struct {
	Records Counts `json:"records"`
	SHA256  string `json:"sha256"` // of all lines before, in hexadecimal digits
}

// Counts is the number of records of each kind.
type Counts map[Kind]int64

// Record is a record of an account or of one of its resources.
type Record struct {
	Kind  Kind
	Line  int64 // its line in the archive, from 1; 0 for a record of a store
	Value any   // a pointer to [Account], [core.OwnerKey], [Access], [Prices], [core.Webhook], [WebhookEvent], [core.Plan], [core.User], [core.Key], [Counter], [Day], [Event] or [Audit]
	Err   error // why the line is no valid record

	line []byte // the record as a line, from a filter
}

// Sink takes the records of an archive in their order.
type Sink interface {
	Put(ctx context.Context, r Record) error
}

// Source gives the records of an archive to a sink. It may be called several times, and gives the same records each time.
type Source func(ctx context.Context, to Sink) error

// Account is the record of an account.
type Account struct {
	core.Account
	Last core.Numbers `json:"last"` // the largest numbers that the account has given, see [core.Importer]
}

// Access is the record of how people sign in to an account.
type Access struct {
	AccountID string `json:"account_id"`
	core.Access
}

// Prices is the record of the prices of an account. Prices that were never set have no record.
type Prices struct {
	AccountID string `json:"account_id"`
	core.Prices
}

// WebhookEvent is the record of an event for webhooks: the event waits for webhooks, or must not be repeated. An entry of a history is an [Event] instead.
type WebhookEvent struct {
	AccountID string `json:"account_id"`
	core.Event
}

// nameOf names the key or user of a counter in messages.
func nameOf(id core.CounterID) string {
	switch {
	case id.IsDeletedUsers():
		return "the deleted users"
	case id.KeyID != "":
		return "key " + id.KeyID
	}
	return "user " + strconv.FormatInt(id.UserID, 10)
}

// Counter is the record of the counter of a key or user. Unused counters have no record.
type Counter struct {
	core.CounterID
	At            time.Time `json:"at"`    // when it last counted; all windows contain this time
	Today         int64     `json:"today"` // requests on the UTC day of At
	Usage         []Usage   `json:"usage"` // sorted by meter, requests first, then by period; usage of 0 is left out
	LastUsedAt    time.Time `json:"last_used_at,omitzero"`
	LastRefusedAt time.Time `json:"last_refused_at,omitzero"` // in whole seconds
	DeniedOmitted int64     `json:"denied_omitted,omitempty"` // denied requests that are not in the history
}

// Usage is the usage of one meter in one window.
type Usage struct {
	Meter  string      `json:"meter"`
	Period core.Period `json:"period"`
	Start  time.Time   `json:"start"` // of the window
	Used   int64       `json:"used"`
}

// Day is the record of the traffic of a key or user on one day.
type Day struct {
	core.CounterID
	core.CounterDay
}

// Event is the record of an entry in the history of a key or user. The entry of a request is in both histories.
type Event struct {
	AccountID string `json:"account_id"`
	History   string `json:"history"` // key: the history of KeyID; user: that of UserID
	core.Entry
}

// Audit is the record of an entry in the audit log of an account, oldest first.
type Audit struct {
	AccountID string `json:"account_id"`
	core.AuditEntry
}

// The values of [Event.History].
const (
	historyOfKey  = "key"
	historyOfUser = "user"
)

// owner returns the key or user whose history has the event.
func (e *Event) owner() core.CounterID {
	if e.History == historyOfKey {
		return core.CounterID{Account: e.AccountID, KeyID: e.KeyID}
	}
	return core.CounterID{Account: e.AccountID, UserID: e.UserID}
}

// newEvent returns the record of an entry in the history of a key or user.
func newEvent(of core.CounterID, e core.Entry) *Event {
	history := historyOfUser
	if of.KeyID != "" {
		history = historyOfKey
	}
	e.At = e.At.UTC()
	return &Event{of.Account, history, e}
}

// anchors has the anchors of few users, as most have none, and of the keys of these users. Anchors give the windows of counters.
type anchors map[core.CounterID]core.Anchors

// add adds the anchors of a user or key, and nothing for another resource. The user of a key is added before the key.
func (a anchors) add(resource any) {
	switch v := resource.(type) {
	case *core.User:
		if len(v.Anchors) > 0 {
			a[core.CounterID{Account: v.AccountID, UserID: v.ID}] = v.Anchors
		}
	case *core.Key:
		if of := a[core.CounterID{Account: v.AccountID, UserID: v.UserID}]; of != nil {
			a[core.CounterID{Account: v.AccountID, KeyID: v.ID}] = of
		}
	}
}

// newCounter returns the record of a counter. The user of the counter has the anchors.
func newCounter(of core.CounterID, c *core.Counter, anchors core.Anchors) *Counter {
	at := time.Unix(c.At, 0).UTC()
	r := &Counter{CounterID: of, At: at, Today: c.Today, Usage: []Usage{}, LastRefusedAt: c.LastRefusedAt(), DeniedOmitted: c.DeniedOmitted}
	if !c.LastUsedAt.IsZero() {
		r.LastUsedAt = c.LastUsedAt.UTC()
	}
	r.add(core.MeterRequests, &c.Requests, anchors)
	for m := c.Meters; m != nil; m = m.Next {
		r.add(m.Meter, &m.Usage, anchors)
	}
	return r
}

func (r *Counter) add(meter string, t *core.PeriodUsage, anchors core.Anchors) {
	for _, p := range core.Periods() {
		if t[p] != 0 {
			r.Usage = append(r.Usage, Usage{meter, p, anchors.Window(p, r.At).Start.UTC(), t[p]})
		}
	}
}
