package dashboard

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// acting makes the signed-in person the actor of the changes of the request. The account's own sign-in has the id sign_in and the name of the account.
func (q *request) acting() {
	p := &q.signedIn.Person
	by := core.Actor{Kind: core.ActorPerson, ID: cmp.Or(p.ID, core.OwnSignIn), Name: cmp.Or(p.Name, q.signedIn.Account.Name), IP: q.s.config.ClientIP(q.r)}
	q.r = q.r.WithContext(core.WithActor(q.r.Context(), by))
}

// auditRow is an entry of the audit log in the list.
type auditRow struct {
	core.AuditEntry
	Who     string
	Href    string // the page of the target, "" for none
	Changes []auditChange
}

// auditChange is a member before and after a change, as short texts; "" for none.
type auditChange struct{ Name, Before, After string }

// maxShownValue is the longest text of a value in the list, in characters. The REST API answers with the whole value.
const maxShownValue = 160

func auditPage(q *request) error {
	f := service.AuditFilter{Action: q.query("action"), Actor: q.query("actor"), Target: q.query("target")}
	var err error
	if f.From, err = dayIn("from", q.query("from")); err != nil {
		return err
	}
	if f.To, err = dayIn("to", q.query("to")); err != nil {
		return err
	}
	if !f.To.IsZero() {
		f.To = f.To.AddDate(0, 0, 1) // the day is included
	}
	entries, pg, err := listed(q, func(p core.Page) ([]core.AuditEntry, int, error) {
		a, err := q.svc.Audit(q.r.Context(), q.account(), f, p)
		return a.Entries, a.Found, err
	})
	if err != nil {
		return err
	}
	rows := make([]auditRow, len(entries))
	for i, e := range entries {
		rows[i] = auditRow{e, actorText(e.Actor), targetPage(e.Target, e.After == nil), changesOf(e.Before, e.After)}
	}
	text := func(name, label, placeholder string) field {
		return field{Name: name, Label: label, Type: "search", Value: q.query(name), Placeholder: placeholder}
	}
	filters := form{Action: href("audit"), Fields: []field{
		text("action", "Action", "key.update, or key"), text("actor", "Who", "Kind, name or id"), text("target", "Of what", "Kind, name or id"),
		{Name: "from", Label: "From", Type: "date", Value: q.query("from")}, {Name: "to", Label: "Until", Type: "date", Value: q.query("to")},
	}}
	return q.render(http.StatusOK, "audit", "Audit log", listView{filters, q.narrow(), rows, pg})
}

// dayIn returns the day in a query parameter, the zero time for an empty one.
func dayIn(name, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.DateOnly, text)
	if err != nil {
		return t, core.Invalid(name, "A day is written like 2030-01-31")
	}
	return t, nil
}

// actorText describes an actor for people.
func actorText(a core.Actor) string {
	switch {
	case a.Kind == core.ActorOwnerKey:
		return "owner’s key " + a.Name
	case a.Kind == core.ActorCommand && a.Name != "":
		return a.Name + " by command " + a.ID
	case a.Kind == core.ActorCommand:
		return "command " + a.ID
	case a.Kind == core.ActorConfig:
		return "configuration"
	case a.Kind == core.ActorSystem:
		return "Limitkeeper"
	}
	return a.Name
}

// targetPage returns the address of the page of a target, "" for none.
func targetPage(t core.AuditTarget, deleted bool) string {
	switch page := map[string]string{"plan": "plans", "user": "users", "key": "keys"}[t.Kind]; {
	case t.Kind == "prices":
		return href("prices")
	case t.Kind == "owner_key":
		return href("owner-keys")
	case page != "" && !deleted:
		return href(page, t.ID)
	}
	return ""
}

// changesOf returns the members that an entry has before or after the change, in their order.
func changesOf(before, after json.RawMessage) (list []auditChange) {
	index := map[string]int{}
	add := func(object json.RawMessage, set func(*auditChange, string)) {
		d := json.NewDecoder(strings.NewReader(string(object)))
		_, _ = d.Token() // {
		for d.More() {
			name, _ := d.Token()
			var value json.RawMessage
			text, ok := name.(string)
			if err := d.Decode(&value); err != nil || !ok {
				return
			}
			i, known := index[text]
			if !known {
				i, index[text] = len(list), len(list)
				list = append(list, auditChange{Name: text})
			}
			set(&list[i], shownValue(value))
		}
	}
	add(before, func(c *auditChange, v string) { c.Before = v })
	add(after, func(c *auditChange, v string) { c.After = v })
	return list
}

// shownValue returns a JSON value for people: a text without quotes, "" for null, and long values cut.
func shownValue(value json.RawMessage) string {
	var text string
	switch {
	case string(value) == "null":
		return ""
	case json.Unmarshal(value, &text) != nil:
		text = string(value)
	}
	if utf8.RuneCountInString(text) <= maxShownValue {
		return text
	}
	return string([]rune(text)[:maxShownValue]) + "…"
}
