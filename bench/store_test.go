package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The parser reads the lines of package testing, with the units that benchmarks add. Other
// lines are no outcomes.
func TestParseBenchmark(t *testing.T) {
	line := "BenchmarkDecide/keys=10000/uniform/process/callers=64-2         \t   52072\t     57334 ns/op\t        30.46 cpu-µs/op\t     17448 decisions/s\t       -32.41 disk-B/op\t      59 allocs/op"
	want := &outcome{name: "Decide/keys=10000/uniform/process/callers=64", values: map[string]float64{
		"ns/op": 57334, "cpu-µs/op": 30.46, "decisions/s": 17448, "disk-B/op": -32.41, "allocs/op": 59}}
	if diff := cmp.Diff(want, parseBenchmark(line), cmp.AllowUnexported(outcome{})); diff != "" {
		t.Errorf("outcome (-want +got):\n%s", diff)
	}
	for _, line := range []string{"", "PASS", "BenchmarkDecide", "BenchmarkDecide-2", "--- BENCH: BenchmarkX-2", "BenchmarkX-2 1 a ns/op", "cpu: AMD EPYC"} {
		if got := parseBenchmark(line); got != nil {
			t.Errorf("%q: got %+v, want nothing", line, got)
		}
	}
}

// Outcomes arrive while the program runs. When the program fails, the error has the rest
// of its output.
func TestRunBenchmarks(t *testing.T) {
	var all outcomes
	script := `echo 'BenchmarkB-2 1 3 ns/op'; echo 'BenchmarkA-2 1 9 ns/op'; echo "BenchmarkB-2 1 $N ns/op"; echo "it broke"; exit $RC`
	if err := runBenchmarks(t.Context(), "", []string{"N=5", "RC=0"}, all.add, "sh", "-c", script); err != nil {
		t.Fatal(err)
	}
	if got, ok := all.median("B", "ns/op"); got != 4 || !ok || !cmp.Equal(all.names, []string{"B", "A"}) {
		t.Errorf("got %v of %v, want 4 of B, A", got, all.names)
	}
	if _, ok := all.median("A", "B/op"); ok {
		t.Error("a unit without values: got a median")
	}
	err := runBenchmarks(t.Context(), "", []string{"RC=3"}, all.add, "sh", "-c", script)
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "it broke") {
		t.Errorf("got %v, want the status and the output", err)
	}
}

func testStoreReport() *storeReport {
	r := &storeReport{Title: "Decisions", Rounds: 3, At: time.Date(2026, 3, 12, 0, 0, 0, 0, time.UTC)}
	for _, rate := range []float64{400000, 430000, 410000} {
		for _, line := range []string{
			"BenchmarkDecide/keys=10000/uniform/process/callers=1-2 1 2 ns/op %v decisions/s 3.4 cpu-µs/op 5 allocs/op",
			"BenchmarkDecide/keys=1000000/zipf/power/callers=64-2 1 2 ns/op %v decisions/s 3.4 cpu-µs/op",
			"BenchmarkSustained/uniform-2 1 2 ns/op %v decisions/s 3.5 allocs/op",
			"BenchmarkOpen-2 1 2 ns/op %v first-answer-ms",
		} {
			r.all.add(parseBenchmark(fmt.Sprintf(line, rate)))
		}
	}
	return r
}

// Each benchmark has a row in its table, with a column for each unit. A missing value is a
// dash, and an empty table is left out.
func TestStoreReport(t *testing.T) {
	want := `Decisions. Medians of 3 rounds.
2026-03-12: 0 cores of ,  of memory, Linux , Go .

| 10,000 keys, uniform | decisions/s | CPU µs | p50 µs | p99 µs | allocations | disk bytes | written bytes |
|----------------------|------------:|-------:|-------:|-------:|------------:|-----------:|--------------:|
| process, callers 1   |     410,000 |   3.40 |      – |      – |        5.00 |          – |             – |

| 1,000,000 keys, zipf | decisions/s | CPU µs | p50 µs | p99 µs | allocations | disk bytes | written bytes |
|----------------------|------------:|-------:|-------:|-------:|------------:|-----------:|--------------:|
| power, callers 64    |     410,000 |   3.40 |      – |      – |           – |          – |             – |

| sustained, 1,000,000 keys, process, 64 callers | decisions/s | CPU µs | p50 µs | p99 µs | allocations | disk bytes | written bytes |
|------------------------------------------------|------------:|-------:|-------:|-------:|------------:|-----------:|--------------:|
| uniform                                        |     410,000 |      – |      – |      – |        3.50 |          – |             – |

| 1,000,000 keys                                   |  median |
|--------------------------------------------------|--------:|
| from opening the store to the first decision, ms | 410,000 |
`
	if diff := cmp.Diff(want, testStoreReport().String()); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}

// Every reported benchmark runs, by a pattern that matches no other one.
func TestStoreRuns(t *testing.T) {
	runs := func(name string) (n int) {
		for _, run := range storeRuns(&options{}) {
			if regexp.MustCompile(run.pattern).MatchString("Benchmark" + name) {
				n++
			}
		}
		return n
	}
	for _, s := range storeFigures {
		if name, _, _ := strings.Cut(s[1], "/"); runs(name) != 1 {
			t.Errorf("%s: got %d runs, want 1", s[1], runs(name))
		}
	}
	for _, s := range storeTables {
		if name, _, _ := strings.Cut(s.prefix, "/"); runs(name) != 1 {
			t.Errorf("%s: got %d runs, want 1", name, runs(name))
		}
	}
}

func TestFigure(t *testing.T) {
	for v, want := range map[float64]string{0: "0.00", 3.456: "3.46", 34.56: "34.6", 345.6: "346", 3456: "3,456", -345.6: "-346", -345678.2: "-345,678"} {
		if got := figure(v); got != want {
			t.Errorf("figure(%v): got %s, want %s", v, got, want)
		}
	}
}
