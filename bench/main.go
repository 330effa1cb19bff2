// Bench measures Limitkeeper beside other programs, on this machine and over loopback.
// It starts every program, loads them in turn, checks their answers, and prints tables
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
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == upstreamCommand {
		exitOn(runUpstream(os.Args[2]))
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
	part     string
	rounds   int
	duration time.Duration // of one measurement
	warmup   time.Duration // of each program, at each number of connections
	keys     int
	only     []string // measure names that contain one of these words; empty for all
}

// parts are the groups of measurements that the command line selects by name.
var parts = map[string]func(context.Context, *harness) error{"proxy": runProxy, "validate": runValidate}

const usage = `usage: bench/run [part] [options]

Parts (default all):
  proxy     the gateway beside plain Caddy, Caddy with the same headers, forward_auth and nginx
  validate  POST /validate beside a static answer and envoyproxy/ratelimit
  store     decisions in core over badgerstore, without HTTP; it takes no options

Options:
`

// parse reads the command line.
func parse(args []string, out io.Writer) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("bench/run", flag.ContinueOnError)
	f.SetOutput(out)
	f.Usage = func() {
		fmt.Fprint(out, usage)
		f.PrintDefaults()
	}
	f.IntVar(&o.rounds, "rounds", 5, "number of rounds; each round measures every program once")
	f.DurationVar(&o.duration, "duration", 3*time.Second, "duration of one measurement, in whole seconds")
	f.DurationVar(&o.warmup, "warmup", time.Second, "load on each program before the first round")
	f.IntVar(&o.keys, "keys", 1000, "number of API keys that the requests carry")
	only := f.String("only", "", "measure only names that contain one of these words, such as plain,process")
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		o.part, args = args[0], args[1:]
	}
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	o.only = strings.FieldsFunc(*only, func(r rune) bool { return r == ',' || r == ' ' })
	if parts[o.part] == nil || f.NArg() > 0 {
		return nil, fmt.Errorf("no part %q: want proxy, validate or store", strings.Join(append([]string{o.part}, f.Args()...), " "))
	}
	if o.rounds < 1 || o.keys < 1 || o.duration < time.Second {
		return nil, errors.New("want at least 1 round, 1 key and a duration of 1s")
	}
	return o, nil
}

// wants reports whether -only selects a name.
func (o *options) wants(name string) bool {
	return len(o.only) == 0 || slices.ContainsFunc(o.only, func(w string) bool { return strings.Contains(name, w) })
}

// run measures the selected part.
func run(ctx context.Context, o *options) (err error) {
	h, err := newHarness(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	return parts[o.part](ctx, h)
}
