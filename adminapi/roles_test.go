package adminapi_test

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
)

// The roles that may use an operation, in the words of the documentation.
const (
	validates = "validator editor owner"
	seesHold  = "validator viewer support editor owner"
	reads     = "viewer support editor owner"
	supports  = "support editor owner"
	edits     = "editor owner"
)

// rolesOf says who may use each operation below /functions/v1 that needs a key.
var rolesOf = map[string]string{
	"POST /validate": validates, "DELETE /holds/{id}": validates, "POST /holds/{id}/settle": validates,
	"GET /holds/{id}": seesHold,

	"GET /keys": reads, "GET /keys/{id}": reads, "GET /keys/{id}/usage": reads, "GET /keys/{id}/usage/daily": reads, "GET /keys/{id}/usage/hourly": reads,
	"GET /keys/{id}/requests": reads,
	"GET /plans":              reads, "GET /plans/{id}": reads, "GET /plans/{id}/usage": reads, "GET /plans/{id}/usage/daily": reads, "GET /plans/{id}/usage/hourly": reads,
	"GET /plans/{id}/users": reads, "GET /plans/{id}/keys": reads,
	"GET /users": reads, "GET /users/{id}": reads, "GET /users/{id}/usage": reads, "GET /users/{id}/usage/daily": reads, "GET /users/{id}/usage/hourly": reads,
	"GET /users/{id}/keys": reads, "GET /users/{id}/requests": reads,
	"GET /prices": reads, "POST /prices/quote": reads, "GET /search": reads, "POST /search": reads, "GET /thresholds": reads, "GET /requests": reads, "GET /usage": reads, "GET /usage/feed": reads, "GET /audit": reads,
	"GET /webhooks": reads, "GET /webhooks/{id}": reads, "GET /webhooks/{id}/deliveries": reads,

	"POST /keys/{id}/usage/adjust": supports, "POST /users/{id}/usage/adjust": supports,
	"PUT /keys/{id}": supports, // a body that does more than disabling it: see TestSupportDisablesKeys

	"POST /keys": edits, "DELETE /keys/{id}": edits, "POST /keys/{id}/regenerate": edits,
	"POST /plans": edits, "PUT /plans/{id}": edits, "DELETE /plans/{id}": edits, "PUT /prices": edits, "PUT /usage/feed": edits,
	"POST /webhooks": edits, "PUT /webhooks/{id}": edits, "DELETE /webhooks/{id}": edits, "POST /webhooks/{id}/rotate": edits, "POST /webhooks/{id}/test": edits,
	"POST /users": edits, "PUT /users/{id}": edits, "DELETE /users/{id}": edits, "POST /users/{id}/keys": edits,
}

// ownerKey makes an owner's key of the account acme with a role.
func (a *api) ownerKey(role core.Role) string {
	a.t.Helper()
	ctx := context.Background()
	acct, err := a.svc.AccountByName(ctx, "acme")
	if err != nil {
		a.t.Fatal(err)
	}
	_, secret, err := a.svc.CreateOwnerKey(ctx, acct.ID, core.OwnerKeySpec{Name: string(role), Role: role})
	if err != nil {
		a.t.Fatal(err)
	}
	return secret
}

// An owner's key may use exactly the operations of its role. A refusal says which role the key has and which it needs.
func TestRoles(t *testing.T) {
	a := newAPI(t)
	user, plan := a.user("First"), a.plan(100)
	key, _ := a.key(user, plan)
	ids := map[string]string{"keys": key, "users": user, "plans": plan, "holds": "hold_1_AAAAAAAAAAAAAAAAAAAAAAAA", "webhooks": "wh_AAAAAAAAAAAAAAAAAAAA"}
	left := operations(t)
	for _, role := range core.KeyRoles() {
		b := a.as(a.ownerKey(role))
		for op, roles := range rolesOf {
			method, path, _ := strings.Cut(op, " ")
			delete(left, method+" "+prefix+path)
			may := slices.Contains(strings.Fields(roles), string(role))
			id := ids[strings.Split(path, "/")[1]]
			if method == http.MethodDelete {
				id = "99" // missing: the other operations need the resources
			}
			target := prefix + strings.Replace(path, "{id}", id, 1)
			var body any
			switch {
			case op == "PUT /keys/{id}":
				body = object{"status": "inactive"}
			case method == http.MethodPost || method == http.MethodPut:
				body = object{}
			}
			r := b.in(t).bad(method, target, body)
			if got := r.status != http.StatusForbidden; got != may {
				t.Errorf("%s as %s: got %v, want allowed: %v", op, role, r.exchange, may)
			}
			if may {
				continue
			}
			r.wantCode(403, core.CodeForbidden)
			for _, want := range append(strings.Fields(roles), "The role "+string(role)+" may not do this") {
				if text := string(r.body); !strings.Contains(text, want) {
					t.Errorf("%s as %s: got %s, want %q in it", op, role, text, want)
				}
			}
		}
	}
	for op, o := range left {
		if o.Security == nil {
			t.Errorf("%s is not in the table of roles", op)
		}
	}
}

// A key with the role support may disable keys, and change nothing else of them.
func TestSupportDisablesKeys(t *testing.T) {
	a := newAPI(t)
	key, _ := a.key(a.user("First"), a.plan(100))
	b := a.as(a.ownerKey(core.RoleSupport))
	path := prefix + "/keys/" + key
	for _, body := range []object{{"status": "active"}, {"name": "mine"}, {"status": "inactive", "name": "mine"}, {"status": "inactive", "expires_at": nil},
		{"status": "inactive", "user_id": json.Number("1")}, {}} {
		b.do("PUT", path, body).wantCode(403, core.CodeForbidden)
	}
	if got := a.do("GET", path, nil).want(200).at("data")["status"]; got != "active" {
		t.Errorf("status after refused changes: got %v, want active", got)
	}
	b.do("PUT", path, object{"status": "inactive"}).want(200)
	if got := a.do("GET", path, nil).want(200).at("data")["status"]; got != "inactive" {
		t.Errorf("status: got %v, want inactive", got)
	}
	b.do("PUT", path, object{"status": "active"}).wantCode(403, core.CodeForbidden)
}
