package core

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// Auditing collects the audit entries of one transaction. A store calls the method of each kind of resource with every changed resource of that
// kind, before and after the transaction: nil for none. A resource that has not changed, or only in what the audit log does not show, leaves no entry.
type Auditing struct {
	acting
	account string
	entries []AuditEntry
	deleted map[string]int // by id of a deleted user: the number of its deleted keys
	keys    []*Key         // deleted keys
}

// NewAuditing returns the Auditing of a transaction, nil if the changes of the context leave no entries. If account is "", the methods take the account
// from the changed resource.
func NewAuditing(ctx context.Context, account string) *Auditing {
	a := actingIn(ctx)
	if a.at.IsZero() {
		return nil
	}
	return &Auditing{acting: a, account: account, deleted: map[string]int{}}
}

// The kinds of targets, in the order of the entries of one transaction.
var auditKinds = []string{"account", "owner_key", "sign_in", "person", "plan", "prices", "user", "key", "webhook"}

// Entries returns the account, and the entries without numbers, sorted by the kind and then the id of their targets.
func (a *Auditing) Entries() (account string, list []AuditEntry) {
	if a == nil {
		return "", nil
	}
	a.deletedKeys()
	for i := range a.entries {
		e := &a.entries[i]
		if n := a.deleted[e.Target.ID]; n > 0 && e.Action == "user.delete" {
			e.Before = append(slices.Clip(e.Before[:len(e.Before)-1]), `,"keys":`+strconv.Itoa(n)+"}"...)
		}
	}
	slices.SortStableFunc(a.entries, func(x, y AuditEntry) int {
		return cmp.Or(cmp.Compare(slices.Index(auditKinds, x.Target.Kind), slices.Index(auditKinds, y.Target.Kind)),
			cmp.Compare(len(x.Target.ID), len(y.Target.ID)), cmp.Compare(x.Target.ID, y.Target.ID))
	})
	if a.bulk != "" && len(a.entries) > 0 {
		a.entries = []AuditEntry{a.summary()}
	}
	return a.account, a.entries
}

// maxDeletedKeys is how many deleted keys of one user a transaction enters one by one. A user may have 1,000,000 keys, which several transactions delete:
// an entry for each key would drop all other entries.
const maxDeletedKeys = 100

// deletedKeys adds the entries of the deleted keys, except keys of deleted users. More than maxDeletedKeys keys of one user get one entry with
// their number.
func (a *Auditing) deletedKeys() {
	numbers, told := map[int64]int{}, map[string]bool{}
	for _, k := range a.keys {
		numbers[k.UserID]++
	}
	for _, k := range a.keys {
		user := strconv.FormatInt(k.UserID, 10)
		_, too := a.deleted[user]
		switch n := numbers[k.UserID]; {
		case too:
			a.deleted[user]++
		case n <= maxDeletedKeys:
			a.add("key", k.ID, k.Name, auditKey(k), nil)
		case !told[user]:
			told[user] = true
			a.entries = append(a.entries, a.entry("key.delete", AuditTarget{Kind: "user", ID: user}, auditView{}.add("keys", n), nil))
		}
	}
}

// summary returns one entry in place of all.
func (a *Auditing) summary() AuditEntry {
	numbers := map[string]int{}
	for _, e := range a.entries {
		numbers[e.Action]++
	}
	var v auditView
	for _, kind := range auditKinds {
		for _, verb := range []string{"create", "update", "delete"} {
			if n := numbers[kind+"."+verb]; n > 0 {
				v = v.add(kind+"."+verb, n)
			}
		}
	}
	return a.entry(a.bulk, AuditTarget{Kind: "account", ID: a.account}, nil, v)
}

func (a *Auditing) entry(action string, of AuditTarget, before, after auditView) AuditEntry {
	e := AuditEntry{At: a.at, Actor: a.Actor, IP: a.IP, Action: action, Target: of}
	e.Actor.IP = ""
	if before != nil {
		e.Before = before.object()
	}
	if after != nil {
		e.After = after.object()
	}
	return e
}

// add adds the entry of a resource. A nil view stands for no resource.
func (a *Auditing) add(kind, id, name string, before, after auditView) {
	verb := "update"
	switch {
	case before == nil && after == nil:
		return
	case before == nil:
		verb = "create"
	case after == nil:
		verb = "delete"
	default:
		if before, after = after.changedFrom(before); len(after) == 0 {
			return
		}
	}
	a.entries = append(a.entries, a.entry(kind+"."+verb, AuditTarget{kind, id, name}, before, after))
}

// Account adds the change of an account. The changes during an import leave no entry; the end of the import leaves account.import.
func (a *Auditing) Account(before, after *Account) {
	is := cmp.Or(after, before)
	a.account = is.ID
	was, now := auditAccount(before), auditAccount(after)
	if was != nil && now != nil && a.Actor.Kind != ActorSystem { // Limitkeeper itself writes each hour of the feed: only a rewind has another actor
		was, now = was.add("usage_feed", auditUsageFeed(before)), now.add("usage_feed", auditUsageFeed(after))
	}
	a.add("account", is.ID, is.Name, was, now)
	if before != nil && before.Incomplete() && !is.Incomplete() {
		e := &a.entries[len(a.entries)-1]
		e.Action, e.After = "account.import", auditFields(is.Import, "complete", "run").object()
	}
}

func auditAccount(ac *Account) auditView {
	if ac == nil || ac.Incomplete() {
		return nil
	}
	return auditFields(ac, "meters", "own_meters", "import", "usage_feed") // meters follow from plans, keys and users
}

// auditUsageFeed returns the next hour of a feed, nil before the first one.
func auditUsageFeed(ac *Account) any {
	if ac.UsageFeed.Next == 0 {
		return nil
	}
	return map[string]Date{"next_hour": ac.UsageFeed.Next}
}

// OwnerKey adds the change of an owner's key. The use of the key leaves no entry.
func (a *Auditing) OwnerKey(before, after *OwnerKey) {
	is := cmp.Or(after, before)
	a.account = is.AccountID
	a.add("owner_key", is.ID, is.Name, auditOwnerKey(before), auditOwnerKey(after))
	if before != nil && after != nil && before.RevokedAt == nil && after.RevokedAt != nil {
		a.entries[len(a.entries)-1].Action = "owner_key.revoke"
	}
}

func auditOwnerKey(k *OwnerKey) auditView {
	if k == nil {
		return nil
	}
	return auditFields(k, "last_used_at")
}

// Access adds a change of the ways to sign in: another password, a new link, or the end of all sessions. Signing in leaves no entry.
func (a *Auditing) Access(before, after *Access) {
	was, is := OrZero(before), OrZero(after)
	isNew := func(l SignInLink) bool {
		return !slices.ContainsFunc(was.Links, func(m SignInLink) bool { return m.Digest == l.Digest })
	}
	a.people(&was, &is)
	target := AuditTarget{Kind: "sign_in"}
	if is.Password != was.Password {
		a.entries = append(a.entries, a.entry("sign_in.password", target, auditView{}.add("has_password", was.Password != ""), auditView{}.add("has_password", is.Password != "")))
	}
	if i := slices.IndexFunc(is.Links, isNew); i >= 0 {
		a.entries = append(a.entries, a.entry("sign_in.link", target, nil, auditView{}.add("expires_at", is.Links[i].ExpiresAt)))
	}
	a.endedSessions(&was, &is)
}

// Plan adds the change of a plan.
func (a *Auditing) Plan(before, after *Plan) {
	is := cmp.Or(after, before)
	a.add("plan", is.ID, is.Name, auditMembers(&PlanMembers, before), auditMembers(&PlanMembers, after))
}

// Prices adds a change of the prices. The entry has the rules from the first to the last one that differs. A whole list may have 64 KiB: with one change a
// day, whole lists would exceed MaxAuditBytes within AuditRetention.
func (a *Auditing) Prices(before, after *Prices) {
	was, is := OrZero(before).Rules, OrZero(after).Rules
	same := func(x, y PriceRule) bool { return auditJSON(x) == auditJSON(y) }
	for len(was) > 0 && len(is) > 0 && same(was[0], is[0]) {
		was, is = was[1:], is[1:]
	}
	for len(was) > 0 && len(is) > 0 && same(was[len(was)-1], is[len(is)-1]) {
		was, is = was[:len(was)-1], is[:len(is)-1]
	}
	view := func(rules []PriceRule) auditView { return auditView{}.add("rules", append([]PriceRule{}, rules...)) }
	a.add("prices", "", "", view(was), view(is))
}

// User adds the change of a user. The entry of a deleted user has the number of its deleted keys, which leave no entries.
func (a *Auditing) User(before, after *User) {
	is := cmp.Or(after, before)
	id := strconv.FormatInt(is.ID, 10)
	if after == nil {
		a.deleted[id] = 0
	}
	a.add("user", id, is.Name, auditMembers(&UserMembers, before), auditMembers(&UserMembers, after))
}

// Key adds the change of a key. The entry of a key with another value has the action key.regenerate.
func (a *Auditing) Key(before, after *Key) {
	if after == nil {
		a.keys = append(a.keys, before)
		return
	}
	was, is := auditKey(before), auditKey(after)
	if before == nil || before.Digest == after.Digest {
		a.add("key", after.ID, after.Name, was, is)
		return
	}
	is = is.add("regenerated", true)
	if n := len(after.Previous); n > 0 && after.Previous[n-1].Digest == before.Digest {
		is = is.add("earlier_value_until", after.Previous[n-1].Until)
	}
	a.add("key", after.ID, after.Name, was, is)
	a.entries[len(a.entries)-1].Action = "key.regenerate"
}

func auditKey(k *Key) auditView {
	if k == nil {
		return nil
	}
	return auditMembers(&KeyMembers, k).add("hint", k.Hint)
}

// Webhook adds the change of a webhook. The entry of a webhook with another secret has the action webhook.rotate.
func (a *Auditing) Webhook(before, after *Webhook) {
	view := func(w *Webhook) auditView {
		v := auditMembers(&WebhookMembers, w)
		if w != nil && w.DisabledReason != "" {
			v = v.add("disabled_reason", w.DisabledReason)
		}
		return v
	}
	is, was := cmp.Or(after, before), view(before)
	now := view(after)
	rotated := before != nil && after != nil && len(after.Secrets) > 0 && !slices.Contains(before.Secrets, after.Secrets[0])
	if rotated {
		now = now.add("rotated", true)
	}
	a.add("webhook", is.ID, "", was, now)
	if rotated {
		a.entries[len(a.entries)-1].Action = "webhook.rotate"
	}
}

// Adjusted adds the adjustment of a request. It changes no resource: the service appends the entry itself. requestID is that of the caller, "" for none.
func (a *Auditing) Adjusted(c *Consumption, requestID string) {
	of := AuditTarget{Kind: "key", ID: c.KeyID}
	if c.KeyID == "" {
		of = AuditTarget{Kind: "user", ID: strconv.FormatInt(c.UserID, 10)}
	}
	v := auditView{}.add("meter", c.Adjustment.Meter)
	if c.Adjustment.Set {
		v = v.add("set", c.Adjustment.Value).add("period", c.Adjustment.Period.String())
	} else {
		v = v.add("delta", c.Adjustment.Value)
	}
	if v = v.add("reason", c.Adjustment.Reason); c.OwnOnly {
		v = v.add("own", true)
	}
	if requestID != "" {
		v = v.add("request_id", secrets.MaskSecrets(requestID))
	}
	a.entries = append(a.entries, a.entry("usage.adjust", of, nil, v))
}
