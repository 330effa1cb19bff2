package dashboard

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
)

type keyTable struct {
	Keys  []keyRow
	Users bool // show the user of each key
}

type keyRow struct {
	*core.Key
	User     *core.User // nil if the user was deleted meanwhile
	Plan     *core.Plan // the own plan of the key, nil for none
	LastUsed time.Time  // zero if the key was never used
	Now      time.Time
}

// Disabled reports whether the key itself is disabled.
func (r keyRow) Disabled() bool { return r.Status == core.KeyInactive }

// Expired reports whether the key has expired.
func (r keyRow) Expired() bool { return r.ExpiresAt != nil && !r.Now.Before(*r.ExpiresAt) }

// Works reports whether the key is valid: active, not expired, and its user enabled.
func (r keyRow) Works() bool {
	return !r.Disabled() && !r.Expired() && r.User != nil && !r.User.Disabled
}

func keysPage(q *request) error {
	if value := q.query("q"); secrets.HoldsSecret(value) {
		return q.redirectToKey(value)
	}
	keys, pg, err := found(q, q.keyFilter(), q.svc.SearchKeys, q.keys)
	if err != nil {
		return err
	}
	rows, err := q.keyRows(keys)
	if err != nil {
		return err
	}
	return q.renderList("keys", "Keys", keyTable{rows, true}, pg, "Name, id or last four characters",
		field{Name: "status", Label: "Status", Type: "select", Value: q.query("status"), Options: []option{
			{Label: "Any"}, {Value: "active", Label: "Active"}, {Value: "inactive", Label: "Disabled"}}},
		field{Name: "user", Label: "User", Value: q.query("user"), Placeholder: "Id"})
}

// redirectToKey redirects to the page of the key with a value, or else to the list. The value is a
// secret, which must not stay in the address.
func (q *request) redirectToKey(value string) error {
	keys, _, err := q.svc.SearchKeys(q.r.Context(), q.account(), value, core.KeyFilter{}, onlyOne)
	if err != nil {
		return err
	}
	page := "keys?q=" + q.signedIn.Account.PrefixOfNewKeys() + "***"
	if len(keys) > 0 {
		page = "keys/" + keys[0].ID
	}
	return q.redirect(page)
}

// keys returns a page of the keys of the filter. A plan selects the keys that it limits.
func (q *request) keys(ctx context.Context, account string, f core.KeyFilter, p core.Page) ([]*core.Key, int, error) {
	if f.PlanID != nil {
		return q.svc.KeysUnderPlan(ctx, account, *f.PlanID, f, p)
	}
	return q.svc.Keys(ctx, account, f, p)
}

func (q *request) keyFilter() core.KeyFilter {
	f := core.KeyFilter{Status: core.KeyStatus(q.query("status"))}
	if plan := q.query("plan"); plan != "" {
		f.PlanID = &plan
	}
	if user := q.query("user"); user != "" {
		var err error
		if f.UserID, err = strconv.ParseInt(user, 10, 64); err != nil || f.UserID == 0 {
			f.UserID = -1 // matches no user
		}
	}
	return f
}

// keyRows reads the users, the plans and the times of the last requests of keys.
func (q *request) keyRows(keys []*core.Key) ([]keyRow, error) {
	last, err := q.svc.LastRequests(q.r.Context(), q.account(), keys)
	if err != nil {
		return nil, err
	}
	user, plan := cachedLookup(q, q.svc.User), cachedLookup(q, q.svc.Plan)
	rows := make([]keyRow, len(keys))
	for i, k := range keys {
		rows[i] = keyRow{Key: k, LastUsed: last[i].UsedAt, Now: q.svc.Now()}
		if rows[i].User, err = user(k.UserID); err != nil {
			return nil, err
		}
		if rows[i].Plan, err = plan(k.PlanID); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

type keyView struct {
	keyRow
	InForce  *core.Plan // the plan that applies: the own plan, or the plan of the user
	Metadata string
	Disable  form
	Usage    []*usage // of each limit
	Chart    *chart
	History  *historyView
	Omitted  int64 // denied requests that the history omits
}

func keyPage(q *request, k *core.Key) error {
	h, err := newHistory(q, q.svc.KeyHistory, k.ID)
	if err != nil || q.part("history") {
		return q.renderHistory("key", h, err)
	}
	rows, err := q.keyRows([]*core.Key{k})
	if err != nil {
		return err
	}
	u, err := q.svc.KeyUsage(q.r.Context(), q.account(), k.ID)
	if err != nil {
		return err
	}
	c, err := q.chart("Requests with "+k.Name, func(first, last core.Date) ([]core.DayTotals, error) {
		return q.svc.KeyDays(q.r.Context(), q.account(), k.ID, first, last)
	})
	if err != nil {
		return err
	}
	v := keyView{keyRow: rows[0], InForce: u.Plan, Metadata: indented(k.Metadata),
		Disable: keyKind.disableForm(q, k, rows[0].Disabled()), Chart: c, History: h, Usage: usages(u.Limits), Omitted: u.DeniedOmitted}
	return q.render(http.StatusOK, "key", k.Name, v)
}

// Earlier returns the earlier values that still work after regenerations.
func (v keyView) Earlier() (values []core.GraceValue) {
	for _, g := range v.Previous {
		if v.Now.Before(g.Until) {
			values = append(values, g)
		}
	}
	return values
}

// NoScopes reports whether the key has an empty list of scopes: it may do nothing that needs a scope.
func (v keyView) NoScopes() bool {
	r := v.Restrictions
	return r != nil && r.Scopes != nil && len(r.Scopes) == 0
}

var keyKind = &kind[string, core.Key, core.KeyPatch]{
	noun:    "key",
	note:    "A change applies to the next request. The value of the key stays the same.",
	members: &core.KeyMembers,
	first:   map[string]string{"status": "active", "per": "second"},
	special: keyFields,
	place:   placeOfNewKey,
	find:    func(q *request) (*core.Key, error) { return q.svc.Key(q.r.Context(), q.account(), q.r.PathValue("id")) },
	of:      func(k *core.Key) (id, name string, updated time.Time) { return k.ID, k.Name, k.UpdatedAt },
	create:  (*service.Service).CreateKey,
	update:  (*service.Service).UpdateKey,
	toStop:  core.PermitSupport,
	disable: func(disabled bool) core.KeyPatch {
		return core.KeyPatch{Status: new(string(map[bool]core.KeyStatus{true: core.KeyInactive, false: core.KeyActive}[disabled]))}
	},
	remove:  (*service.Service).DeleteKey,
	missing: core.ErrKeyNotFound,
	losses: func(_ *request, k *core.Key) (points []string, refused bool, err error) {
		return []string{
			"The next request with " + k.Hint + " is refused, on every server.",
			"What it used stays in the counter and the history of its user.",
			"It cannot be taken back. To stop it for a while, disable it instead."}, false, nil
	},
	adjust: func(q *request, id string, a service.AdjustmentCall) error {
		_, _, err := q.svc.AdjustKey(q.r.Context(), q.account(), id, a)
		return err
	},
}

var keyFields = slices.Concat([]field{
	{Name: "name", Label: "Name", Required: true, Autofocus: true, Hint: "What the key is for, as in “production”."},
	{Name: "user_id", Label: "User", Required: true, Hint: "The id of the user, as it is on its page."},
	{Name: "plan_id", Label: "Plan", Type: "select", Plans: "The user’s plan",
		Hint: "On the user’s plan it shares one counter with the user’s other keys. On a plan of its own it has its own."},
	{Name: "status", Label: "Status", Type: "radio", Options: []option{
		{"active", "Active", ""}, {"inactive", "Disabled", "Every request with it is refused."}}},
	{Name: "expires_at", Label: "Expires at", Type: "datetime-local", Hint: "In UTC. Empty for never."},
	{Name: "scopes", Label: "Scopes", Type: "textarea", Hint: "What it may do, one name on each line, such as read. Empty for everything."},
	{Name: "allowed_endpoints", Label: "Allowed endpoints", Type: "textarea", Hint: "One on each line, such as GET /v1/items*. Empty for every endpoint."},
	{Name: "allowed_ips", Label: "Allowed addresses", Type: "textarea", Hint: "One address or block on each line, such as 192.0.2.0/24. Empty for every address."},
}, limitFields("Own limits", "For this key alone, inside the plan."), []field{metadataField})

// placeOfNewKey returns the place of the form of a new key: at the user in the query, or at the list.
func placeOfNewKey(q *request) (at newPlace[core.KeyPatch], err error) {
	id := q.query("user")
	if id == "" {
		return newPlace[core.KeyPatch]{back: "keys"}, nil
	}
	u, err := q.user(id)
	if err != nil {
		return at, err
	}
	return newPlace[core.KeyPatch]{query: "?user=" + strconv.FormatInt(u.ID, 10), back: userKind.path(u), text: "A key of " + u.Name + ".",
		given: "user_id", set: func(p *core.KeyPatch) { p.UserID = &u.ID }}, nil
}

// keyGraces are the choices for the old value of a regenerated key.
var keyGraces = []option{
	{"3600", "It stops in an hour", "Both values work until then, and share what is left."},
	{"86400", "It stops in a day", "Both values work until then, and share what is left."},
	{"604800", "It stops in a week", "Both values work until then, and share what is left."},
	{"0", "It stops now", "The next request with it, or with an earlier one, is refused. For a value that someone else has seen."},
}

func keyRegeneration(q *request) (*regeneration, error) {
	k, err := keyKind.find(q)
	if err != nil {
		return nil, err
	}
	return &regeneration{path: "keys/" + k.ID, back: "keys/" + k.ID, what: "key", name: k.Name, hint: k.Hint, graces: keyGraces, first: "86400", longest: service.MaxGrace,
		text: "The key gets a new value in place of " + k.Hint + ". It keeps its id, its plan and what it used. The new value is shown once.",
		do: func(grace time.Duration) (secret string, err error) {
			_, secret, err = q.svc.RegenerateKey(q.r.Context(), q.account(), k.ID, grace)
			return secret, err
		}}, nil
}
