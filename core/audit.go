package core

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The bounds of an audit log. An account has two logs: see [AuditEntry.Seq]. Each drops its oldest entries beyond a bound, so an account uses at
// most 64 MiB.
const (
	MaxAuditEntries = 50_000
	MaxAuditBytes   = 32 << 20             // of the stored entries
	AuditRetention  = 400 * 24 * time.Hour // older entries are removed in the background
)

// AuditEntry is an administrative change of an account in the audit log.
type AuditEntry struct {
	// Seq orders the entries: later entries have larger numbers. Seq is twice the time in microseconds, or 2 more than the Seq of the entry before in
	// the same log, whichever is larger. An even number is in the log of users, plans, keys, prices and webhooks. An odd number is in the
	// log of the account itself, its owner's keys and the ways to sign in: a store may keep these elsewhere.
	Seq int64 `json:"seq,omitempty"`

	At     time.Time   `json:"at"`
	Actor  Actor       `json:"actor"`
	IP     string      `json:"ip,omitempty"` // the address that the request came from, "" for none
	Action string      `json:"action"`       // the kind of the target and a verb, such as key.update
	Target AuditTarget `json:"target"`

	// Objects with the members that have changed, without secrets: Before is nil for a new resource, After for a deleted one. The members of both are
	// named as in the REST API.
	Before json.RawMessage `json:"before,omitempty"`
	After  json.RawMessage `json:"after,omitempty"`
}

// AuditTarget is what a change has changed.
type AuditTarget struct {
	Kind string `json:"kind"`
	ID   string `json:"id,omitempty"`
	Name string `json:"name,omitempty"` // after the change, or of a deleted resource
}

// auditIDPrefix begins the id of an entry.
const auditIDPrefix = "audit_"

// ID returns the id of the entry within its account.
func (e *AuditEntry) ID() string { return auditIDPrefix + strconv.FormatInt(e.Seq, 36) }

// ParseAuditID returns the number of the entry with an id. The error is a validation error of the field.
func ParseAuditID(field, id string) (seq int64, err error) {
	if text, ok := strings.CutPrefix(id, auditIDPrefix); ok {
		seq, err = strconv.ParseInt(text, 36, 64)
	}
	if e := (&AuditEntry{Seq: seq}); err != nil || seq <= 0 || e.ID() != id {
		return 0, Invalid(field, "Must be the cursor of an earlier answer")
	}
	return seq, nil
}

// OfRegistry reports whether the entry is in the log of the account itself, its owner's keys and the ways to sign in.
func (e *AuditEntry) OfRegistry() bool { return e.Seq%2 != 0 }

// AuditSeq returns the first number of a time in both logs of an account, see [AuditEntry.Seq].
func AuditSeq(at time.Time) int64 { return max(2, 2*at.UnixMicro()) }

// NextAuditSeq returns the number of an entry with the number wanted in a log whose newest entry has the number last, 0 for none. registry selects
// the log.
func NextAuditSeq(wanted, last int64, registry bool) int64 {
	wanted &^= 1
	if registry {
		wanted++
	}
	if last == 0 {
		return wanted
	}
	return max(wanted, last+2)
}

// Wanted returns the number that the entry gets in a log without later entries: its Seq, or the number of its time if Seq is 0.
func (e *AuditEntry) Wanted() int64 {
	if e.Seq != 0 {
		return e.Seq
	}
	return AuditSeq(e.At)
}

// maxAuditText bounds each text of an imported entry, in bytes.
const maxAuditText = 1024

// Check returns an error unless the entry is one that a change may have left. An import calls it.
func (e *AuditEntry) Check() error {
	for _, text := range []string{string(e.Actor.Kind), e.Actor.ID, e.Actor.Name, e.IP, e.Action, e.Target.Kind, e.Target.ID, e.Target.Name} {
		if len(text) > maxAuditText {
			return Invalid("audit", fmt.Sprintf("A text of an audit entry has at most %d bytes", maxAuditText))
		}
	}
	if e.Seq <= 0 || e.Seq > MaxLimit || e.Action == "" {
		return Invalid("audit", "An audit entry has a number and an action")
	}
	for _, object := range []json.RawMessage{e.Before, e.After} {
		if object != nil && !strings.HasPrefix(string(object), "{") {
			return Invalid("audit", "Before and after are objects")
		}
	}
	return nil
}

// auditMember is a member of a resource, as JSON.
type auditMember struct{ name, value string }

// auditView is the list of the members of a resource that the audit log shows.
type auditView []auditMember

// add appends a member, unless its value is null.
func (v auditView) add(name string, value any) auditView {
	text := auditJSON(value)
	if text == "null" {
		return v
	}
	return append(v, auditMember{name, text})
}

// value returns the value of a member, null for none.
func (v auditView) value(name string) string {
	for _, m := range v {
		if m.name == name {
			return m.value
		}
	}
	return "null"
}

// changedFrom returns the members whose values differ between the view was and this one: before with the old values, after with the new ones.
func (v auditView) changedFrom(was auditView) (before, after auditView) {
	before, after = auditView{}, auditView{}
	for _, m := range slices.Concat(v, was) {
		from, to := was.value(m.name), v.value(m.name)
		if from != to && before.value(m.name) == "null" && after.value(m.name) == "null" {
			before, after = append(before, auditMember{m.name, from}), append(after, auditMember{m.name, to})
		}
	}
	return before, after
}

// object returns the view as JSON.
func (v auditView) object() json.RawMessage {
	b := []byte{'{'}
	for i, m := range v {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, auditJSON(m.name)...), ':'), m.value...)
	}
	return append(b, '}')
}

// auditJSON returns a value as JSON, and keeps metadata byte for byte.
func auditJSON(v any) string {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return "null" // a time outside of the years 0 to 9999
	}
	return strings.TrimSuffix(text.String(), "\n")
}

// auditMembers returns the members of a resource that its description lists, nil for a nil resource.
func auditMembers[R, P any](of *Members[R, P], r *R) (v auditView) {
	if r == nil {
		return nil
	}
	for i := range of.List {
		v = v.add(of.List[i].Name, of.List[i].Get(r))
	}
	return v
}

// auditFields returns the fields of a resource, except the hidden ones and those named like an id or a secret. A field that a later version adds is shown.
func auditFields(resource any, hidden ...string) (v auditView) {
	hide := map[string]bool{"id": true, "account_id": true, "created_at": true, "digest": true, "password": true, "secret": true}
	for _, name := range hidden {
		hide[name] = true
	}
	d := json.NewDecoder(strings.NewReader(auditJSON(resource)))
	_, _ = d.Token() // {
	for d.More() {
		name, _ := d.Token()
		var value json.RawMessage
		if d.Decode(&value) != nil {
			break
		}
		if text, ok := name.(string); ok && !hide[text] {
			v = append(v, auditMember{text, string(value)})
		}
	}
	return v
}
