// Package dashboard is where the people of an account sign in: they get owner's keys,
// run plans, users and keys, and see the usage. It is rendered on the server and works
// without JavaScript but for its live parts.
//
// Every page is an address below /dashboard/. A form is sent to the address of what it
// changes, carries a token that is taken once (see [core.Service.SpendFormToken]), and is
// answered with a redirect, or with a page when there is a secret to show.
package dashboard
