// Bench measures Limitkeeper beside other programs, on this machine and over loopback.
// It starts every program, loads them in turn, checks their answers, and writes tables
// of medians. docs/benchmarks.md explains the measurements, bench/run -h the options.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == upstreamCommand {
		exitOn(runUpstream(os.Args[2:]))
		return
	}
	o, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	exitOn(err)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exitOn(run(ctx, o))
}

// exitOn prints an error and ends the program with status 1. It does nothing for nil.
func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the options of the command line.
type options struct {
	part      string
	rounds    int
	duration  time.Duration // of one measurement
	warmup    time.Duration // of each program, at each number of connections
	sustained time.Duration // of the load without a pause in the part store
	keys      int
	only      []string // measure names that contain one of these words; empty for all
	out       string   // directory of the results
	work      string   // directory of programs and data
	printOnly bool     // skip the noise check and write no results
}

// part is a group of measurements that the command line selects by name.
type part struct {
	name, about string
	run         func(context.Context, *harness) error
}

// parts are listed in the order in which "all" runs them.
var parts = []part{
	{"proxy", "the gateway beside plain Caddy, Caddy with the same headers, forward_auth and nginx", runProxy},
	{"validate", "POST /validate beside a static answer and envoyproxy/ratelimit", runValidate},
	{"store", "decisions in core over badgerstore, without HTTP", runStore},
}

const usage = `usage: bench/run [part] [options]

Parts (default all):
`

// parse reads the command line. The part may stand before or after the options.
func parse(args []string, out io.Writer) (*options, error) {
	o := &options{part: "all"}
	f := flag.NewFlagSet("bench/run", flag.ContinueOnError)
	f.SetOutput(out)
	f.Usage = func() {
		fmt.Fprint(out, usage)
		for _, p := range parts {
			fmt.Fprintf(out, "  %-10s%s\n", p.name, p.about)
		}
		fmt.Fprintln(out, "\nOptions:")
		f.PrintDefaults()
	}
	f.IntVar(&o.rounds, "rounds", 5, "number of rounds; each round measures every program once")
	f.DurationVar(&o.duration, "duration", 3*time.Second, "duration of one measurement, in whole seconds")
	f.DurationVar(&o.warmup, "warmup", time.Second, "load on each program before the first round")
	f.DurationVar(&o.sustained, "sustained", time.Minute, "duration of the load without a pause in the part store")
	f.IntVar(&o.keys, "keys", 1000, "number of API keys that the requests carry")
	f.StringVar(&o.out, "out", resultsDir, "directory for the tables and figures")
	f.StringVar(&o.work, "work", filepath.Join("bin", "bench"), "directory for programs and data; use a disk, not memory")
	f.BoolVar(&o.printOnly, "print-only", false, "skip the noise check, print the tables and write no results")
	only := f.String("only", "", "measure only names that contain one of these words, such as plain,process")
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		o.part, args = args[0], args[1:]
	}
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 && o.part == "all" {
		o.part = f.Arg(0)
	}
	o.only = strings.FieldsFunc(*only, func(r rune) bool { return r == ',' || r == ' ' })
	return o, o.validate()
}

// validate returns an error for options that cannot be measured with.
func (o *options) validate() error {
	names := []string{"all"}
	for _, p := range parts {
		names = append(names, p.name)
	}
	switch {
	case !slices.Contains(names, o.part):
		return fmt.Errorf("no part %q: want one of %s", o.part, strings.Join(names, ", "))
	case o.rounds < 1 || o.keys < 1 || o.duration < time.Second:
		return errors.New("want at least 1 round, 1 key and a duration of 1s")
	case len(o.only) > 0 && !o.printOnly:
		return errors.New("-only leaves out rows of the results: add -print-only")
	}
	return nil
}

// wants reports whether -only selects a name.
func (o *options) wants(name string) bool {
	return len(o.only) == 0 || slices.ContainsFunc(o.only, func(w string) bool { return strings.Contains(name, w) })
}

// run measures the selected parts. Without -print-only it checks the noise of the machine
// first, and shows the results of each part in the documentation.
func run(ctx context.Context, o *options) (err error) {
	h, err := newHarness(ctx, o, os.Stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	if !o.printOnly {
		if err := h.requireQuiet(ctx); err != nil {
			return err
		}
	}
	for _, p := range parts {
		if o.part != "all" && o.part != p.name {
			continue
		}
		if err := p.run(ctx, h); err != nil {
			if ctx.Err() != nil {
				return errors.New("interrupted")
			}
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if o.printOnly || filepath.Clean(o.out) != resultsDir {
			continue
		}
		if err := updateDocs("."); err != nil {
			return err
		}
	}
	return nil
}
