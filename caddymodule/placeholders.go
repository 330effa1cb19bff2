package caddymodule

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/caddyserver/caddy/v2"
)

// placeholderPrefix is the prefix of the placeholders of the gateway, see [requestState.placeholder]. A placeholder is empty if the decision
// has no such value.
const placeholderPrefix = "http.limitkeeper."

// userPlaceholder is the placeholder that Caddy's access log shows as user_id.
const userPlaceholder = "http.auth.user.id"

// stateVar is the request variable with the *requestState of the last gateway.
const stateVar = "limitkeeper_state"

// setPlaceholders sets the placeholders for the next handlers and the access log. If a request
// passes several gateways, the last gateway sets the values; [userPlaceholder] is of the last gateway that found a key.
func setPlaceholders(repl *caddy.Replacer, vars map[string]any, v *requestState) {
	mapped := vars[stateVar] != nil
	vars[stateVar] = v
	if !mapped {
		repl.Map(func(key string) (any, bool) {
			name, ok := strings.CutPrefix(key, placeholderPrefix)
			if !ok {
				return nil, false
			}
			return vars[stateVar].(*requestState).placeholder(name)
		})
	}
	if v.decision.Key != nil { // else the authentication handler has set it
		repl.Set(userPlaceholder, strconv.FormatInt(v.decision.Key.UserID, 10))
	}
}

// placeholder returns the value of a placeholder, and false for an unknown name.
func (v *requestState) placeholder(name string) (any, bool) {
	d := &v.decision
	limited := d.HasUsage() && !d.Limit.Unlimited()
	switch name {
	case "account":
		return v.account, true
	case "outcome":
		return v.outcome, true
	case "user_id":
		return textIf(d.User != nil, func() string { return strconv.FormatInt(d.User.ID, 10) })
	case "user_name":
		return textIf(d.User != nil, func() string { return d.User.Name })
	case "key_id":
		return textIf(d.Key != nil, func() string { return d.Key.ID })
	case "key_name":
		return textIf(d.Key != nil, func() string { return d.Key.Name })
	case "repeated":
		return textIf(d.HasUsage(), func() string { return strconv.FormatBool(d.Repeated) })
	case "scopes": // of the key, with spaces between them; * for a key without scopes
		return textIf(d.Key != nil, func() string {
			if r := d.Key.Restrictions; r != nil && r.Scopes != nil {
				return strings.Join(r.Scopes, " ")
			}
			return "*"
		})
	case "plan_id":
		return textIf(d.HasUsage(), func() string { return d.Plan.ID })
	case "plan_name":
		return textIf(d.HasUsage(), func() string { return d.Plan.Name })
	case "limit": // that decided
		return textIf(limited, func() string { return strconv.FormatInt(d.Limit.Max, 10) })
	case "used": // in the window of the limit, after the decision
		return textIf(d.HasUsage(), func() string { return strconv.FormatInt(d.Usage.Used, 10) })
	case "remaining":
		return textIf(limited, func() string { return strconv.FormatInt(d.Remaining(), 10) })
	case "reset": // the end of the window
		return textIf(d.HasUsage() && d.Usage.Window.Ends(), func() string { return d.Usage.Window.End.UTC().Format(time.RFC3339) })
	}
	if feature, ok := strings.CutPrefix(name, "feature."); ok { // of the plan
		return textIf(slices.Contains(d.Features, feature), func() string { return "true" })
	}
	if member, ok := strings.CutPrefix(name, "metadata."); ok { // of the key, else of the user
		return textIf(d.User != nil, func() string {
			if d.Key != nil {
				if value := scalar(d.Key.Metadata, member); value != "" {
					return value
				}
			}
			return scalar(d.User.Metadata, member)
		})
	}
	return nil, false
}

// scalar returns a text, a number or a boolean of an object, "" for none and for another value.
func scalar(object json.RawMessage, member string) string {
	if len(object) == 0 {
		return ""
	}
	var members map[string]json.RawMessage
	_ = json.Unmarshal(object, &members) // it is an object
	value := members[member]
	switch {
	case len(value) == 0, value[0] == '{', value[0] == '[', value[0] == 'n':
		return ""
	case value[0] != '"':
		return string(value)
	}
	var text string
	_ = json.Unmarshal(value, &text)
	if strings.ContainsFunc(text, unicode.IsControl) { // no header field can have it
		return ""
	}
	return text
}

// textIf returns a value of a decision that has it, else "".
func textIf(has bool, value func() string) (any, bool) {
	if !has {
		return "", true
	}
	return value(), true
}
