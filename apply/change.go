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
	Kind    string   `json:"kind"`   // account, prices, plan, user or key
	Name    string   `json:"name"`
	Email   *string  `json:"email,omitempty"`   // of a user
	User    string   `json:"user,omitempty"`    // the name of the user of a key
	Members []Member `json:"members,omitempty"` // the members that an update changes
}

// Member is a member that changes.
type Member struct {
	Name   string          `json:"name"`
	Before json.RawMessage `json:"before"`
	After  json.RawMessage `json:"after"`
}

// newMember returns a member with its values. JSON keeps a number of any size.
func newMember(name string, before, after any) Member {
	return Member{name, encode(before), encode(after)}
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

// short returns a JSON text, shortened to 60 characters.
func short(text json.RawMessage) string {
	const most = 60
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
		one := newMember(m.Name, was, is)
		if bytes.Equal(one.Before, one.After) {
			continue
		}
		if m.Name == "plan_id" {
			for _, id := range []*any{&was, &is} {
				if *id != nil {
					*id = planName((*id).(string))
				}
			}
			one = newMember("plan", was, is)
		}
		list = append(list, one)
	}
	return list
}

// encode returns a value of a resource as a compact JSON text.
func encode(v any) json.RawMessage {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // what core has accepted can be encoded
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
