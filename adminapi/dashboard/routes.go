package dashboard

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
	"GET " + Base + "owner-keys/{id}/regenerate": regenerateOwnerKeyPage,
	"GET " + Base + "owner-keys/{id}/revoke":     revokeOwnerKeyPage,
	"GET " + Base + "plans":                      plansPage,
	"GET " + Base + "plans/new":                  newPlanPage,
	"GET " + Base + "plans/{id}":                 ofPlan(planPage),
	"GET " + Base + "plans/{id}/edit":            ofPlan(editPlanPage),
	"GET " + Base + "plans/{id}/delete":          ofPlan(deletePlanPage),
	"GET " + Base + "users":                      usersPage,
	"GET " + Base + "users/new":                  newUserPage,
	"GET " + Base + "users/{id}":                 ofUser(userPage),
	"GET " + Base + "users/{id}/edit":            ofUser(editUserPage),
	"GET " + Base + "users/{id}/adjust":          ofUser(adjustUserPage),
	"GET " + Base + "users/{id}/delete":          ofUser(deleteUserPage),
	"GET " + Base + "keys":                       keysPage,
	"GET " + Base + "keys/new":                   newKeyPage,
	"GET " + Base + "keys/{id}":                  ofKey(keyPage),
	"GET " + Base + "keys/{id}/edit":             ofKey(editKeyPage),
	"GET " + Base + "keys/{id}/adjust":           ofKey(adjustKeyPage),
	"GET " + Base + "keys/{id}/regenerate":       ofKey(regenerateKeyPage),
	"GET " + Base + "keys/{id}/delete":           ofKey(deleteKeyPage),
	"GET " + Base + "settings":                   settingsPage,
}

// formHandlers handle posted forms. They need a session and an unused form token.
var formHandlers = map[string]handler{
	Base + "sign-out":                   signOut,
	Base + "sign-out-everywhere":        signOutEverywhere,
	Base + "settings/password":          setPassword,
	Base + "settings/key-prefix":        setKeyPrefix,
	Base + "owner-keys":                 createOwnerKey,
	Base + "owner-keys/{id}/regenerate": regenerateOwnerKey,
	Base + "owner-keys/{id}/revoke":     revokeOwnerKey,
	Base + "plans":                      createPlan,
	Base + "plans/{id}":                 ofPlan(updatePlan),
	Base + "plans/{id}/delete":          ofPlan(deletePlan),
	Base + "users":                      createUser,
	Base + "users/{id}":                 ofUser(updateUser),
	Base + "users/{id}/adjust":          ofUser(adjustUser),
	Base + "users/{id}/disabled":        ofUser(disableUser),
	Base + "users/{id}/delete":          ofUser(deleteUser),
	Base + "keys":                       createKey,
	Base + "keys/{id}":                  ofKey(updateKey),
	Base + "keys/{id}/adjust":           ofKey(adjustKey),
	Base + "keys/{id}/disabled":         ofKey(disableKey),
	Base + "keys/{id}/regenerate":       ofKey(regenerateKey),
	Base + "keys/{id}/delete":           ofKey(deleteKey),
}
