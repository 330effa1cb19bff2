// Package adminapi is the REST API of Limitkeeper. It translates between HTTP and package core; all
// rules are in core.
//
// # One request
//
//	Server.ServeHTTP   finds the endpoint                    routes.go
//	endpoint.serve     requires HTTPS
//	  authenticate     requires an owner's key               auth.go
//	  throttle         applies service_rate_limit            throttle.go
//	  parseQuery       refuses unknown parameters            page.go
//	handler            decodes the body and the query        members.go, page.go
//	                   calls core
//	                   writes the answer                     envelope.go
//	fail               writes an error with its status       errors.go
//
// A handler returns an error instead of writing it. errors.go has the only table of codes and
// statuses.
//
// Answers are objects of this package, not of core, because the stored form and the JSON form
// change independently.
//
// # The contract
//
// openapi.yaml is the contract. It is written by hand and served unchanged. The tests validate every
// request and answer against it, and compare its operations with routes.go.
//
// [RateLimitHeaders], [WriteValidation] and [WriteRefusal] are exported for the gateway, which answers
// in the same form.
package adminapi
