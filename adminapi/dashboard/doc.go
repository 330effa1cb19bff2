// Package dashboard is the web interface of an account: owner's keys, plans, users, keys and usage.
// The server renders all pages. Only the parts that refresh themselves need JavaScript.
//
// Every page has an address below /dashboard/. A form is posted to the address of the resource that
// it changes. It carries a token that the server accepts once (see [signin.Service.SpendFormToken]). The
// answer is a redirect, or a page that shows a new secret.
package dashboard
