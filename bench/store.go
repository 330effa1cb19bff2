package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// storeRuns are the benchmarks of the store, each group in a process of its own, with
// the arguments that it is run with.
func storeRuns(o *options) [][]string {
	return [][]string{
		{"-test.bench=^BenchmarkDecide$", fmt.Sprint("-test.benchtime=", o.duration)},
		{"-test.bench=^BenchmarkDenied$", fmt.Sprint("-test.benchtime=", o.duration)},
		{"-test.bench=^BenchmarkSustained$", "-test.benchtime=1x", fmt.Sprint("-sustained=", o.sustained)},
		{"-test.bench=^BenchmarkCold$", "-test.benchtime=20000x"},
		{"-test.bench=^BenchmarkOpen$", "-test.benchtime=1x"},
		{"-test.bench=^BenchmarkMemory$", "-test.benchtime=1x"},
		{"-test.bench=^BenchmarkMemoryOfKey$", "-test.benchtime=1x"},
	}
}

// runStore measures decisions in core over badgerstore.
func runStore(ctx context.Context, l *lab) error {
	work, err := filepath.Abs(l.o.work)
	if err != nil {
		return err
	}
	program := filepath.Join(l.dir, "store.test")
	if _, err := output(ctx, "", nil, "go", "test", "-c", "-o", program, "./bench/store"); err != nil {
		return err
	}
	env := []string{"BENCH_FIXTURES=" + filepath.Join(work, "fixtures"), "TMPDIR=" + l.dir}
	var all outcomes
	share := since()
	for round := range l.o.rounds {
		for _, args := range storeRuns(l.o) {
			if !l.o.wants(args[0]) {
				continue
			}
			l.say("round %d of %d: %s (what is filled is kept for the next time)", round+1, l.o.rounds, args[0])
			argv := append([]string{program, "-test.run=^$", "-test.benchmem", "-test.timeout=2h"}, args...)
			err := runBenchmarks(ctx, filepath.Join("bench", "store"), env, func(o *outcome) {
				all.add(o)
				l.say("%s: %s", o.name, o)
			}, argv...)
			if err != nil {
				return err
			}
		}
	}
	r := &storeReport{Title: "Decisions in core over badgerstore, without HTTP", At: l.began.UTC().Truncate(time.Second),
		Machine: l.machine, Rounds: l.o.rounds, Seconds: l.o.duration.Seconds(), Values: all.values, all: all, Others: share()}
	return write(os.Stdout, l.o.out, "store", r, r.String(), r.chart())
}

// String sums up the outcome for progress.
func (o *outcome) String() string {
	var all []string
	for _, unit := range []string{"decisions/s", "cpu-µs/op", "p50-µs", "p99-µs", "allocs/decision", "first-answer-ms", "rss-MiB", "B/key"} {
		if v, ok := o.values[unit]; ok {
			all = append(all, figure(v)+" "+unit)
		}
	}
	return strings.Join(all, ", ")
}

// storeReport is what the part store has measured.
type storeReport struct {
	Title   string                          `json:"title"`
	At      time.Time                       `json:"at"`
	Machine machine                         `json:"machine"`
	Rounds  int                             `json:"rounds"`
	Seconds float64                         `json:"seconds"`
	Values  map[string]map[string][]float64 `json:"benchmarks"` // by name and unit
	Others  float64                         `json:"other_work"` // its share of the machine meanwhile

	all outcomes
}

// storeColumns are the columns of the tables of decisions: a heading and its unit.
var storeColumns = [][2]string{{"decisions/s", "decisions/s"}, {"CPU µs", "cpu-µs/op"}, {"p50 µs", "p50-µs"}, {"p99 µs", "p99-µs"},
	{"allocations", "allocs/op"}, {"disk bytes", "disk-B/op"}, {"written bytes", "written-B/op"}}

// storeSingles are single figures: what they are, their benchmark and unit.
var storeSingles = [][3]string{
	{"sustained, uniform: waiting to be folded, at most, in the first half, MiB", "Sustained/uniform", "unfolded-first-MiB"},
	{"the same in the second half, MiB", "Sustained/uniform", "unfolded-second-MiB"},
	{"how often it was folded", "Sustained/uniform", "folds"},
	{"how often a caller waited for that", "Sustained/uniform", "waits"},
	{"first decision of a key that is not in memory, p50, µs", "Cold", "p50-µs"},
	{"the same, p99, µs", "Cold", "p99-µs"},
	{"opening until the first answer, ms", "Open", "first-answer-ms"},
	{"memory of the process (RSS), MiB", "Memory", "rss-MiB"},
	{"of that not from files, MiB", "Memory", "anonymous-MiB"},
	{"the most that it was (RSS), MiB", "Memory", "peak-MiB"},
	{"heap for a key in memory, with its counter and a tenth of its user, bytes", "MemoryOfKey", "B/key"},
}

// storeTable is a table, and the benchmarks of its rows: those whose name begins so.
type storeTable struct{ title, prefix string }

// tables returns the tables that there are benchmarks for, with what is measured in
// each. Names are as in bench/store: Decide/keys=10000/uniform/process/callers=64.
func (r *storeReport) tables() []storeTable {
	var list []storeTable
	for _, keys := range []string{"10000", "1000000"} {
		n, _ := strconv.ParseFloat(keys, 64)
		for _, law := range []string{"uniform", "zipf"} {
			list = append(list, storeTable{thousands(n) + " keys, " + law, "Decide/keys=" + keys + "/" + law + "/"})
		}
	}
	return append(list, storeTable{"sustained, 1,000,000 keys, process, 64 callers", "Sustained/"},
		storeTable{"denied, one key", "Denied/"})
}

// rows returns the table with the benchmarks whose names begin so, and those names.
func (r *storeReport) rows(s storeTable) (t table, names []string) {
	t.head = []string{s.title}
	for _, c := range storeColumns {
		t.head = append(t.head, c[0])
	}
	for _, name := range r.all.names {
		rest, found := strings.CutPrefix(name, s.prefix)
		if !found {
			continue
		}
		row := []string{rowName(rest)}
		for _, c := range storeColumns {
			v, ok := r.all.median(name, c[1])
			if w, own := r.all.median(name, "allocs/decision"); own && c[1] == "allocs/op" {
				v = w
			}
			row = append(row, map[bool]string{true: figure(v), false: "–"}[ok])
		}
		t.rows, names = append(t.rows, row), append(names, name)
	}
	return t, names
}

// rowName writes process/callers=64 as a reader would.
func rowName(s string) string {
	parts := strings.Split(s, "/")
	for i, p := range parts {
		if n, found := strings.CutPrefix(p, "callers="); found {
			parts[i] = n + " callers"
			if n == "1" {
				parts[i] = "1 caller"
			}
		}
	}
	return strings.Join(parts, ", ")
}

// figure writes a number with as many digits as matter.
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

// String returns the report as it is printed.
func (r *storeReport) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s. Medians of %d rounds of %g s.\n%s: %s.\n", r.Title, r.Rounds, r.Seconds, r.At.Format(time.DateOnly), r.Machine)
	b.WriteString(others(r.Others))
	for _, s := range r.tables() {
		if t, names := r.rows(s); len(names) > 0 {
			fmt.Fprintf(&b, "\n%s", t)
		}
	}
	singles := table{head: []string{"1,000,000 keys", "median"}}
	for _, s := range storeSingles {
		if v, ok := r.all.median(s[1], s[2]); ok {
			singles.rows = append(singles.rows, []string{s[0], figure(v)})
		}
	}
	if len(singles.rows) > 0 {
		fmt.Fprintf(&b, "\n%s", singles)
	}
	return b.String()
}

// chart returns the chart of the report: decisions a second.
func (r *storeReport) chart() chart {
	c := chart{title: r.Title, unit: "decisions/s", note: r.Machine.String()}
	for _, s := range r.tables() {
		if s.prefix == "Denied/" { // an order of magnitude more than the others
			continue
		}
		g := barGroup{name: s.title}
		t, names := r.rows(s)
		for i, name := range names {
			v, _ := r.all.median(name, "decisions/s")
			g.bars = append(g.bars, bar{name: t.rows[i][0], value: v, label: figure(v), colour: i})
		}
		if len(g.bars) > 0 {
			c.groups = append(c.groups, g)
		}
	}
	return c
}
