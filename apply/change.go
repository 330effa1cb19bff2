package apply

import (
	"bytes"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/limitkeeper/limitkeeper/core"
)

// Change is a difference between a file and an account.
type Change struct {
	Action  string   `json:"action"` // create, update or delete
	Kind    string   `json:"kind"`   // account, plan, user or key
	Name    string   `json:"name"`
	Email   *string  `json:"email,omitempty"`   // of a user
	User    string   `json:"user,omitempty"`    // the name of the user of a key
	Members []Member `json:"members,omitempty"` // the members that an update changes
}

// Member is a member that changes.
type Member struct {
	Name   string `json:"name"`
	Before any    `json:"before"`
	After  any    `json:"after"`
}

// String returns the change as a line of a diff.
func (c Change) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %q", map[string]string{"create": "+", "update": "~", "delete": "-"}[c.Action], c.Kind, c.Name)
	if c.Email != nil {
		fmt.Fprintf(&b, " (%s)", *c.Email)
	}
	if c.Kind == "key" {
		fmt.Fprintf(&b, " of user %q", c.User)
	}
	for i, m := range c.Members {
		separator := ", "
		if i == 0 {
			separator = ": "
		}
		fmt.Fprintf(&b, "%s%s %s → %s", separator, m.Name, short(m.Before), short(m.After))
	}
	return b.String()
}

// short returns a value as JSON text, shortened to 60 characters.
func short(v any) string {
	const most = 60
	text, err := encode(v)
	if err != nil {
		return "?"
	}
	s := string(text)
	if utf8.RuneCountInString(s) > most {
		s = string([]rune(s)[:most]) + "…"
	}
	return s
}

// value is a member of a resource, as the file would have it.
type value struct {
	name string
	of   any
}

// planValues returns the members of a plan.
func planValues(p *core.Plan) []value {
	limits, features := p.Limits, p.Features
	if limits == nil {
		limits = []core.Limit{}
	}
	if features == nil {
		features = []string{}
	}
	var most *int64
	if p.Limit != core.Unlimited {
		most = &p.Limit
	}
	return []value{{"name", p.Name}, {"description", p.Description}, {"max_requests", most}, {"request_period", p.Period.String()},
		{"limits", limits}, {"rate", p.Rate}, {"is_active", !p.Inactive}, {"features", features}}
}

// userValues returns the members of a user. planName returns the name of a plan.
func userValues(u *core.User, planName func(id string) *string) []value {
	var start *time.Time
	if t := u.Anchors.Start(); !t.IsZero() {
		start = &t
	}
	var external *string
	if u.ExternalID != "" {
		external = &u.ExternalID
	}
	return []value{{"name", u.Name}, {"external_id", external}, {"email", u.Email}, {"plan", planName(u.PlanID)}, {"metadata", u.Metadata},
		{"custom_start", start}, {"is_disabled", u.Disabled}}
}

// keyValues returns the members of a key. The value of the key is shown by its hint.
func keyValues(k *core.Key, planName func(id string) *string) []value {
	return []value{{"name", k.Name}, {"plan", planName(k.PlanID)}, {"status", k.Status}, {"expires_at", k.ExpiresAt},
		{"metadata", k.Metadata}}
}

// members returns the values that differ.
func members(before, after []value) (list []Member) {
	for i := range before {
		if !sameJSON(before[i].of, after[i].of) {
			list = append(list, Member{before[i].name, before[i].of, after[i].of})
		}
	}
	return list
}

func sameJSON(a, b any) bool {
	x, errX := encode(a)
	y, errY := encode(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}
