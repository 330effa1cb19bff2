package apply

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
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

// differences returns the members of two states of a resource that differ, as a file would have them. planName returns the name of a plan.
func differences[R, P any](of *core.Members[R, P], before, after *R, planName func(id string) string) (list []Member) {
	for i := range of.List {
		m := &of.List[i]
		was, is := m.Get(before), m.Get(after)
		if sameJSON(was, is) {
			continue
		}
		name := m.Name
		if name == "plan_id" {
			name = "plan"
			for _, id := range []*any{&was, &is} {
				if *id != nil {
					*id = planName((*id).(string))
				}
			}
		}
		list = append(list, Member{name, was, is})
	}
	return list
}

func sameJSON(a, b any) bool {
	x, errX := encode(a)
	y, errY := encode(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// encode returns a compact JSON text with sorted names.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}
