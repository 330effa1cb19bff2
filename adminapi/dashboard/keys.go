package dashboard

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

type keysView struct {
	Filters form
	Narrow  bool // a filter is set, or it is not the first page
	Table   keyTable
	Pager   pager
}

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
	if value := q.query("q"); core.HoldsSecret(value) {
		return q.redirectToKey(value)
	}
	status, err := q.filtersExist()
	if err != nil {
		return err
	}
	keys, pg, err := q.keys()
	if err != nil {
		return err
	}
	rows, err := q.keyRows(keys)
	if err != nil {
		return err
	}
	plans, err := q.planOptions("All plans", q.query("plan"), true)
	if err != nil {
		return err
	}
	return q.render(status, "keys", "Keys", keysView{Pager: pg, Narrow: q.narrow(), Table: keyTable{rows, true},
		Filters: form{Action: href("keys"), Fields: []field{
			{Name: "q", Label: "Search", Type: "search", Value: q.query("q"), Placeholder: "Name, id or last four characters"},
			{Name: "plan", Label: "Plan", Type: "select", Value: q.query("plan"), Options: plans},
			{Name: "status", Label: "Status", Type: "select", Value: q.query("status"), Options: []option{
				{Label: "Any"}, {Value: "active", Label: "Active"}, {Value: "inactive", Label: "Disabled"}}},
			{Name: "user", Label: "User", Value: q.query("user"), Placeholder: "Id"},
		}}})
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

// keys returns the requested page of keys. The total is unknown for a search.
func (q *request) keys() ([]*core.Key, pager, error) {
	f := q.keyFilter()
	if text := q.query("q"); text != "" {
		p := q.page()
		keys, more, err := q.svc.SearchKeys(q.r.Context(), q.account(), text, f, p)
		return keys, q.pager(p, len(keys), -1, more), err
	}
	return listed(q, func(p core.Page) ([]*core.Key, int, error) {
		if f.PlanID != nil {
			return q.svc.KeysUnderPlan(q.r.Context(), q.account(), *f.PlanID, f, p)
		}
		return q.svc.Keys(q.r.Context(), q.account(), f, p)
	})
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

// keyRows reads the users, the plans and the last-used times of keys.
func (q *request) keyRows(keys []*core.Key) ([]keyRow, error) {
	used, err := q.svc.LastUsed(q.r.Context(), q.account(), keys)
	if err != nil {
		return nil, err
	}
	user, plan := cachedLookup(q, q.svc.User), cachedLookup(q, q.svc.Plan)
	rows := make([]keyRow, len(keys))
	for i, k := range keys {
		rows[i] = keyRow{Key: k, LastUsed: used[i], Now: q.svc.Now()}
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
	return q.render(http.StatusOK, "key", k.Name, keyView{keyRow: rows[0], InForce: u.Plan, Metadata: indented(k.Metadata),
		Disable: q.disableForm("keys/"+k.ID, rows[0].Disabled()), Usage: newUsages(u.Limits), Chart: c, History: h, Omitted: u.DeniedOmitted})
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

// keyEditor has no create: a new key has a value, which createKey shows.
var keyEditor = &editor[string, core.Key, core.KeyPatch]{
	noun:    "key",
	note:    "A change applies to the next request. The value of the key stays the same.",
	members: &core.KeyMembers,
	first:   map[string]string{"status": "active"},
	special: (*request).keyFields,
	of:      func(k *core.Key) (id, name string, updated time.Time) { return k.ID, k.Name, k.UpdatedAt },
	update:  (*core.Service).UpdateKey,
}

func (q *request) keyFields(value func(string) string) ([]field, error) {
	plans, err := q.planOptions("The user’s plan", value("plan_id"), false)
	return []field{
		{Name: "name", Label: "Name", Value: value("name"), Required: true, Autofocus: true, Hint: "What the key is for, as in “production”."},
		{Name: "user_id", Label: "User", Value: value("user_id"), Required: true, Hint: "The id of the user, as it is on its page."},
		{Name: "plan_id", Label: "Plan", Type: "select", Value: value("plan_id"), Options: plans,
			Hint: "On the user’s plan it shares one counter with the user’s other keys. On a plan of its own it has its own."},
		{Name: "status", Label: "Status", Type: "radio", Value: value("status"), Options: []option{
			{"active", "Active", ""}, {"inactive", "Disabled", "Every request with it is refused."}}},
		{Name: "expires_at", Label: "Expires at", Type: "datetime-local", Value: value("expires_at"), Hint: "In UTC. Empty for never."},
		metadataField(value),
	}, err
}

// newKeyForm returns the form of a new key: of the user in the query, or of one that is filled in.
func (q *request) newKeyForm() (u *core.User, show formPage, err error) {
	path, back, text := "keys", "keys", ""
	if id := q.query("user"); id != "" {
		if u, err = q.user(id); err != nil {
			return nil, nil, err
		}
		path, back, text = "keys?user="+strconv.FormatInt(u.ID, 10), userPath(u.ID), "A key of "+u.Name+"."
	}
	return u, func(status int, value func(string) string, fault error) error {
		fields, err := keyEditor.fields(q, value)
		if err != nil {
			return err
		}
		if u != nil {
			fields = slices.DeleteFunc(fields, func(f field) bool { return f.Name == "user_id" })
		}
		return q.showForm(status, "New key", formView{Form: q.form(path, "Create key", back, fields, fault), Text: text})
	}, nil
}

func newKeyPage(q *request) error {
	_, show, err := q.newKeyForm()
	if err != nil {
		return err
	}
	return show(http.StatusOK, keyEditor.firstValue, nil)
}

func createKey(q *request) error {
	u, show, err := q.newKeyForm()
	if err != nil {
		return err
	}
	p, err := keyEditor.patch(q, nil)
	if u != nil {
		p.UserID = &u.ID
	}
	var k *core.Key
	var secret string
	if err == nil {
		k, secret, err = q.svc.CreateKey(q.r.Context(), q.account(), p)
	}
	return q.finish(referenceError(&core.KeyMembers, err), show, func() error {
		return q.showSecret(newSecret{What: "key", Name: k.Name, Secret: secret, Back: href("keys", k.ID)})
	})
}

func disableKey(q *request, k *core.Key) error {
	return q.disable("keys/"+k.ID, func(disabled bool) error {
		status := core.KeyActive
		if disabled {
			status = core.KeyInactive
		}
		_, err := q.svc.UpdateKey(q.r.Context(), q.account(), k.ID, core.KeyPatch{Status: new(string(status))})
		return err
	})
}

// keyGraces are the choices for the old value of a regenerated key.
var keyGraces = []option{
	{"3600", "It stops in an hour", "Both values work until then, and share what is left."},
	{"86400", "It stops in a day", "Both values work until then, and share what is left."},
	{"604800", "It stops in a week", "Both values work until then, and share what is left."},
	{"0", "It stops now", "The next request with it, or with an earlier one, is refused. For a value that someone else has seen."},
}

func regenerateKeyPage(q *request, k *core.Key) error {
	return q.regenerateKeyForm(k)(http.StatusOK, func(string) string { return "86400" }, nil)
}

func (q *request) regenerateKeyForm(k *core.Key) formPage {
	return func(status int, value func(string) string, fault error) error {
		f := q.form("keys/"+k.ID+"/regenerate", "Regenerate", "keys/"+k.ID, []field{
			{Name: "grace", Label: "Expire the old key", Type: "radio", Value: value("grace"), Options: keyGraces}}, fault)
		return q.showForm(status, "Regenerate “"+k.Name+"”", formView{Form: f,
			Text: "The key gets a new value in place of " + k.Hint + ". It keeps its id, its plan and what it used. The new value is shown once."})
	}
}

func regenerateKey(q *request, k *core.Key) error {
	grace, say, err := q.grace(k.Hint, core.MaxGrace)
	if err != nil {
		return err
	}
	_, secret, err := q.svc.RegenerateKey(q.r.Context(), q.account(), k.ID, grace)
	return q.finish(err, q.regenerateKeyForm(k), func() error {
		return q.showSecret(newSecret{What: "key", Name: k.Name, Secret: secret, Say: say, Back: href("keys", k.ID)})
	})
}

func deleteKeyPage(q *request, k *core.Key) error {
	f := q.deleteForm("keys/"+k.ID, "Delete key", nil)
	return q.showForm(http.StatusOK, "Delete “"+k.Name+"”?", formView{Form: f, Points: []string{
		"The next request with " + k.Hint + " is refused, on every server.",
		"What it used stays in the counter and the history of its user.",
		"It cannot be taken back. To stop it for a while, disable it instead."}})
}

func deleteKey(q *request, k *core.Key) error {
	return q.finishDelete(q.svc.DeleteKey(q.r.Context(), q.account(), k.ID), core.ErrKeyNotFound, "keys")
}
