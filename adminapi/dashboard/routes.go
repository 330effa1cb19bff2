package dashboard

import (
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/signin"
)

// routes are the pages and posted forms, by method and path below Base. Each needs a session, and a posted form an unused token.
type routes map[string]route

// route is a page or a posted form, with the permission that it needs.
type route struct {
	need   core.Permission
	handle handler
}

func newRoutes() routes {
	rs := routes{
		"GET {$}":                     {core.PermitRead, overviewPage},
		"GET start":                   {core.PermitRead, startPage},
		"GET owner-keys":              {core.PermitOwn, ownerKeysPage},
		"GET owner-keys/{id}/revoke":  {core.PermitOwn, revokeOwnerKeyPage},
		"POST owner-keys/{id}/revoke": {core.PermitOwn, revokeOwnerKey},
		"GET people":                  {core.PermitOwn, peoplePage},
		"GET plans":                   {core.PermitRead, plansPage},
		"GET plans/{id}":              {core.PermitRead, of(planKind.find)(planPage)},
		"GET prices":                  {core.PermitRead, pricesPage},
		"GET users":                   {core.PermitRead, usersPage},
		"GET users/{id}":              {core.PermitRead, of(userKind.find)(userPage)},
		"GET keys":                    {core.PermitRead, keysPage},
		"GET keys/{id}":               {core.PermitRead, of(keyKind.find)(keyPage)},
		"GET webhooks":                {core.PermitRead, webhooksPage},
		"GET webhooks/{id}":           {core.PermitRead, of(findWebhook)(webhookPage)},
		"POST webhooks/{id}/test":     {core.PermitEdit, of(findWebhook)(testWebhook)},
		"GET settings":                {core.PermitNothing, settingsPage},
		"GET audit":                   {core.PermitRead, auditPage},
		"POST settings/password":      {core.PermitNothing, setPassword},
		"POST settings/key-prefix":    {core.PermitOwn, setKeyPrefix},
		"POST sessions/{id}/end":      {core.PermitNothing, endSession},
		"POST sign-out":               {core.PermitNothing, signingOut((*signin.Service).SignOut)},
		"POST sign-out-everywhere":    {core.PermitNothing, signingOut((*signin.Service).SignOutEverywhere)},
	}
	planKind.addRoutes(rs)
	userKind.addRoutes(rs)
	keyKind.addRoutes(rs)
	webhookKind.addRoutes(rs)
	addForm(rs, core.PermitEdit, "webhooks/{id}/rotate", "webhooks/{id}/rotate", findWebhook, webhookRotation)
	addForm(rs, core.PermitEdit, "keys/{id}/regenerate", "keys/{id}/regenerate", keyRegeneration, regenerationPage)
	addForm(rs, core.PermitEdit, "prices/edit", "prices", prices, pricesForm)
	addForm(rs, core.PermitOwn, "owner-keys/new", "owner-keys", nothing, newOwnerKeyPage)
	addForm(rs, core.PermitOwn, "owner-keys/{id}/regenerate", "owner-keys/{id}/regenerate", ownerKeyRegeneration, regenerationPage)
	addForm(rs, core.PermitOwn, "people/new", "people", nothing, newPersonPage)
	addForm(rs, core.PermitOwn, "people/{id}/role", "people/{id}/role", person, personRolePage)
	addForm(rs, core.PermitOwn, "people/{id}/link", "people/{id}/link", person, personLinkPage)
	addForm(rs, core.PermitOwn, "people/{id}/remove", "people/{id}/remove", person, removePersonPage)
	return rs
}

// addForm adds a page with a form, which posts to action. Both need the permission. find reads the resource of the form.
func addForm[T any](rs routes, need core.Permission, page, action string, find func(*request) (T, error), p formPage[T]) {
	rs["GET "+page], rs["POST "+action] = route{need, of(find)(p.get)}, route{need, of(find)(p.post)}
}

// permitting returns a handler that refuses a role without the permission.
func permitting(need core.Permission, h handler) handler {
	return func(q *request) error {
		if err := q.signedIn.Person.Role.Require(need); err != nil {
			return err
		}
		return h(q)
	}
}

// may reports whether the role of the signed-in person has a permission.
func (q *request) may(p core.Permission) bool { return q.signedIn.Person.Role.May(p) }
