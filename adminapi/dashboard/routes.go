package dashboard

import "github.com/limitkeeper/limitkeeper/core"

// publicPages need no session.
var publicPages = map[string]handler{
	"GET " + Base + "sign-in":  signInPage,
	"POST " + Base + "sign-in": signIn,
}

// signedInPages need a session.
var signedInPages = map[string]handler{
	"GET " + Base + "{$}":                        overviewPage,
	"GET " + Base + "start":                      startPage,
	"GET " + Base + "owner-keys":                 ownerKeysPage,
	"GET " + Base + "owner-keys/new":             newOwnerKeyPage,
	"GET " + Base + "owner-keys/{id}/regenerate": ofOwnerKey(regenerateOwnerKeyPage),
	"GET " + Base + "owner-keys/{id}/revoke":     revokeOwnerKeyPage,
	"GET " + Base + "plans":                      plansPage,
	"GET " + Base + "plans/new":                  planEditor.newPage,
	"GET " + Base + "plans/{id}":                 ofPlan(planPage),
	"GET " + Base + "plans/{id}/edit":            ofPlan(planEditor.editPage),
	"GET " + Base + "plans/{id}/delete":          ofPlan(deletePlanPage),
	"GET " + Base + "users":                      usersPage,
	"GET " + Base + "users/new":                  userEditor.newPage,
	"GET " + Base + "users/{id}":                 ofUser(userPage),
	"GET " + Base + "users/{id}/edit":            ofUser(userEditor.editPage),
	"GET " + Base + "users/{id}/adjust":          ofUser(adjustPage(userAdjustment)),
	"GET " + Base + "users/{id}/delete":          ofUser(deleteUserPage),
	"GET " + Base + "keys":                       keysPage,
	"GET " + Base + "keys/new":                   newKeyPage,
	"GET " + Base + "keys/{id}":                  ofKey(keyPage),
	"GET " + Base + "keys/{id}/edit":             ofKey(keyEditor.editPage),
	"GET " + Base + "keys/{id}/adjust":           ofKey(adjustPage(keyAdjustment)),
	"GET " + Base + "keys/{id}/regenerate":       ofKey(regenerateKeyPage),
	"GET " + Base + "keys/{id}/delete":           ofKey(deleteKeyPage),
	"GET " + Base + "settings":                   settingsPage,
}

// formHandlers handle posted forms. They need a session and an unused form token.
var formHandlers = map[string]handler{
	Base + "sign-out":                   signingOut((*core.Service).SignOut),
	Base + "sign-out-everywhere":        signingOut((*core.Service).SignOutEverywhere),
	Base + "settings/password":          setPassword,
	Base + "settings/key-prefix":        setKeyPrefix,
	Base + "owner-keys":                 createOwnerKey,
	Base + "owner-keys/{id}/regenerate": ofOwnerKey(regenerateOwnerKey),
	Base + "owner-keys/{id}/revoke":     revokeOwnerKey,
	Base + "plans":                      planEditor.postNew,
	Base + "plans/{id}":                 ofPlan(planEditor.postEdit),
	Base + "plans/{id}/delete":          ofPlan(deletePlan),
	Base + "users":                      userEditor.postNew,
	Base + "users/{id}":                 ofUser(userEditor.postEdit),
	Base + "users/{id}/adjust":          ofUser(adjust(userAdjustment)),
	Base + "users/{id}/disabled":        ofUser(disableUser),
	Base + "users/{id}/delete":          ofUser(deleteUser),
	Base + "keys":                       createKey,
	Base + "keys/{id}":                  ofKey(keyEditor.postEdit),
	Base + "keys/{id}/adjust":           ofKey(adjust(keyAdjustment)),
	Base + "keys/{id}/disabled":         ofKey(disableKey),
	Base + "keys/{id}/regenerate":       ofKey(regenerateKey),
	Base + "keys/{id}/delete":           ofKey(deleteKey),
}
