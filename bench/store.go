package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// storeRun is a run of benchmarks of package bench/store in a process of its own.
type storeRun struct {
	pattern string // of the benchmarks
	time    string // -test.benchtime
	once    bool   // run in the first round only
}

// storeRuns returns the runs of a round.
func storeRuns(o *options) []storeRun {
	return []storeRun{
		{"^Benchmark(Decide|Denied)$", time.Second.String(), false},
		{"^BenchmarkSustained$", "1x", true},
		{"^BenchmarkCold$", "20000x", true},
		{"^BenchmarkOpen$", "1x", true},
		{"^BenchmarkMemory$", "1x", true},
		{"^BenchmarkMemoryPerKey$", "1x", true},
	}
}

// storeRounds is the number of rounds of the part store. Its tables compare no programs, and
// a round takes over a minute.
const storeRounds = 2

// runStore measures decisions in core over badgerstore.
func runStore(ctx context.Context, h *harness) error {
	work, err := filepath.Abs(h.o.work)
	if err != nil {
		return err
	}
	program := filepath.Join(h.dir, "store.test")
	if _, err := output(ctx, nil, "go", "test", "-c", "-o", program, "./bench/store"); err != nil {
		return err
	}
	r := &storeReport{Title: "Decisions in core over badgerstore, without HTTP", At: h.began.UTC().Truncate(time.Second),
		Machine: h.machine, Noise: h.noise, Rounds: min(h.o.rounds, storeRounds)}
	before := readCPUTimes()
	env := []string{"BENCH_FIXTURES=" + filepath.Join(work, "fixtures"), "TMPDIR=" + h.dir}
	for round := range r.Rounds {
		for _, run := range storeRuns(h.o) {
			if run.once && round > 0 || !h.o.wants(run.pattern) {
				continue
			}
			h.logf("round %d of %d: %s (the first run fills the stores)", round+1, r.Rounds, run.pattern)
			err := runBenchmarks(ctx, filepath.Join("bench", "store"), env, func(o *outcome) {
				r.all.add(o)
				h.logf("%s: %s", o.name, o)
			}, program, "-test.run=^$", "-test.benchmem", "-test.timeout=1h", "-test.bench="+run.pattern, "-test.benchtime="+run.time,
				"-sustained="+h.o.sustained.String())
			if err != nil {
				return err
			}
		}
	}
	r.Values, r.OtherWork = r.all.values, otherWorkSince(before)
	return h.writeResults(os.Stdout, "store", r.OtherWork, r, r.String())
}

// outcome is one result of a Go benchmark.
type outcome struct {
	name   string             // without Benchmark and without the number of processors
	values map[string]float64 // by unit
}

// processorsSuffix is what package testing appends to the name of a benchmark.
var processorsSuffix = regexp.MustCompile(`-\d+$`)

// parseBenchmark reads a line of package testing. It returns nil for a line that is no
// result.
func parseBenchmark(line string) *outcome {
	fields := strings.Fields(line)
	name, found := strings.CutPrefix(line, "Benchmark")
	if !found || len(fields) < 4 || len(fields)%2 != 0 {
		return nil
	}
	name, _, _ = strings.Cut(strings.Fields(name)[0], "\t")
	o := &outcome{name: processorsSuffix.ReplaceAllString(name, ""), values: map[string]float64{}}
	for i := 2; i < len(fields); i += 2 {
		v, err := strconv.ParseFloat(fields[i], 64)
		if err != nil {
			return nil
		}
		o.values[fields[i+1]] = v
	}
	return o
}

// String sums up the outcome for progress.
func (o *outcome) String() string {
	var all []string
	for _, unit := range []string{"decisions/s", "cpu-µs/op", "p50-µs", "p99-µs", "first-answer-ms", "rss-MiB", "B/key"} {
		if v, ok := o.values[unit]; ok {
			all = append(all, figure(v)+" "+unit)
		}
	}
	return strings.Join(all, ", ")
}

// outcomes has the values of all rounds, by benchmark and unit. names has the benchmarks in
// the order of their first result.
type outcomes struct {
	names  []string
	values map[string]map[string][]float64
}

func (o *outcomes) add(one *outcome) {
	if o.values == nil {
		o.values = map[string]map[string][]float64{}
	}
	if o.values[one.name] == nil {
		o.names = append(o.names, one.name)
		o.values[one.name] = map[string][]float64{}
	}
	for unit, v := range one.values {
		o.values[one.name][unit] = append(o.values[one.name][unit], v)
	}
}

// median returns the median of a benchmark in a unit, and whether there is a value.
func (o *outcomes) median(name, unit string) (float64, bool) {
	v := o.values[name][unit]
	return median(v), len(v) > 0
}

// runBenchmarks runs a test binary in a directory, and calls found for each outcome as
// soon as the binary prints it.
func runBenchmarks(ctx context.Context, dir string, env []string, found func(*outcome), argv ...string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopTimeout
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, in := io.Pipe()
	cmd.Stdout, cmd.Stderr = in, in
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		in.Close()
		ended <- err
	}()
	var rest []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if o := parseBenchmark(lines.Text()); o != nil {
			found(o)
		} else {
			rest = append(rest, lines.Text())
		}
	}
	if err := <-ended; err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(argv[1:], " "), err, strings.Join(rest, "\n"))
	}
	return nil
}

// storeReport has the results of the part store.
type storeReport struct {
	Title     string                          `json:"title"`
	At        time.Time                       `json:"at"`
	Machine   machine                         `json:"machine"`
	Noise     noise                           `json:"noise"`
	OtherWork float64                         `json:"other_work"` // share of the processors that other programs took
	Rounds    int                             `json:"rounds"`
	Values    map[string]map[string][]float64 `json:"benchmarks"` // by name and unit

	all outcomes
}

// storeColumns are the columns of the tables of decisions: a heading and its unit.
var storeColumns = [][2]string{{"decisions/s", "decisions/s"}, {"CPU µs", "cpu-µs/op"}, {"p50 µs", "p50-µs"}, {"p99 µs", "p99-µs"},
	{"allocations", "allocs/op"}, {"disk bytes", "disk-B/op"}, {"written bytes", "written-B/op"}}

// storeTables are the tables of decisions: a title, and the beginning of the names of the
// benchmarks in the rows.
var storeTables = []struct{ title, prefix string }{
	{"10,000 keys, uniform", "Decide/keys=10000/uniform/"},
	{"1,000,000 keys, uniform", "Decide/keys=1000000/uniform/"},
	{"1,000,000 keys, zipf", "Decide/keys=1000000/zipf/"},
	{"sustained, 1,000,000 keys, process, 64 callers", "Sustained/"},
	{"denied, one key", "Denied/"},
}

// storeFigures are the single figures: a title, the benchmark and the unit.
var storeFigures = [][3]string{
	{"sustained: log ahead of the checkpoint, at most, first half, MiB", "Sustained/uniform", "backlog-first-MiB"},
	{"the same, second half, MiB", "Sustained/uniform", "backlog-second-MiB"},
	{"sustained: checkpoints", "Sustained/uniform", "checkpoints"},
	{"sustained: requests that waited for a checkpoint", "Sustained/uniform", "waits"},
	{"first decision of a key that is not in memory, p50, µs", "Cold", "p50-µs"},
	{"the same, p99, µs", "Cold", "p99-µs"},
	{"from opening the store to the first decision, ms", "Open", "first-answer-ms"},
	{"memory of the process (RSS), MiB", "Memory", "rss-MiB"},
	{"anonymous memory of the process, MiB", "Memory", "anonymous-MiB"},
	{"peak memory of the process (RSS), MiB", "Memory", "peak-MiB"},
	{"heap for each cached key with its counter, bytes", "MemoryPerKey", "B/key"},
}

// rows returns the table of the benchmarks whose names begin with a prefix.
func (r *storeReport) rows(title, prefix string) table {
	t := table{head: []string{title}}
	for _, c := range storeColumns {
		t.head = append(t.head, c[0])
	}
	for _, name := range r.all.names {
		rest, found := strings.CutPrefix(name, prefix)
		if !found {
			continue
		}
		row := []string{strings.NewReplacer("/", ", ", "callers=", "callers ").Replace(rest)}
		for _, c := range storeColumns {
			cell := "–"
			if v, ok := r.all.median(name, c[1]); ok {
				cell = figure(v)
			}
			row = append(row, cell)
		}
		t.rows = append(t.rows, row)
	}
	return t
}

// figure writes a number with three significant digits or all digits before the point.
func figure(v float64) string {
	switch {
	case v >= 1000 || v <= -1000:
		return thousands(v)
	case v >= 100 || v <= -100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10 || v <= -10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// String returns the report as Markdown. Tables without rows are left out.
func (r *storeReport) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s. Medians of %d rounds.\n%s: %s.\n%s", r.Title, r.Rounds, r.At.Format(time.DateOnly), r.Machine, r.Noise)
	for _, s := range storeTables {
		if t := r.rows(s.title, s.prefix); len(t.rows) > 0 {
			fmt.Fprintf(&b, "\n%s", t)
		}
	}
	singles := table{head: []string{"1,000,000 keys", "median"}}
	for _, s := range storeFigures {
		if v, ok := r.all.median(s[1], s[2]); ok {
			singles.rows = append(singles.rows, []string{s[0], figure(v)})
		}
	}
	if len(singles.rows) > 0 {
		fmt.Fprintf(&b, "\n%s", singles)
	}
	return b.String()
}
