package dashboard

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// localTime is the format of a datetime-local input.
const localTime = "2006-01-02T15:04:05"

// findMember returns the member with a name, nil for none.
func findMember[R, P any](of *core.Members[R, P], name string) *core.Member[R, P] {
	i := slices.IndexFunc(of.List, func(m core.Member[R, P]) bool { return m.Name == name })
	if i < 0 {
		return nil
	}
	return &of.List[i]
}

// memberText returns the value of a member as its field has it, "" for none. A rate has the fields rate, per and burst.
func memberText[R, P any](of *core.Members[R, P], r *R, name string) string {
	m := findMember(of, name)
	if name == "per" || name == "burst" {
		m = findMember(of, "rate")
	}
	if m == nil {
		return ""
	}
	switch v := m.Get(r).(type) {
	case nil:
		return ""
	case core.Rate:
		return map[string]string{"rate": fmt.Sprint(v.Requests), "per": string(v.Per), "burst": fmt.Sprint(v.Burst)}[name]
	case []string:
		return strings.Join(v, "\n")
	case []core.Limit:
		return limitLines(v)
	case []core.Override:
		return overrideLines(v)
	case json.RawMessage:
		return indented(v)
	case time.Time:
		return v.UTC().Format(localTime)
	default:
		return fmt.Sprint(v)
	}
}

// readMembers reads the fields of a form that are members into a patch, but for some. r is the resource that the form edits, nil for a new one:
// a field that is as memberText has it changes nothing.
func readMembers[R, P any](post url.Values, of *core.Members[R, P], r *R, p *P, except ...string) error {
	for i := range of.List {
		m := &of.List[i]
		if !post.Has(m.Name) || slices.Contains(except, m.Name) {
			continue
		}
		text := trimmed(post.Get(m.Name))
		if m.Type == core.TypeTime || m.Type == core.TypeStart {
			text = withSeconds(text)
		}
		switch {
		case r != nil && m.Type != core.TypeRate && text == trimmed(memberText(of, r, m.Name)):
		case text == "" && m.Nullable:
			m.Set(p, nil)
		default:
			v, err := memberValue(m.Name, m.Type, text, post)
			if err != nil {
				return err
			}
			m.Set(p, v)
		}
	}
	return nil
}

// withSeconds adds the zero seconds that a browser omits to a text in the format localTime.
func withSeconds(text string) string {
	if len(text) == len(localTime)-len(":05") {
		text += ":00"
	}
	return text
}

// parseLocalTime parses the text of a datetime-local input.
func parseLocalTime(name, text string) (time.Time, error) {
	t, err := time.Parse(localTime, withSeconds(text))
	if err != nil {
		return t, core.Invalid(name, "Must be a date and a time")
	}
	return t, nil
}

func trimmed(text string) string {
	return strings.TrimSpace(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text))
}

// memberValue parses the text of a field. post has the other fields of a rate.
func memberValue(name string, typ core.MemberType, text string, post url.Values) (v any, err error) {
	switch typ {
	case core.TypeText:
		return text, nil
	case core.TypeTexts:
		return lines(text), nil
	case core.TypeFlag:
		if text != "true" && text != "false" {
			return nil, core.Invalid(name, "Must be true or false")
		}
		return text == "true", nil
	case core.TypeObject:
		return json.RawMessage(text), nil
	case core.TypeLimits:
		return parseLimits(text)
	case core.TypeOverrides:
		return parseOverrides(text)
	case core.TypeRate:
		return parseRate(post)
	case core.TypeWhole:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, core.Invalid(name, "Must be a whole number")
		}
		return n, nil
	case core.TypeTime, core.TypeStart:
		return parseLocalTime(name, text)
	}
	return nil, core.Invalid(name, "No form has this member")
}

// withOthers returns the fields, and a field for each member that has none, but for some.
func withOthers[R, P any](fields []field, of *core.Members[R, P], except ...string) []field {
	fields = slices.Clone(fields)
	for i := range of.List {
		m := &of.List[i]
		if slices.Contains(except, m.Name) || slices.ContainsFunc(fields, func(f field) bool { return f.Name == m.Name }) {
			continue
		}
		text := strings.ReplaceAll(m.Name, "_", " ")
		f := field{Name: m.Name, Label: strings.ToUpper(text[:1]) + text[1:], Required: m.Required}
		switch m.Type {
		case core.TypeTexts, core.TypeObject, core.TypeLimits, core.TypeOverrides:
			f.Type = "textarea"
		case core.TypeWhole:
			f.Type = "number"
		case core.TypeTime, core.TypeStart:
			f.Type = "datetime-local"
		case core.TypeFlag:
			f.Type, f.Options = "radio", []option{{"true", "Yes", ""}, {"false", "No", ""}}
		}
		fields = append(fields, f)
	}
	return fields
}

// lines returns the lines that are not empty.
func lines(text string) (list []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			list = append(list, line)
		}
	}
	return list
}
