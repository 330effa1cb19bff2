// Package badgerstore is the embedded [core.Store]: everything is in one directory, and needs no other process.
//
//	                 Consume                             Update
//	                    │                                  │
//	       counters in memory (cache.go)        transactions (tx.go, redo.go)
//	                    │ events                           │ redo records
//	                    ▼                                  ▼
//	┌───────────────────────────────────────────────────────────────────┐
//	│ event log (internal/eventlog): the truth, and the history         │
//	└───────────────────────────────────────────────────────────────────┘
//	                    │ checkpoints                      │ at once
//	                    ▼                                  ▼
//	┌───────────────────────────────────────────────────────────────────┐
//	│ Badger (internal/table): an index of the event log                │
//	│ pages of counters, days, request ids │ users, keys, plans, indexes│
//	└───────────────────────────────────────────────────────────────────┘
//
// A request is decided in memory and appended to the event log. The answer waits only for the event log, which one caller
// writes for all (group commit). A transaction is appended as a redo record, and then applied to Badger.
//
// # Four positions
//
// A position is an offset in the event log. From the newest to the oldest:
//
//	End       the next event gets this position
//	Durable   everything before it is on disk: eventlog.Log.Durable
//	mark      a checkpoint has written everything before it to Badger: checkpointer.mark
//	flushed   everything before it is in tables on disk: Store.flushed; replay begins here
//	copied    the copy for Rebuild has everything before it: retention.copied; older segments may be removed
//
// # Where to look
//
//	consume.go      Consume, in five steps; request ids
//	counter.go      the state of a counter, and its record
//	cache.go        counters in memory, and loading a counter from its page and its events
//	history.go      events and their records; the history of a counter, which is its events
//	checkpoint.go   writing changed counters to their pages: layout.go, days.go
//	usage.go        sums over counters
//	tx.go, redo.go  transactions: account.go, user.go, plan.go, key.go
//	import.go       histories and counters of another store
//	layout.go       the keys of Badger
//	open.go         opening a store; replay.go; dir.go for its directory
//	retention.go    removing old segments and records
//	background.go   the goroutines of a store, and the daily scrub
//	check.go        verifying, repairing and rebuilding a stopped store: repair.go, rebuild.go
//
// [Durability] says which answers survive a power cut. A store that lost its end has the state of an earlier moment.
package badgerstore
