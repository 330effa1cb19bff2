// Package core is the model and the rules of quotas: accounts, users, plans, keys, periods, counters, and what a [Store] promises.
// Every rule that could be told to a customer is here or in a package below. Stores, HTTP and Caddy are elsewhere.
//
// # The model
//
// An account is a company that sells an API. It calls the REST API with its owner's keys. Its
// customers are its users. A user sends one of its keys with each request. A plan has limits: each
// allows so much of a meter in a period. The meter requests is always counted. An account can name
// others, such as tokens. The prices of an account say what a request costs on each meter.
//
//	account ──┬── owner's key     opens the REST API of the account
//	          │
//	          ├── plan            "10,000 requests a month, 20 a minute, 2,000,000 tokens a month"
//	          │    ▲    ▲
//	          │    │    └──────────────────────────┐ its own plan, or
//	          │    │ plan of the user              │ none: the user's
//	          └── user ◄───────────────────────── key ◄── secret in a request
//	               │                               │
//	            counter                         counter
//
// Each user and each key has a counter. A counter holds, for each meter, the usage of the present
// window of every period side by side, in UTC. So a plan can change its limits and keep the usage:
//
//	          minute  hour  day  week  month   year  lifetime
//	requests       1     2    4    31    120    480       900
//	tokens        90   250  250  7100  48210  90400    171300
//
// A counter leaves a window only for a later one. A clock that steps back therefore opens no
// window a second time. A user can have an anchor: its days, weeks, months and years then begin
// with the time of the anchor instead of with the calendar.
//
// The path of one request:
//
//	secret ─► key, user, plan ─► price ─► Store.Consume ─► decision ─► allowed, or refused with a reason
//	            (key cache)                 │
//	                               ┌────────┘
//	                               └─ one atomic, durable step:
//	                                  1. used + cost <= max, for every limit of the plan in its window?
//	                                  2. does the token bucket of the rate have a token?
//	                                  3. add the cost of each meter to the counters
//	                                  4. append an entry to the history of the key and of the user
//
// The counter of the key decides if the key has a plan of its own. Otherwise the counter of the
// user decides: all keys of the user without a plan of their own share it. Such a request counts on
// both counters. A denied request counts on neither. A request is refused before its quota is read
// if its key is malformed, unknown, expired or inactive, or if the user of the key is disabled.
//
// # The packages
//
//	core/service ─► core/signin ─► core ─► core/secrets
//	core/document ─► core
//
// Package service validates requests and changes resources. Package signin signs people in. Package secrets makes, hashes and masks
// secrets. Package document reads JSON and YAML into the members of patches. Package core has the shared types and the pure rules:
// each store decides as [Counter.Decide] does, and counts as [Counter.Add] does. [UserMembers], [PlanMembers] and [KeyMembers]
// describe each member of a resource once. [Store] says what each store promises, and storage/storetest checks it.
//
// The packages import no HTTP, no database, no Caddy and no logger.
package core
