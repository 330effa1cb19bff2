package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

// outcome is what a benchmark of Go has printed: a number for each unit.
type outcome struct {
	name   string // without Benchmark and without the number of processors
	values map[string]float64
}

// processors is what package testing appends to the name of a benchmark.
var processors = regexp.MustCompile(`-\d+$`)

// parseBenchmark reads a line of package testing. It returns nil for any other line.
func parseBenchmark(line string) *outcome {
	fields := strings.Fields(line)
	name, found := strings.CutPrefix(line, "Benchmark")
	if !found || len(fields) < 4 || len(fields)%2 != 0 {
		return nil
	}
	name, _, _ = strings.Cut(strings.Fields(name)[0], "\t")
	o := &outcome{name: processors.ReplaceAllString(name, ""), values: map[string]float64{}}
	for i := 2; i < len(fields); i += 2 {
		v, err := strconv.ParseFloat(fields[i], 64)
		if err != nil {
			return nil
		}
		o.values[fields[i+1]] = v
	}
	return o
}

// outcomes are those of some benchmarks, of all rounds, in the order in which they came
// first.
type outcomes struct {
	names  []string
	values map[string]map[string][]float64
}

// add adds an outcome to those of its benchmark.
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

// median returns the median of a benchmark's unit, and whether there is any.
func (o *outcomes) median(name, unit string) (float64, bool) {
	v := o.values[name][unit]
	return median(v), len(v) > 0
}

// runBenchmarks runs a test binary in a directory and hands each outcome to found as
// soon as it is there.
func runBenchmarks(ctx context.Context, dir string, env []string, found func(*outcome), argv ...string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = grace
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
