// Package store has the benchmarks of decisions: core over badgerstore, without HTTP.
// bench/run store runs them and prints tables. To run one by hand:
//
//	go test ./bench/store -run '^$' -bench Decide/keys=10000/uniform -benchmem
//
// Every benchmark checks the outcome of each decision. At the end it compares the counters
// with the number of allowed requests. Beside the columns of package testing, the
// benchmarks report:
//
//	decisions/s   decisions per second of all callers together
//	cpu-µs/op     CPU time per decision, with the work in the background and the
//	              benchmark itself
//	p50-µs p99-µs latency of a caller, from one decision in 16
//	disk-B/op     growth of the directory per decision
//	written-B/op  bytes written to disk per decision, including bytes written again
//
// A store with a million keys takes minutes to fill. The first run fills it in the
// directory of the environment variable BENCH_FIXTURES. Each benchmark uses a copy.
package store
