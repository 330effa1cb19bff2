// Package core decides whether a request of an API key fits into its quota. It holds every rule
// that could be told to a customer; stores, HTTP and Caddy are elsewhere.
//
// # The model
//
// An account is a company that sells an API. It calls the REST API with its owner's keys. Its
// customers are its users. A user sends one of its keys with each request. A plan allows a number
// of requests in a calendar period: day, week, month or year.
//
//	account ──┬── owner's key     opens the REST API of the account
//	          │
//	          ├── plan            "10,000 requests a month"
//	          │    ▲    ▲
//	          │    │    └──────────────────────────┐ its own plan, or
//	          │    │ plan of the user              │ none: the user's
//	          └── user ◄───────────────────────── key ◄── secret in a request
//	               │                               │
//	            counter                         counter
//
// Each user and each key has a counter. A counter holds the usage of four windows side by side,
// one of each period, in UTC:
//
//	counter = day 2026-03-12 │ week from 2026-03-09 │ March 2026 │ 2026
//	             used 4      │       used 31        │  used 120  │ used 480
//
// A counter leaves a window only for a later one. A clock that steps back therefore opens no
// window a second time.
//
// The path of one request:
//
//	secret ─► key, user, plan ─► Store.Consume ─► decision ─► allowed, or refused with a reason
//	            (key cache)        │
//	                               └─ one atomic, durable step:
//	                                  1. used + cost <= limit, in the window of the plan's period?
//	                                  2. add the cost to the counters
//	                                  3. append an entry to the history of the key and of the user
//
// The counter of the key decides if the key has a plan of its own. Otherwise the counter of the
// user decides: all keys of the user without a plan of their own share it. Such a request counts on
// both counters. A denied request counts on neither. A request is refused before its quota is read
// if its key is unknown, expired or inactive, or if the user of the key is disabled.
//
// # The names
//
// [Account], [OwnerKey], [User], [Key], [Plan], [Period], [Window] and [Counter] are the words
// above. [Service.Validate] takes a [Request] and returns a [Decision]. A quota that is used up is
// an [Outcome] of the decision; an error means that no decision was made. [Counter.Consume] is the
// rule of counting: each store decides and counts as it does. [Store] says what each store promises, and storage/storetest checks it.
//
// Package core imports no HTTP, no database, no Caddy and no logger.
package core
