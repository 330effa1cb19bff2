package dashboard

import (
	"github.com/limitkeeper/limitkeeper/core/signin"
)

// routes are the handlers of pages and of posted forms, by method and path below Base. Both need a session, and a form needs an
// unused token.
type routes map[string]handler

func newRoutes() routes {
	rs := routes{
		"GET {$}":                     overviewPage,
		"GET start":                   startPage,
		"GET owner-keys":              ownerKeysPage,
		"GET owner-keys/{id}/revoke":  revokeOwnerKeyPage,
		"POST owner-keys/{id}/revoke": revokeOwnerKey,
		"GET plans":                   plansPage,
		"GET plans/{id}":              of(planKind.find)(planPage),
		"GET prices":                  pricesPage,
		"GET users":                   usersPage,
		"GET users/{id}":              of(userKind.find)(userPage),
		"GET keys":                    keysPage,
		"GET keys/{id}":               of(keyKind.find)(keyPage),
		"GET settings":                settingsPage,
		"POST settings/password":      setPassword,
		"POST settings/key-prefix":    setKeyPrefix,
		"POST sign-out":               signingOut((*signin.Service).SignOut),
		"POST sign-out-everywhere":    signingOut((*signin.Service).SignOutEverywhere),
	}
	planKind.addRoutes(rs)
	userKind.addRoutes(rs)
	keyKind.addRoutes(rs)
	addForm(rs, "keys/{id}/regenerate", "keys/{id}/regenerate", keyRegeneration, regenerationPage)
	addForm(rs, "prices/edit", "prices", prices, pricesForm)
	addForm(rs, "owner-keys/new", "owner-keys", nothing, newOwnerKeyPage)
	addForm(rs, "owner-keys/{id}/regenerate", "owner-keys/{id}/regenerate", ownerKeyRegeneration, regenerationPage)
	return rs
}

// addForm adds a page with a form, which posts to action. find reads what the form is about.
func addForm[T any](rs routes, page, action string, find func(*request) (T, error), p formPage[T]) {
	rs["GET "+page], rs["POST "+action] = of(find)(p.get), of(find)(p.post)
}
