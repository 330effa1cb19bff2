// Package core is the counting core of Limitkeeper: what an account, a plan, a
// user and a key are, which calendar window a request falls into, whether it
// still fits, and what is remembered of it.
//
// # The model
//
// An [Account] is a company that sells an API. It authenticates with an
// [OwnerKey]. It has users ([User], its customers), plans ([Plan], so many
// requests a day, week, month or year) and keys ([Key], what a customer sends
// with a request). A key has a plan of its own or draws on the plan of its
// user.
//
// A [Counter] holds the usage of the current day, week, month and year side by
// side, in UTC. Every allowed request counts on the counter of its key. The
// request of a key without a plan of its own is decided on the counter of its
// user, which all such keys share, and counts there too.
//
// [Service.Validate] turns a secret into a [Decision]. A limit that is reached
// is a value of the decision and never an error; an error says that no decision
// could be made.
//
// # The borders
//
// core decides, a [Store] persists. This package imports no HTTP, no database,
// no Caddy and no logger.
package core
