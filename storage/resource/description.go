package resource

import (
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// description says where the resources of a kind are found.
type description[T any] struct {
	kind      Kind
	id        func(*T) string // "" for a new user
	number    func(*T) *int64 // nil for a kind of the registry, whose numbers are outside the records
	sets      func(*T) []string
	unique    func(*T) []Unique
	duplicate func(Unique) error
	missing   error

	audit func(a *core.Auditing, before, after *T) // adds the change of a resource to the audit log; nil for kinds without entries
}

var accounts = &description[core.Account]{
	kind: Account,
	id:   func(a *core.Account) string { return a.ID },
	sets: func(*core.Account) []string { return []string{accountSet} },
	unique: func(a *core.Account) []Unique {
		if a.Deleting { // its name is free
			return nil
		}
		return []Unique{nameOf(a.Name)}
	},
	duplicate: func(Unique) error { return core.ErrAccountExists },
	missing:   core.ErrAccountNotFound,
	audit:     (*core.Auditing).Account,
}

var ownerKeys = &description[core.OwnerKey]{
	kind:      OwnerKey,
	id:        func(k *core.OwnerKey) string { return ownerKeyID(k.AccountID, k.ID) },
	sets:      func(k *core.OwnerKey) []string { return []string{ownerKeySet(k.AccountID)} },
	unique:    func(k *core.OwnerKey) []Unique { return []Unique{ownerDigest(k.Digest)} },
	duplicate: func(Unique) error { return core.ErrOwnerKeyExists },
	missing:   core.ErrOwnerKeyNotFound,
	audit:     (*core.Auditing).OwnerKey,
}

var users = &description[core.User]{
	kind: User,
	id: func(u *core.User) string {
		if u.ID == 0 {
			return ""
		}
		return userID(u.ID)
	},
	number: func(u *core.User) *int64 { return &u.ID },
	sets: func(u *core.User) (sets []string) {
		for _, f := range u.Filters() {
			sets = append(sets, UserSet(f))
		}
		return sets
	},
	unique: func(u *core.User) (all []Unique) {
		for _, f := range u.UniqueFilters() {
			v, _ := uniqueOf(f)
			all = append(all, v)
		}
		return all
	},
	duplicate: func(u Unique) error {
		if u.Name == emails {
			return core.ErrDuplicateEmail
		}
		return core.ErrDuplicateExternalID
	},
	missing: core.ErrUserNotFound,
	audit:   (*core.Auditing).User,
}

var plans = &description[core.Plan]{
	kind:    Plan,
	id:      func(p *core.Plan) string { return p.ID },
	number:  func(p *core.Plan) *int64 { return &p.Seq },
	sets:    func(*core.Plan) []string { return []string{PlanSet} },
	missing: core.ErrPlanNotFound,
	audit:   (*core.Auditing).Plan,
}

var keys = &description[core.Key]{
	kind:   Key,
	id:     func(k *core.Key) string { return k.ID },
	number: func(k *core.Key) *int64 { return &k.Seq },
	sets: func(k *core.Key) (sets []string) {
		for _, f := range k.Filters() {
			sets = append(sets, KeySet(f))
		}
		return sets
	},
	missing: core.ErrKeyNotFound,
	audit:   (*core.Auditing).Key,
}

var webhooks = &description[core.Webhook]{
	kind:    Webhook,
	id:      func(w *core.Webhook) string { return w.ID },
	number:  func(w *core.Webhook) *int64 { return &w.Seq },
	sets:    func(*core.Webhook) []string { return []string{webhookSet} },
	missing: core.ErrWebhookNotFound,
	audit:   (*core.Auditing).Webhook,
}

var events = &description[core.Event]{
	kind:   Event,
	id:     func(e *core.Event) string { return e.ID },
	number: func(e *core.Event) *int64 { return &e.Seq },
	sets: func(e *core.Event) (sets []string) {
		for _, f := range e.Filters() {
			sets = append(sets, eventSet(f))
		}
		return sets
	},
	missing: core.ErrEventNotFound,
}

var attempts = &description[core.Attempt]{
	kind:    Attempt,
	id:      func(a *core.Attempt) string { return a.ID },
	number:  func(a *core.Attempt) *int64 { return &a.Seq },
	sets:    func(a *core.Attempt) []string { return []string{attemptSet(a.Webhook)} },
	missing: core.ErrEventNotFound,
}

// The one list of prices of an account has an empty id.
var prices = &description[core.Prices]{kind: Prices, audit: (*core.Auditing).Prices}

// of returns what fn returns for a resource, and the zero value for nil and without fn.
func of[T, V any](fn func(*T) V, v *T) (result V) {
	if fn != nil && v != nil {
		result = fn(v)
	}
	return result
}

// numberOf returns the number of a resource, 0 for nil and for a kind of the registry.
func (d *description[T]) numberOf(v *T) int64 {
	if n := of(d.number, v); n != nil {
		return *n
	}
	return 0
}

// The names of sets and of unique values.
const (
	accountSet   = "accounts"
	PlanSet      = "plans" // all plans of an account
	webhookSet   = "webhooks"
	names        = "names"
	ownerDigests = "owner-digests"
	emails       = "emails"
	externalIDs  = "external-ids"
)

func ownerKeySet(account string) string   { return "owner-keys:" + account }
func userID(id int64) string              { return strconv.FormatInt(id, 10) }
func nameOf(account string) Unique        { return Unique{names, account} }
func ownerDigest(d secrets.Digest) Unique { return Unique{ownerDigests, hex.EncodeToString(d[:])} }

// ownerKeyID returns the id of an owner's key in the registry. The length keeps two keys apart whatever their ids are.
func ownerKeyID(account, id string) string {
	return strconv.Itoa(len(account)) + ":" + account + "/" + id
}

// UserSet names the set of the users that match a filter. A filter by a unique value has no set.
func UserSet(f core.UserFilter) string {
	switch {
	case f.PlanID != "":
		return "users:p" + f.PlanID
	case f.OnPlan != "":
		return "users:on" + f.OnPlan
	case f.Anchored:
		return "users:anchored"
	}
	return "users"
}

// eventSet names the set of the events that match a filter.
func eventSet(f core.EventFilter) string {
	switch {
	case f.Webhook != "":
		return "events:w" + f.Webhook
	case f.Pending:
		return "events:pending"
	case f.Until != 0:
		return "events:until" + strconv.Itoa(int(f.Until))
	}
	return "events"
}

func attemptSet(webhook string) string { return "attempts:" + webhook }

// KeySet names the set of the keys that match a filter. The plan is last in the name, because its id may have any characters.
func KeySet(f core.KeyFilter) string {
	if f.HintTail != "" {
		return "keys:h" + f.HintTail
	}
	name := "keys"
	if f.UserID != 0 {
		name += ":u" + userID(f.UserID)
	}
	if f.Status != "" {
		name += ":s" + string(f.Status)
	}
	switch {
	case f.UnderPlan != "":
		name += ":e" + f.UnderPlan
	case f.PlanID != nil:
		name += ":p" + *f.PlanID
	}
	return name
}

// uniqueOf returns the value that a filter selects a user by, and false for any other filter.
func uniqueOf(f core.UserFilter) (u Unique, ok bool) {
	switch {
	case f.Email != "":
		return Unique{emails, core.FoldEmail(f.Email)}, true
	case f.ExternalID != "":
		return Unique{externalIDs, f.ExternalID}, true
	}
	return u, false
}

// KindOfSet returns the kind of the resources in a set, 0 for an unknown set.
func KindOfSet(name string) Kind {
	kind, _, _ := strings.Cut(name, ":")
	return map[string]Kind{accountSet: Account, "owner-keys": OwnerKey, "users": User, PlanSet: Plan, "keys": Key,
		webhookSet: Webhook, "events": Event, "attempts": Attempt}[kind]
}

// Kind returns the kind of the resource that has a unique value.
func (u Unique) Kind() Kind {
	switch u.Name {
	case names:
		return Account
	case ownerDigests:
		return OwnerKey
	}
	return User
}

// Names are the id and the number of a record, and the sets and unique values that lead to it. A database that checks itself compares
// these names with its records.
type Names struct {
	ID     string
	Number int64 // that the record has; 0 for a kind of the registry
	Sets   []string
	Unique []Unique
}

// NamesOf returns the names of a record, and the resource: a pointer to its type in core.
func NamesOf(kind Kind, value []byte) (Names, any, error) {
	switch kind {
	case Account:
		return accounts.names(value)
	case OwnerKey:
		return ownerKeys.names(value)
	case User:
		return users.names(value)
	case Plan:
		return plans.names(value)
	case Webhook:
		return webhooks.names(value)
	case Event:
		return events.names(value)
	case Attempt:
		return attempts.names(value)
	default:
		return keys.names(value)
	}
}

func (d *description[T]) names(value []byte) (Names, any, error) {
	v, err := record.Decode[T](value)
	if err != nil {
		return Names{}, nil, err
	}
	return Names{d.id(v), d.numberOf(v), of(d.sets, v), of(d.unique, v)}, v, nil
}
