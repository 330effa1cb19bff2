package caddymodule

import (
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/limitkeeper/limitkeeper/core"
)

// placeholderPrefix begins the placeholders of the gateway:
//
//	{http.limitkeeper.account}    the account that the gateway names
//	{http.limitkeeper.outcome}    how the decision came out
//	{http.limitkeeper.repeated}   whether it is that of an earlier request with the same id
//	{http.limitkeeper.user_id}    and user_name: the user of the key
//	{http.limitkeeper.key_id}     and key_name: the key
//	{http.limitkeeper.plan_id}    and plan_name: the plan that was drawn on
//	{http.limitkeeper.limit}      of the plan, for its period
//	{http.limitkeeper.used}       in the period, with this request
//	{http.limitkeeper.remaining}  in the period
//	{http.limitkeeper.reset}      when the next period begins, RFC 3339
//
// What a decision does not know is empty.
const placeholderPrefix = "http.limitkeeper."

// userPlaceholder is where Caddy's access log looks for who made the request.
const userPlaceholder = "http.auth.user.id"

// stateVar is the variable of a request that holds the verdict of the gateway that
// it passed last.
const stateVar = "limitkeeper_verdict"

// setPlaceholders makes what was decided known to the handlers that follow and to
// the access log. Where a request passes several gateways, the last one is heard.
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
	if v.decision.Key != nil {
		repl.Set(userPlaceholder, (*userIDText)(v))
	}
}

// userIDText is who made a request. Its text is the id of the user, made when it is asked for.
type userIDText requestState

// String implements [fmt.Stringer], which Caddy asks for values of placeholders.
func (c *userIDText) String() string { return strconv.FormatInt(c.decision.Key.UserID, 10) }

// placeholder returns the value of the placeholder with the name.
func (v *requestState) placeholder(name string) (any, bool) {
	switch name {
	case "account":
		return v.account, true
	case "outcome":
		return v.outcome, true
	case "user_id", "user_name":
		return userPlaceholderValue(v.decision.User, name), true
	case "key_id", "key_name":
		return keyPlaceholderValue(v.decision.Key, name), true
	case "repeated", "plan_id", "plan_name", "limit", "used", "remaining", "reset":
		return usagePlaceholderValue(&v.decision, name), true
	}
	return nil, false
}

func userPlaceholderValue(u *core.User, name string) any {
	switch {
	case u == nil:
		return ""
	case name == "user_id":
		return strconv.FormatInt(u.ID, 10)
	}
	return u.Name
}

func keyPlaceholderValue(k *core.Key, name string) any {
	switch {
	case k == nil:
		return ""
	case name == "key_id":
		return k.ID
	}
	return k.Name
}

func usagePlaceholderValue(d *core.Decision, name string) any {
	if !d.HasUsage() {
		return ""
	}
	switch name {
	case "repeated":
		return strconv.FormatBool(d.Repeated)
	case "plan_id":
		return d.Plan.ID
	case "plan_name":
		return d.Plan.Name
	case "limit":
		return strconv.FormatInt(d.Plan.Limit, 10)
	case "used":
		return strconv.FormatInt(d.Usage.Used, 10)
	case "remaining":
		return strconv.FormatInt(d.Remaining(), 10)
	default:
		return d.Usage.Window.End.UTC().Format(time.RFC3339)
	}
}
