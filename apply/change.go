package apply

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/limitkeeper/limitkeeper/core"
)

// Change is a difference between a file and an account.
type Change struct {
	Action  string   `json:"action"` // create, update or delete
	Kind    string   `json:"kind"`   // account, prices, webhook, plan, user or key
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
		was, is := shown(m.Before, m.After)
		fmt.Fprintf(&b, "%s%s %s → %s", separator, m.Name, was, is)
	}
	return b.String()
}

// maxWhole is the longest text that is always shown whole, in characters.
const maxWhole = 60

// shown returns two JSON texts. If one of them is long, both lack the elements or members that are equal; all others are whole, so that
// the difference is never cut off.
func shown(before, after json.RawMessage) (was, is string) {
	if max(utf8.RuneCount(before), utf8.RuneCount(after)) <= maxWhole {
		return string(before), string(after)
	}
	var lists [2][]json.RawMessage
	if unmarshal(before, &lists[0]) && unmarshal(after, &lists[1]) && lists[0] != nil && lists[1] != nil {
		return withoutEqual(lists[0], lists[1])
	}
	var objects [2]map[string]json.RawMessage
	if unmarshal(before, &objects[0]) && unmarshal(after, &objects[1]) && objects[0] != nil && objects[1] != nil {
		return objectWithout(objects[0], objects[1]), objectWithout(objects[1], objects[0])
	}
	return string(before), string(after)
}

func unmarshal(text json.RawMessage, into any) bool { return json.Unmarshal(text, into) == nil }

// withoutEqual returns two lists with … in place of equal elements: those at both ends, and in lists of one length those at one index.
func withoutEqual(before, after []json.RawMessage) (was, is string) {
	shorter := min(len(before), len(after))
	head, tail := 0, 0
	for head < shorter && bytes.Equal(before[head], after[head]) {
		head++
	}
	for tail < shorter-head && bytes.Equal(before[len(before)-1-tail], after[len(after)-1-tail]) {
		tail++
	}
	list := func(elements []json.RawMessage) string {
		var parts []string
		for i, e := range elements {
			switch {
			case i >= head && i < len(elements)-tail && (len(before) != len(after) || !bytes.Equal(before[i], after[i])):
				parts = append(parts, string(e))
			case len(parts) == 0 || parts[len(parts)-1] != "…":
				parts = append(parts, "…")
			}
		}
		return "[" + strings.Join(parts, ",") + "]"
	}
	return list(before), list(after)
}

// objectWithout returns an object with … in place of the members that are equal in another object.
func objectWithout(of, other map[string]json.RawMessage) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		if value, has := other[name]; !has || !bytes.Equal(of[name], value) {
			parts = append(parts, string(encode(name))+":"+string(of[name]))
		}
	}
	if len(parts) < len(of) {
		parts = append(parts, "…")
	}
	return "{" + strings.Join(parts, ",") + "}"
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
