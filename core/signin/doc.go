// Package signin signs people in to an account, in a browser: by a link that works once, or by a password.
//
// A sign-in gives [Credentials]: the secret of a session, and one of the browser. [Service.SignedIn] finds the session of a secret. Wrong
// passwords are bounded for each account name, browser, address and network. Passwords are hashed one at a time, in a queue that strangers
// cannot fill for a known browser. The links, sessions and browsers of an account are its [core.Access], which each node reads and
// writes through a [core.Store].
package signin
