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
// # Positions
//
// A position is an offset in the event log. From the newest to the oldest:
//
//	End       no record has this position or a later one yet
//	Written   everything before it is in the files: eventlog.Log.Written
//	Durable   everything before it is on disk: eventlog.Log.Durable
//	mark      a checkpoint has written everything before it to Badger: checkpointer.mark
//	flushed   everything before it is in tables on disk: Store.flushed
//	copied    the copy for Rebuild has everything before it: retention.copied; older segments may be removed
//
// After a crash, replay begins at the last mark that is in a table: at most flushBytes before the last checkpoint. After
// Close there is nothing to replay.
//
// # Where to look
//
//	badgerstore.go  Store, Close, Durability; what a failed store refuses
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
// [Durability] says which answers survive which crashes. A store that lost its end has the state of an earlier moment.
package badgerstore
