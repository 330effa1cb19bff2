// Package service is what programs call: it validates requests, and changes and lists the resources of accounts, over a [core.Store].
//
// [Service.Validate] takes a [Request] and returns a [Decision]:
//
//	secret ─► key, user, plan ─► Store.Consume ─► decision ─► allowed, or refused with a reason
//	            (key cache)
//
// A quota that is used up is an [Outcome] of the decision. An error means that no decision was made.
//
// The key cache keeps keys, users, plans and owner's keys in memory. A change by this service, or a change that a [core.WatchedStore] reports,
// removes the changed resources from the cache before the change is answered. Changes go through a [Transaction]: all of them are applied, or none.
// Lists, searches and sums of a whole account are bounded: an account runs one large query at a time.
//
// The service uses the rules of package core and adds none to counting. It imports package signin and holds one [signin.Service].
package service
