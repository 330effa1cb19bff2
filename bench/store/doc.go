// Package store has the benchmarks of decisions: core over badgerstore, without HTTP.
// bench/run store runs them and prints tables; by hand, for one of them:
//
//	go test ./bench/store -run '^$' -bench Decide/keys=10000/uniform -benchmem
//
// Every benchmark checks that each decision came out as it should, and in the end that
// the counters have grown by exactly what was decided. Beside the columns of
// package testing they report:
//
//	decisions/s   decisions a second, of all callers together
//	cpu-µs/op     processor time for a decision, with everything in the background and
//	              what the benchmark itself uses
//	p50-µs p99-µs how long a caller waits, from one decision in 16
//	disk-B/op     by how much the directory grows for a decision
//	written-B/op  what is written to the disk for a decision, with what is rewritten
//
// Stores with many keys take a while to fill. They are made once, in the directory that
// the environment variable BENCH_FIXTURES names, and copied.
package store
