// Package adminapi is the REST API of Limitkeeper: it translates between HTTP and
// package core, and decides nothing itself.
//
// # One request
//
// A [Server] routes a request to an endpoint (routes.go). Before the handler runs,
// the request must have come over HTTPS, carry an owner's key (auth.go), be
// within the service's own bound (throttle.go) and have known parameters only (page.go). A handler reads the body
// (decode.go) and the query (page.go), asks core, and answers with one envelope
// (envelope.go). It returns an error instead of writing one: errors.go has the one
// table of codes and statuses, and writes them all.
//
// The answers are structs of this package, never those of core: what is stored and
// what is shown change for different reasons.
//
// # The contract
//
// openapi.yaml beside this file is the contract, written by hand and served as it
// is. The tests hold every exchange against it, and routes.go against it in both
// directions.
//
// [SetRateLimitHeaders], [WriteValidation] and [WriteRefusal] are exported for the
// gateway, which answers in the same form.
package adminapi
